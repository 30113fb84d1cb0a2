"""Scripts that say from where something is imported."""

from sameness.case import case

FORK = "import standin\nVERSION = 'vendored'\nstandin.see(__name__)\n"

case(
    "plain",
    "nothing unusual: this one must be warm, or the corpus proves nothing",
    """
    import sees_env
    import sees_nothing
    import standin
    standin.tell("loaded:sees_env")
    """,
    preloads=("sees_env", "sees_nothing"),
)
case(
    "vendored fork",
    "sys.path.insert before an import: the review's a",
    """
    import os, sys
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "vendored"))
    import foolib
    import standin
    standin.tell("file:foolib")
    """,
    files={"vendored/foolib/__init__.py": FORK},
)
case(
    "vendored fork of what a library imports",
    "the name comes by a library, not by the script",
    """
    import sys
    sys.path.insert(0, "vendored")
    import uses_foolib
    import standin
    standin.tell("file:foolib")
    """,
    files={"vendored/foolib/__init__.py": FORK},
)
case(
    "vendored path in a function",
    "the change of sys.path hides in a function of the script",
    """
    import sys
    def set_up():
        sys.path[:0] = ["vendored"]
    set_up()
    import foolib
    import standin
    standin.tell("file:foolib", "path")
    """,
    files={"vendored/foolib/__init__.py": FORK},
)
case(
    "vendored path in a module beside the script",
    "the change hides in another file",
    """
    import paths
    import foolib
    import standin
    standin.tell("file:foolib")
    """,
    files={"vendored/foolib/__init__.py": FORK, "paths.py": "import sys\nsys.path.insert(0, 'vendored')\n"},
)
case(
    "path by site.addsitedir",
    "a .pth below the folder puts another one on the path",
    """
    import site
    site.addsitedir("more")
    import foolib, extra
    import standin
    standin.tell("file:extra", "path")
    """,
    files={"more/extra.pth": "inner\n", "more/inner/extra.py": FORK},
)
case(
    "path appended",
    "an installed name still wins over an appended folder",
    """
    import sys
    sys.path.append("vendored")
    import foolib, only_here
    import standin
    standin.tell("file:foolib", "file:only_here")
    """,
    files={"vendored/foolib/__init__.py": FORK, "vendored/only_here.py": FORK},
)
case(
    "a name beside the script",
    "a file of the script's folder has the name of an installed package",
    """
    import foolib
    import sees_path
    import standin
    standin.tell("file:foolib")
    """,
    files={"foolib.py": FORK},
)
case(
    "a name beside the script, for a library",
    "an installed library finds the script's file instead of the installed one",
    """
    import uses_foolib
    import standin
    standin.tell("file:foolib")
    """,
    files={"foolib.py": FORK},
)
case(
    "a name that appears between two lives",
    "the second life has a file beside it that the first had not",
    """
    import foolib
    import standin
    standin.tell("file:foolib")
    """,
    edits={"foolib.py": FORK},
)
case(
    "own module edited between two lives",
    "the user's text is read anew in each life",
    """
    import own
    import sees_nothing
    import standin
    print(own.VERSION)
    standin.tell()
    """,
    files={"own.py": "VERSION = 1\n"},
    edits={"own.py": "VERSION = 'the second'\n"},
)
case(
    "own package on PYTHONPATH edited",
    "it is the user's, though not below the script's folder: the review's d",
    files={
        "src/owned/__init__.py": "VERSION = 1\n",
        "scripts/train.py": "import owned\nimport standin\nprint(owned.VERSION)\nstandin.tell('file:owned')\n",
    },
    script="scripts/train.py",
    edits={"src/owned/__init__.py": "VERSION = 'the second'\n"},
    environment={"PYTHONPATH": "src"},
)
case(
    "editable install by a .pth edited",
    "pip install -e of a package with a src folder",
    """
    import sees_nothing
    import edited_lib
    import standin
    print(edited_lib.VERSION)
    standin.tell("file:edited_lib")
    """,
    files={"checkout/edited_lib/__init__.py": "VERSION = 1\n"},
    edits={"checkout/edited_lib/__init__.py": "VERSION = 'the second'\n"},
    installed={"__editable__.edited_lib.pth": "{folder}/checkout\n"},
)
case(
    "editable install by a finder edited",
    "the other way of setuptools: a finder that a .pth installs",
    """
    import edited_lib
    import standin
    print(edited_lib.VERSION)
    standin.tell("file:edited_lib", "hooks")
    """,
    files={"checkout/edited_lib.py": "VERSION = 1\n"},
    edits={"checkout/edited_lib.py": "VERSION = 'the second'\n"},
    installed={
        "__editable__.edited_lib.pth": "import __editable___edited_lib_finder\n",
        "__editable___edited_lib_finder.py": (
            "import importlib.util, sys\nclass EditableFinder:\n    @classmethod\n"
            "    def find_spec(cls, name, path=None, target=None):\n        if name == 'edited_lib':\n"
            "            return importlib.util.spec_from_file_location(name, '{folder}/checkout/edited_lib.py')\n"
            "sys.meta_path.append(EditableFinder)\n"
        ),
    },
)
case(
    "installed library edited",
    "an upgrade of a library between two lives is seen",
    """
    import upgraded
    import standin
    print(upgraded.VERSION)
    standin.tell()
    """,
    edits={"{packages}/upgraded.py": "import standin\nVERSION = 'two point zero'\nstandin.see(__name__)\n"},
    installed={"upgraded.py": "import standin\nVERSION = 1\nstandin.see(__name__)\n"},
)
case(
    "library's part edited",
    "not the package itself but a module below it",
    """
    import upgraded.part
    import standin
    print(upgraded.part.VERSION)
    standin.tell()
    """,
    edits={"{packages}/upgraded/part.py": "VERSION = 'two point zero'\n"},
    installed={"upgraded/__init__.py": "import standin\nstandin.see(__name__)\n", "upgraded/part.py": "VERSION = 1\n"},
)
case(
    "library's data edited",
    "what a library reads beside its file, by __file__",
    """
    import data_like
    import standin
    print(data_like.TEXT)
    standin.tell()
    """,
    preloads=("data_like",),
)
case(
    "python -m package",
    "__main__ of a package, its __init__ first",
    files={
        "pack/__init__.py": "import sees_env, sees_main\n",
        "pack/__main__.py": "import sees_argv\nimport standin\nstandin.tell('main', 'argv', 'path')\n",
    },
    script="pack",
    is_module=True,
    args=("--lr", "0.1"),
)
case(
    "python -m package.module with an environment in its parent",
    "the parent's text runs before the module's",
    files={
        "pack/__init__.py": "import os\nos.environ['LIB_MODE'] = 'by the parent'\n",
        "pack/train.py": "import sees_env\nimport standin\nstandin.tell('main')\n",
    },
    script="pack.train",
    is_module=True,
)
case(
    "python -m package.module whose package imports torch and NumPy",
    "what is hidden until it is imported is given out to the package, too",
    files={
        "pack/__init__.py": """
            import os, sys
            print('before', os.environ.get('LIB_MADE'), os.environ['RANK'], sys.argv[0])
            import numpy
            import torch
            print('behind', os.environ.get('LIB_MADE'))
            """,
        "pack/train.py": "import makes_environment\nimport multiprocessing\nimport standin\nstandin.tell('main')\n",
    },
    installed={
        "numpy/__init__.py": "import multiprocessing, os, standin\nstandin.see(__name__)\nprint('numpy')\n",
        "torch/__init__.py": """
            import numpy, standin
            standin.see(__name__)
            class default_generator:
                seed = staticmethod(lambda: None)
            get_num_threads = set_num_threads = lambda *n: 1
            """,
    },
    script="pack.train",
    is_module=True,
    preloads=("numpy", "torch"),
)
case(
    "namespace package over two folders",
    "one half is installed, the other is the user's",
    """
    import sys
    sys.path.append("mine")
    import spaced.left, spaced.right
    import standin
    standin.tell("file:spaced.right")
    """,
    files={"mine/spaced/right.py": "import standin\nstandin.see(__name__)\n"},
)
case(
    "runpy.run_path",
    "a launcher script that runs another one",
    """
    import runpy, sys
    import sees_argv
    sys.argv = ["inner.py", "--deep"]
    runpy.run_path("inner.py", run_name="__main__")
    """,
    files={"inner.py": "import sees_env, sees_main\nimport standin\nstandin.tell('argv', 'main')\n"},
)
case(
    "data beside the script by __file__",
    "relative to the script, and to the working directory",
    """
    import os
    TEXT = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "words.txt")).read()
    import sees_cwd
    import standin
    print(TEXT, __file__)
    standin.tell("cwd")
    """,
    files={"data/words.txt": "three four\n", "here.txt": "x"},
)
case(
    "script in a folder of its own",
    "sys.path[0] is the script's folder, not the working directory",
    files={
        "scripts/train.py": "import helper\nimport sees_path\nimport standin\nstandin.tell('path', 'file:helper')\n",
        "scripts/helper.py": "import sees_nothing\n",
        "helper.py": "raise SystemExit('the wrong one')\n",
    },
    script="scripts/train.py",
)
case(
    "file by a method of a path",
    "made on the spot, and written",
    """
    from pathlib import Path
    Path("here.txt").write_text("here")
    import sees_cwd
    import standin
    standin.tell()
    """,
)
case(
    "module of a standard name beside the script, for a library",
    "a library that imports copy gets the one beside the script",
    """
    import uses_copy
    import standin
    print(uses_copy.WHOSE)
    standin.tell("file:copy")
    """,
    files={"copy.py": "WHOSE = 'beside the script'\n"},
    installed={"uses_copy.py": "import copy\nWHOSE = getattr(copy, 'WHOSE', 'of the standard library')\n"},
)
case(
    "module of a standard name beside the script, for nobody",
    "libraries that do not look for it are imported ahead",
    """
    import zebra
    import standin
    standin.tell("loaded:copy")
    """,
    files={"copy.py": "WHOSE = 'beside the script'\n"},
    preloads=("zebra",),
)
