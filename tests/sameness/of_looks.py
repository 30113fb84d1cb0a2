"""What a script has looked at between two imports, and the later one changes."""

import textwrap

from sameness.case import case as _case

_TELL = "import standin\nstandin.tell()\n"


def case(name, why, text, **more):
    _case(name, why, textwrap.dedent(text) + _TELL, **more)


_CHANGES = {
    "liba.py": "class Odd:\n    @property\n    def value(self):\n"
    "        import os\n        os.environ['BY_LOOK'] = 'yes'\n        return 1\n\nCOUNT = 1\nOBJ = Odd()\n",
    "libb.py": "import liba, os\nliba.COUNT = 2\nSEEN = os.environ.get('BY_LOOK')\n",
    "liblazy/__init__.py": "def __getattr__(name):\n    import importlib\n"
    "    if name != 'part':\n        raise AttributeError(name)\n    return importlib.import_module('liblazy.part')\n",
    "liblazy/part.py": "import liba, os\nliba.COUNT = 2\nFD = os.open(__file__, os.O_RDONLY)\n",
}
_QUIET = {"libquiet.py": "import warnings\nwarnings.simplefilter('ignore')\n"}
case(
    "text of a module of the script's own that was edited",
    "a name of a library that its own module has imported stands for that library",
    """
    import utils
    import sees_nothing
    print("first")
    """,
    files={"utils.py": "import json\n"},
    edits={"train.py": "import utils\nDUMPS = utils.json.dumps\nimport sees_nothing\nprint(DUMPS.__name__)\n" + _TELL},
)
case(
    "part of a lazy package, by name",
    "its __getattr__ imports it: all that is looked for behind an import",
    """
    import liba
    BEFORE = liba.COUNT
    from liblazy import part
    import os
    print(BEFORE, os.read(part.FD, 6))
    """,
    installed=_CHANGES,
)
case(
    "module by another name",
    "what it has is taken by that name",
    """
    import liba
    other = liba
    BEFORE = other.COUNT
    import libb
    print(BEFORE, other.COUNT)
    """,
    installed=_CHANGES,
)
case(
    "modules that are gone through",
    "a name of one is nowhere",
    """
    import liba, json
    BEFORE = [each.COUNT for each in (liba,)], {"it": liba}["it"].COUNT
    import libb
    print(BEFORE)
    """,
    installed=_CHANGES,
)
case(
    "module of the standard library by another name",
    "as in `o = os`",
    """
    import os
    o = os
    BEFORE = o.environ.get("SET_LATER")
    import libset
    print(BEFORE)
    """,
    installed={"libset.py": "import os\nos.environ['SET_LATER'] = 'yes'\n"},
)
case(
    "library that may not be there",
    "its value is bound a second time in a branch",
    """
    try:
        from liba import OBJ
    except ImportError:
        OBJ = None
    VALUE = OBJ.value
    import libb
    print(libb.SEEN, VALUE)
    """,
    installed=_CHANGES,
)
case(
    "function of the name of its module",
    "a package has put it over the module that has the same name",
    """
    from libpkg import run
    import libpatch
    print(run())
    """,
    installed={
        "libpkg/__init__.py": "from libpkg.run import run\n",
        "libpkg/run.py": "def run():\n    return 'plain'\n",
        "libpatch.py": "import libpkg\nlibpkg.run = lambda: 'fast'\n",
    },
)
case(
    "text that says it is another one",
    "of a class derived from str",
    """
    from libtext import V
    import libother
    print(V.tag)
    """,
    installed={
        "libtext.py": "class K(str):\n    pass\nV = K('v')\nV.tag = 'plain'\n",
        "libother.py": "import libtext\nlibtext.V = libtext.K('v')\nlibtext.V.tag = 'patched'\n",
    },
)
case(
    "folder beside the script that a library makes",
    "looked for before its import, by a path from __file__",
    """
    from pathlib import Path
    HAD = (Path(__file__).parent / "made").exists()
    import libmakes
    print(HAD)
    """,
    installed={"libmakes.py": "import os\nos.makedirs('made', exist_ok=True)\n"},
)
case(
    "proxy that a library has",
    "it says of its class what it stands for",
    """
    from libproxy import current
    import libafter
    print(libafter.SEEN)
    """,
    installed={
        "libproxy.py": "import os\nclass Proxy:\n    @property\n    def __class__(self):\n"
        "        os.environ['RESOLVED'] = 'yes'\n        return dict\n\ncurrent = Proxy()\n",
        "libafter.py": "import os\nSEEN = os.environ.get('RESOLVED')\n",
    },
)
case(
    "all names of a module and of a class",
    "a library adds one",
    """
    import argparse, json
    BEFORE = "added" in json.__dict__, "added" in argparse.Namespace.__dict__, json.JSONEncoder.__name__
    import libadds
    print(BEFORE)
    """,
    installed={
        "libadds.py": "import argparse, json\njson.added = argparse.Namespace.added = 1\n"
        "json.JSONEncoder.__name__ = 'Added'\n"
    },
)
case(
    "builtins by their own name",
    "a library adds one",
    """
    BEFORE = "added" in __builtins__.__dict__
    import libadds
    print(BEFORE)
    """,
    installed={"libadds.py": "import builtins\nbuiltins.added = len\n"},
)
case(
    "functions that are called before they are replaced",
    "getLogger and expanduser",
    """
    import logging, os
    LOGGER, HOME = logging.getLogger("mine"), os.path.expanduser("~/x")
    import libreplaces
    print(type(LOGGER).__name__, HOME == os.environ["HOME"] + "/x")
    """,
    installed={
        "libreplaces.py": "import logging, os\nlogging.getLogger = lambda name: 3\n"
        "os.path.expanduser = lambda path: 'replaced'\n"
    },
)
case(
    "part of a lazy standard module",
    "which its __getattr__ does not answer",
    """
    import unittest
    BEFORE = hasattr(unittest, "mock")
    import libmocks
    print(BEFORE)
    """,
    installed={"libmocks.py": "import unittest.mock\n"},
)
case(
    "warning of the script's own text",
    "a library ignores all from its import on",
    """
    import libquiet
    x = 2
    if x is 2:
        print("is")
    """,
    installed=_QUIET,
)
for _name, _environment in (("", {}), (", compiled in each life", {"PYTHONDONTWRITEBYTECODE": "1"})):
    case(
        "warning of the text of a module that runs" + _name,
        "a library ignores all from its import on",
        """
        import libquiet
        x = 2
        if x is 2:
            print("is")
        """,
        installed=_QUIET,
        environment=_environment,
        script="train",
        is_module=True,
    )
