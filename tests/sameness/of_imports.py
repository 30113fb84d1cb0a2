"""Scripts that change what an import does, or in which order things are imported."""

from sameness.case import case

case(
    "import hook of the script",
    "beartype and jaxtyping install one: the review's i",
    """
    import sys
    import standin
    class Hook:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name.startswith("sees_"):
                standin.note("hook", asked=name)
            return None
    sys.meta_path.insert(0, Hook)
    import sees_env, sees_hooks
    standin.tell("hooks")
    """,
)
case(
    "import hook of a library",
    "a library's finder sees what comes behind it",
    """
    import makes_finder
    import sees_env, sees_nothing
    import standin
    standin.tell("hooks")
    """,
)
case(
    "import hook that replaces a library",
    "a finder that serves another file",
    """
    import importlib.util, sys
    class Other:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == "foolib":
                return importlib.util.spec_from_file_location(name, "other.py")
    sys.meta_path.insert(0, Other)
    import foolib
    import standin
    print(foolib.VERSION)
    standin.tell("file:foolib")
    """,
    files={"other.py": "VERSION = 'another'\n"},
)
case(
    "path hook",
    "sys.path_hooks instead of sys.meta_path",
    """
    import sys
    import standin
    def hook(path):
        if path.endswith("site-packages"):
            standin.note("path hook")
        raise ImportError
    sys.path_hooks.insert(0, hook)
    sys.path_importer_cache.clear()
    import sees_env
    standin.tell()
    """,
)
case(
    "builtins.__import__ replaced",
    "as lazy-import tools do",
    """
    import builtins
    import standin
    _import = builtins.__import__
    def logged(name, *args, **kw):
        if name.startswith("sees_"):
            standin.note("import", asked=name)
        return _import(name, *args, **kw)
    builtins.__import__ = logged
    import sees_env
    import sees_nothing
    standin.tell()
    """,
)
case(
    "order of imports",
    "not the alphabet's: the review's h",
    """
    import zebra
    import mongoose
    import aardvark
    import standin
    standin.tell()
    """,
    preloads=("aardvark", "mongoose", "zebra"),
)
case(
    "order of imports in a function",
    "what one life has learnt, the next imports in the same order",
    """
    def main():
        import zebra, mongoose, aardvark
        import standin
        standin.tell()
    main()
    """,
)
case(
    "library that imports a module of the script's own",
    "half an import has left its marks: it is not done again in a fork",
    """
    import uses_foolib
    import unsloth_like
    import zebra
    import standin
    print(zebra.VERSION)
    standin.tell()
    """,
    files={"zebra.py": "import standin\nVERSION = 'vendored'\nstandin.see(__name__, 'loaded:zebra')\n"},
)
case(
    "unsloth first",
    "a library that must be first, behind code that decides it",
    """
    import os
    if os.environ.get("LIB_MODE") != "without":
        import unsloth_like
    import zebra, aardvark
    import json
    import standin
    print(json.LIKED, zebra.PATCHED)
    standin.tell()
    """,
)
case(
    "unsloth second",
    "imported behind what it wants to patch",
    """
    import zebra, aardvark
    import unsloth_like
    import standin
    standin.tell()
    """,
)
case(
    "conditional import",
    "the branch that is not taken imports nothing",
    """
    import sys
    if len(sys.argv) > 5:
        import zebra
    import aardvark
    import standin
    standin.tell("loaded:zebra")
    """,
)
case(
    "try import",
    "what is there is imported, what is not is not",
    """
    try:
        import not_there_at_all
    except ImportError:
        import zebra
    else:
        import mongoose
    import aardvark
    import standin
    standin.tell("loaded:mongoose")
    """,
)
case(
    "try import in vain",
    "what stands before the import that is missing is imported",
    """
    try:
        import mongoose
        import not_there_at_all
    except ImportError:
        not_there_at_all = None
    import aardvark
    import standin
    standin.tell("loaded:mongoose")
    """,
    preloads=("aardvark", "mongoose"),
)
case(
    "value beside a module of its name",
    "Python takes the value, and never imports the module",
    """
    from own import train
    import aardvark, sees_env
    import standin
    standin.tell("loaded:mongoose")
    """,
    files={"own/__init__.py": "def train():\n    pass\n", "own/train.py": "import mongoose\n"},
    preloads=("aardvark", "sees_env"),
)
case(
    "look that is left out",
    "a lazy library's part that no branch takes",
    """
    import lazy_like
    FAST = False
    if FAST:
        part = lazy_like.part
    import sees_env
    import standin
    standin.tell("loaded:lazy_like.part")
    """,
)
case(
    "import that fails",
    "a library that raises, and the script goes on",
    """
    try:
        import makes_error
    except RuntimeError as error:
        print(error)
    import sees_env
    import standin
    standin.tell("loaded:makes_error")
    """,
)
case(
    "import that is missing for a library",
    "an optional part of a library that the script makes possible",
    """
    import sys, types
    sys.modules["not_there"] = types.ModuleType("not_there")
    import makes_missing
    import standin
    print(makes_missing.HAS)
    standin.tell()
    """,
)
case(
    "sys.modules stub",
    "an installed library is replaced by a stub before others import it",
    """
    import sys, types
    sys.modules["foolib"] = types.ModuleType("foolib")
    sys.modules["foolib"].__file__ = "stub"
    import uses_foolib
    import standin
    standin.tell("file:foolib")
    """,
)
case(
    "sys.modules None",
    "an import that the script forbids",
    """
    import sys
    sys.modules["foolib"] = None
    try:
        import uses_foolib
    except ImportError as error:
        print(type(error).__name__)
    import standin
    standin.tell()
    """,
)
case(
    "sys.modules deleted",
    "imported twice, as reloaders do",
    """
    import os, sys
    import sees_env
    del sys.modules["sees_env"]
    os.environ["LIB_MODE"] = "again"
    import sees_env
    import standin
    standin.tell()
    """,
)
case(
    "importlib.reload",
    "the same by importlib",
    """
    import importlib, os
    import sees_env
    os.environ["LIB_MODE"] = "again"
    importlib.reload(sees_env)
    import standin
    standin.tell()
    """,
)
case(
    "import by name",
    "importlib.import_module with a computed name",
    """
    import importlib, os
    os.environ["LIB_MODE"] = "by name"
    for name in ("sees_env", "zebra"):
        importlib.import_module(name)
    import standin
    standin.tell()
    """,
)
case(
    "lazy library",
    "an attribute of a package imports its part",
    """
    import os
    import lazy_like
    os.environ["LIB_MODE"] = "before the part"
    lazy_like.part
    import standin
    standin.tell()
    """,
)
case(
    "importlib LazyLoader",
    "the module runs at the first look at it",
    """
    import importlib.util, os, sys
    spec = importlib.util.find_spec("sees_env")
    spec.loader = importlib.util.LazyLoader(spec.loader)
    sees_env = importlib.util.module_from_spec(spec)
    sys.modules["sees_env"] = sees_env
    spec.loader.exec_module(sees_env)
    os.environ["LIB_MODE"] = "at the first look"
    import standin
    sees_env.standin
    standin.tell()
    """,
)
case(
    "zip import",
    "a library in an archive that the script puts on the path",
    """
    import sys, zipfile
    with zipfile.ZipFile("libs.zip", "w") as archive:
        archive.writestr("zipped.py", "import standin\\nstandin.see(__name__, 'env:LIB_MODE')\\n")
        archive.writestr("foolib.py", "import standin\\nVERSION = 'zipped'\\nstandin.see(__name__)\\n")
    sys.path.insert(0, "libs.zip")
    import zipped, foolib
    import standin
    print(foolib.VERSION)
    standin.tell()
    """,
)
case(
    "patch before an import",
    "a library takes the patched function by from .. import",
    """
    import json
    def loud(*args, **kw):
        return "loud"
    kept, json.dumps = json.dumps, loud
    import sees_json_patched
    json.dumps = kept
    import standin
    standin.tell()
    """,
)
case(
    "patch by a library",
    "a library patches another one",
    """
    import makes_patch
    import sees_json_patched
    import standin
    standin.tell("attribute:json.dumps")
    """,
)
case(
    "patch by a module beside the script",
    "compat.py of many repositories",
    """
    import compat
    import sees_json_patched
    import standin
    standin.tell()
    """,
    files={
        "compat.py": """
            import json
            kept = json.dumps
            def old(*args, **kw):
                return kept(*args, **kw)
            json.dumps = old
            """
    },
)
case(
    "path by a library",
    "a library puts a folder on the path",
    """
    import makes_path
    import hidden
    import standin
    standin.tell("file:hidden", "path")
    """,
)
case(
    "plugins by entry points",
    "what pip has registered, loaded behind a change",
    """
    import os
    import loads_plugins
    os.environ["LIB_MODE"] = "for plugins"
    print(loads_plugins.load())
    import standin
    standin.tell()
    """,
)
case(
    "module that replaces itself",
    "sys.modules holds another object than the one that was run",
    """
    import replaces_itself
    import standin
    print(replaces_itself.VALUE, hasattr(replaces_itself, "standin"))
    standin.tell()
    """,
)
case(
    "installed main module",
    "a library looks at __main__ while it is imported",
    """
    BEFORE = 1
    import sees_main
    AFTER = 2
    import standin
    standin.tell("main")
    """,
)
case(
    "library keeps __main__",
    "it is the script's own module",
    """
    import makes_main_check, sys
    import standin
    print(makes_main_check.MAIN is sys.modules["__main__"])
    standin.tell()
    """,
)
case(
    "star import",
    "names of a library in the script",
    """
    from foolib import *
    from foolib.part import VERSION
    import standin
    print(VERSION)
    standin.tell()
    """,
)
