"""Scripts that change the environment before a library reads it."""

from sameness.case import case

case(
    "environment by assignment",
    "the plain case",
    """
    import os
    os.environ["LIB_MODE"] = "script"
    import sees_env
    import standin
    standin.tell("env:LIB_MODE", "c:LIB_MODE")
    """,
)
case(
    "environment by a function",
    "the review's c",
    """
    import os
    def configure():
        os.environ["LIB_MODE"] = "configured"
    configure()
    import sees_env, sees_c_env
    import standin
    standin.tell()
    """,
)
case(
    "environment by dotenv",
    "the review's b: a library's function does it",
    """
    from dotenv_like import load_dotenv
    load_dotenv()
    import sees_env
    import standin
    standin.tell()
    """,
    files={".env": "LIB_MODE=from the file\n"},
)
case(
    "environment by a class body",
    "code of a class runs where it stands",
    """
    import os
    class Settings:
        os.environ["LIB_MODE"] = "class"
    import sees_env
    import standin
    standin.tell()
    """,
)
case(
    "environment by a base class",
    "a base is told of what is derived from it",
    """
    import os
    class Base:
        def __init_subclass__(cls):
            os.environ["LIB_MODE"] = "derived"
    class Model(Base):
        pass
    import sees_env
    import standin
    standin.tell()
    """,
)
case(
    "environment by a package of the script that is lazy",
    "its __getattr__ imports a module that nobody names",
    """
    from own import Trainer
    import sees_env
    import standin
    standin.tell()
    """,
    files={
        "own/__init__.py": """
            def __getattr__(name):
                if name != "Trainer":
                    raise AttributeError(name)
                import own.trainer
                return own.trainer.Trainer
            """,
        "own/trainer.py": """
            import os
            os.environ["LIB_MODE"] = "lazy"
            class Trainer:
                pass
            """,
    },
)
case(
    "environment by a library's property",
    "what looks like an attribute is code of the library",
    """
    from has_settings import settings
    DEBUG = settings.DEBUG
    import sees_env
    import standin
    standin.tell()
    """,
    installed={
        "has_settings.py": (
            "import os\nclass Settings:\n    @property\n    def DEBUG(self):\n"
            "        os.environ['LIB_MODE'] = 'property'\nsettings = Settings()\n"
        ),
    },
)
case(
    "environment by a default argument",
    "a default is computed where the function is defined",
    """
    import os
    def train(mode=os.environ.setdefault("LIB_MODE", "default")):
        return mode
    import sees_env
    import standin
    standin.tell()
    """,
)
case(
    "environment by a decorator",
    "a decorator is called where the function is defined",
    """
    import os
    def configured(function):
        os.environ["LIB_MODE"] = "decorated"
        return function
    @configured
    def train():
        pass
    import sees_env
    import standin
    standin.tell()
    """,
)
case(
    "environment by an annotation",
    "annotations of a module are computed, too",
    """
    import os
    count: os.environ.setdefault("LIB_MODE", "annotated") = 1
    import sees_env
    import standin
    standin.tell()
    """,
)
case(
    "environment by a comprehension",
    "a call inside an expression that looks like a constant",
    """
    import os
    MODES = [os.environ.setdefault(name, "listed") for name in ("LIB_MODE", "LIB_EXTRA")]
    import sees_env_too
    import standin
    standin.tell()
    """,
)
case(
    "environment by a handler",
    "it runs where the body raises",
    """
    import os
    try:
        os.environ["LIB_MODE"]
    except KeyError:
        os.environ["LIB_MODE"] = "handled"
    import sees_env
    import standin
    standin.tell()
    """,
)
case(
    "environment in place",
    "an imported name that is changed, not bound anew",
    """
    import sys
    from os import environ
    if sys.version_info >= (3, 9):
        environ |= {"LIB_MODE": "in place"}
    import sees_env
    import standin
    standin.tell()
    """,
)
case(
    "environment by update and pop",
    "methods of os.environ",
    """
    import os
    os.environ.update(LIB_MODE="updated")
    os.environ.pop("LIB_EXTRA", None)
    import sees_env_too
    import standin
    standin.tell()
    """,
    environment={"LIB_EXTRA": "to be gone", "LIB_MODE": "outer"},
)
case(
    "environment by putenv",
    "C code sees it, os.environ does not",
    """
    import os
    os.putenv("LIB_MODE", "put")
    import sees_c_env, sees_env
    import standin
    standin.tell("c:LIB_MODE", "env:LIB_MODE")
    """,
)
case(
    "environment by C setenv",
    "neither os.environ nor os.putenv",
    """
    import ctypes
    ctypes.CDLL(None).setenv(b"LIB_MODE", b"by C", 1)
    import sees_c_env
    import standin
    standin.tell("c:LIB_MODE")
    """,
)
case(
    "environment in an alias",
    "another name for os.environ",
    """
    from os import environ as env
    env["LIB_MODE"] = "alias"
    import sees_env
    import standin
    standin.tell()
    """,
)
case(
    "environment by a library's import",
    "a library sets what the next one reads",
    """
    import makes_environment
    import sees_env_too
    import standin
    standin.tell("env:LIB_MADE", "env:LIB_EXTRA", "c:LIB_MADE")
    """,
)
case(
    "environment inside the main guard",
    "everything behind if __name__ is as late as it stands",
    """
    import os
    if __name__ == "__main__":
        os.environ["LIB_MODE"] = "guarded"
        import sees_env
        import standin
        standin.tell()
    """,
)
case(
    "environment by arguments",
    "argparse at module level, then an import",
    """
    import argparse, os
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode")
    os.environ["LIB_MODE"] = parser.parse_args().mode
    import sees_env, sees_argv
    import standin
    standin.tell("argv")
    """,
    args=("--mode", "argued"),
)
case(
    "environment changed late",
    "an import in a function that runs after the change",
    """
    import os
    import sees_nothing
    def main():
        os.environ["LIB_MODE"] = "main"
        import sees_env
        import standin
        standin.tell()
    main()
    """,
)
case(
    "environment restored",
    "set for one import, then taken back",
    """
    import os
    os.environ["LIB_MODE"] = "for a moment"
    import sees_env
    del os.environ["LIB_MODE"]
    import sees_env_too
    import standin
    standin.tell("env:LIB_MODE")
    """,
)
case(
    "environment of the rank, read at import",
    "a library that reads RANK",
    """
    import sees_rank, sees_world
    import sees_env
    import standin
    standin.tell()
    """,
)
case(
    "environment of the rank, read by C",
    "the review's j, for RANK",
    """
    import sees_c_rank
    import standin
    standin.tell("c:RANK")
    """,
)
case(
    "environment of the rank, listed",
    "a library that looks through all of the environment",
    """
    import sees_all_ranks
    import standin
    standin.tell("environment:LOCAL_RANK")
    """,
)
case(
    "environment, looked through",
    "dict(os.environ), not a name",
    """
    import os
    os.environ["LIB_NEW"] = "1"
    import sees_all_env
    import standin
    standin.tell()
    """,
    environment={"LIB_OLD": "1"},
)
case(
    "environment as bytes",
    "os.environb is the same environment",
    """
    import os
    os.environb[b"LIB_MODE"] = b"bytes"
    import sees_env_bytes, sees_env
    import standin
    standin.tell()
    """,
)
case(
    "environment, is it there",
    "a test with `in` reads as well",
    """
    import os
    os.environ["LIB_MODE"] = ""
    import sees_has
    import standin
    standin.tell()
    """,
)
case(
    "OMP_NUM_THREADS of the user",
    "a library with an OpenMP of its own reads it by C: the review's j",
    """
    import sees_omp, sees_py_omp
    import standin
    standin.tell("c:OMP_NUM_THREADS")
    """,
    environment={"OMP_NUM_THREADS": "3"},
)
case(
    "OMP_NUM_THREADS of the script",
    "set by the script before the library comes",
    """
    import os
    os.environ["OMP_NUM_THREADS"] = "5"
    import sees_omp, sees_py_omp
    import standin
    standin.tell("c:OMP_NUM_THREADS")
    """,
)
case(
    "OMP_NUM_THREADS of the launcher",
    "given to each of two ranks, read by C: the review's j",
    """
    import sees_omp
    import sees_py_omp
    import standin
    standin.tell("c:OMP_NUM_THREADS")
    """,
    ranks=2,
)