for _name, _text in (
    ("shows warnings its own way", "import warnings\nwarnings.showwarning = lambda *a, **k: print('shown')\n"),
    ("has its own text for warnings", "import warnings\nwarnings.formatwarning = lambda *a, **k: 'formatted\\n'\n"),
    ("has warnings logged", "import logging\nlogging.captureWarnings(True)\n"),
):
    case(
        f"library that {_name}",
        "not that of the script's own text",
        """
        import libshows
        x = 2
        if x is 2:
            print("is")
        """,
        installed={"libshows.py": _text},
    )
case(
    "warning that a library has said at its import",
    "it is not said again",
    """
    import libwarns
    libwarns.old()
    """,
    installed={"libwarns.py": "import warnings\ndef old():\n    warnings.warn('old is old', FutureWarning)\n\nold()\n"},
)
case(
    "warning that a library has said at its import, before another that sets filters",
    "it is said again behind that one, no sooner",
    """
    import libwarns
    libwarns.old()
    print(end="")
    import numpy
    libwarns.old()
    """,
    installed={
        "libwarns.py": "import warnings\ndef old():\n    warnings.warn('old is old', FutureWarning)\n\nold()\n",
        "numpy.py": "import warnings\nwarnings.filterwarnings('ignore', message='numpy.dtype')\n",
    },
)
case(
    "warning that a library has said at its import, of an edited script",
    "whose text is looked through anew",
    """
    import libwarns
    print("first")
    """,
    installed={"libwarns.py": "import warnings\ndef old():\n    warnings.warn('old is old', FutureWarning)\n\nold()\n"},
    edits={"train.py": "import libwarns\nlibwarns.old()\n" + _TELL},
)
_REGISTERS = (
    "import importlib.util, os, sys\nspec = importlib.util.find_spec('libheavy')\n"
    "spec.loader = importlib.util.LazyLoader(spec.loader)\nmodule = importlib.util.module_from_spec(spec)\n"
    "sys.modules['libheavy'] = module\nspec.loader.exec_module(module)\n"
)
_HEAVY = {
    "libregisters.py": _REGISTERS,
    "libheavy.py": "import os\nfrom os import getpid\nos.environ['HEAVY'] = 'loaded'\n",
    "libsees.py": "import os\nSEEN = os.environ.get('HEAVY')\n",
    "libloads.py": "import libheavy\nASK = libheavy.getpid\n",
}
case(
    "module that is loaded when it is looked at",
    "importlib.util.LazyLoader",
    """
    import libregisters
    import libsees
    print(libsees.SEEN)
    """,
    installed=_HEAVY,
)
case(
    "module that is loaded when it is looked at, by a library that goes through the environment",
    "whose names are asked for what it has found there",
    """
    import libregisters
    import libsees
    print(libsees.SEEN)
    """,
    installed={
        **_HEAVY,
        "libregisters.py": _REGISTERS + "OPTS = {k: v for k, v in os.environ.items() if k.startswith('LIBREG_')}\n",
    },
)
case(
    "module that is loaded when the script looks at it",
    "not before",
    """
    import libregisters, os
    BEFORE = os.environ.get("HEAVY")
    import libheavy
    GETPID = libheavy.getpid
    print(BEFORE, os.environ["HEAVY"], GETPID is os.getpid)
    """,
    installed=_HEAVY,
)
case(
    "module that is loaded when a later library looks at it",
    "what it has is what it is under Python",
    """
    import libregisters
    import libloads
    import libheavy, os
    print(libheavy.getpid is os.getpid, libloads.ASK.__name__)
    """,
    installed=_HEAVY,
)
case(
    "module whose names are a property",
    "of its class",
    """
    import libregisters
    import libsees
    print(libsees.SEEN)
    """,
    installed={
        **_HEAVY,
        "libregisters.py": "import os, sys, types\nclass Lazy(types.ModuleType):\n    @property\n"
        "    def __dict__(self):\n        os.environ['HEAVY'] = 'loaded'\n        return {}\n\n"
        "sys.modules['libregisters.part'] = Lazy('libregisters.part')\n",
    },
)
case(
    "module that answers itself",
    "functions that it has taken from os are those",
    """
    import libm, os
    print(libm.getpid is os.getpid, libm.getpid.__name__)
    """,
    installed={
        "libm.py": "import sys, types\nfrom os import getpid\nclass M(types.ModuleType):\n"
        "    def __getattribute__(self, name):\n        return super().__getattribute__(name)\n\n"
        "sys.modules[__name__].__class__ = M\n"
    },
)
case(
    "object in the place of a module",
    "functions that it has taken from os are those",
    """
    import libm, os
    print(libm.getpid is os.getpid, libm.getpid.__name__)
    """,
    installed={
        "libm.py": "import os, sys\nclass M:\n    def __init__(self):\n        self.getpid = os.getpid\n\n"
        "sys.modules[__name__] = M()\n"
    },
)
