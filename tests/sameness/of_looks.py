"""What a script has looked at between two imports, and the later one changes."""

import textwrap

from sameness.case import case as _case

_TELL = "import standin\nstandin.tell()\n"


def case(name, why, text, **more):
    _case(name, why, textwrap.dedent(text) + _TELL, **more)


_CHANGES = {
    "liba.py": "class Odd:\n    @property\n    def value(self):\n"
    "        import os\n        os.environ['BY_LOOK'] = 'yes'\n        return 1\n\nCOUNT = 1\nOBJ = Odd()\n"
    "if COUNT:\n    OBJ2 = OBJ\n",
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
    "module that a class has",
    "by a name of its own",
    """
    import liba
    class Cfg:
        lib = liba
    BEFORE = Cfg.lib.COUNT
    import libb
    print(BEFORE)
    """,
    installed=_CHANGES,
)
for _made in (
    'dict(lib=liba)["lib"].COUNT',
    '[liba for _ in "a"][0].COUNT',
    "types.SimpleNamespace(lib=liba).lib.COUNT",
    "functools.partial(print, liba).args[0].COUNT",
    "typing.cast(object, liba).COUNT",
):
    case(
        f"module that is only in a value, {_made}",
        "a name of it is nowhere",
        f"""
        import functools, types, typing
        import liba
        BEFORE = {_made}
        import libb
        print(BEFORE)
        """,
        installed=_CHANGES,
    )
for _made in (
    "types.SimpleNamespace(lib=liba)\nBEFORE = its.lib.COUNT",
    'dict()\nits["lib"] = liba\nBEFORE = its["lib"].COUNT',
    "list()\nits.append(liba)\nBEFORE = its[0].COUNT",
):
    case(
        f"module that is in a value with a name, {_made.split(chr(10))[0]}",
        "a name of it is nowhere",
        f"import liba, types\nits = {_made}\nimport libb\nprint(BEFORE)\n",
        installed=_CHANGES,
    )
case(
    "module in a partial function by its name",
    "which keeps its arguments",
    """
    import functools, liba
    part = functools.partial(print, liba)
    BEFORE = part.args[0].COUNT
    import libb
    print(BEFORE)
    """,
    installed=_CHANGES,
)
case(
    "module of the script's own by another name",
    "what it has imported is taken by that name",
    """
    import mine
    o = mine
    BEFORE, VALUE = o.liba.COUNT, o.liba.OBJ.value
    import libb
    print(BEFORE, libb.SEEN)
    """,
    files={"mine.py": "import liba\n"},
    installed=_CHANGES,
)
case(
    "module of the script's own that is another in a branch",
    "what it has imported is taken behind it",
    """
    import mine, sys
    if len(sys.argv) > 5:
        mine = None
    BEFORE = mine.liba.COUNT
    import libb
    print(BEFORE)
    """,
    files={"mine.py": "import liba\n"},
    installed=_CHANGES,
)
case(
    "modules of the script's own that are gone through",
    "a name of one is nowhere",
    """
    import mine
    VALUES = [m.liba.OBJ.value for m in (mine,)]
    import libb
    print(libb.SEEN)
    """,
    files={"mine.py": "import liba\n"},
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
        from liba import OBJ2
    except ImportError:
        OBJ2 = None
    VALUE = OBJ2.value
    import libb
    print(libb.SEEN, VALUE)
    """,
    installed=_CHANGES,
)
case(
    "library's value that is another in a branch",
    "which is not taken",
    """
    import sys
    from liba import OBJ
    if len(sys.argv) > 5:
        OBJ = None
    VALUE = OBJ.value
    import libb
    print(libb.SEEN, VALUE)
    """,
    installed=_CHANGES,
)
case(
    "module that is another in a branch",
    "what it has is taken behind it",
    """
    import sys, liba
    if len(sys.argv) > 5:
        liba = None
    BEFORE = liba.COUNT
    import libb
    print(BEFORE)
    """,
    installed=_CHANGES,
)
case(
    "library's value that is another in a handler",
    "of a variable that may not be there",
    """
    import os
    from liba import OBJ
    try:
        N = os.environ["N"]
    except KeyError:
        N, OBJ = None, None
    VALUE = OBJ.value
    import libb
    print(libb.SEEN, VALUE)
    """,
    installed=_CHANGES,
    environment={"N": "1"},
)
case(
    "logger that is another in a branch",
    "its level is looked at behind it",
    """
    import logging, sys
    log = logging.getLogger("a")
    if len(sys.argv) > 5:
        log = None
    BEFORE = log.level
    import liblevel
    print(BEFORE)
    """,
    installed={"liblevel.py": "import logging\nlogging.getLogger('a').setLevel(7)\n"},
)
case(
    "class of the script's own that is another in a branch",
    "a member of it is asked by its property",
    """
    import enum, os, sys
    class Color(enum.Enum):
        RED = 1
        @property
        def prop(self):
            os.environ["BY_LOOK"] = "yes"
            return 2
    if len(sys.argv) > 5:
        Color = None
    VALUE = Color.RED.prop
    import libb
    print(libb.SEEN, VALUE)
    """,
    installed=_CHANGES,
)
case(
    "class of the script's own in a branch",
    "a member of it is asked by its property",
    """
    import enum, os, sys
    if sys.argv:
        class Color(enum.Enum):
            RED = 1
            @property
            def prop(self):
                os.environ["BY_LOOK"] = "yes"
                return 2
    VALUE = Color.RED.prop
    import libb
    print(libb.SEEN, VALUE)
    """,
    installed=_CHANGES,
)
case(
    "module that a class binds outside",
    "by a global statement",
    """
    import liba
    class C:
        global other
        other = liba
    BEFORE = other.COUNT
    import libb
    print(BEFORE)
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
    "function of a module that its package has hidden",
    "an import asks the module all the same",
    """
    from libpkg.run import run
    import libpatch
    print(run())
    """,
    installed={
        "libpkg/__init__.py": "from libpkg.run import run\n",
        "libpkg/run.py": "def run():\n    return 'plain'\n",
        "libpatch.py": "import sys\nsys.modules['libpkg.run'].run = lambda: 'fast'\n",
    },
)
case(
    "part of a package that has put a lazy module into its place",
    "an import asks the part, which is imported ahead, and what comes behind it",
    """
    from libself.utils import helper
    import libbehind
    print(helper())
    """,
    installed={
        "libself/__init__.py": """
            import sys, types
            from libself import utils
            class Lazy(types.ModuleType):
                def __getattr__(self, name):
                    raise AttributeError(name)
            new = Lazy(__name__)
            new.__path__, new.__spec__ = __path__, __spec__
            sys.modules[__name__] = new
            """,
        "libself/utils.py": "def helper():\n    return 'helps'\n",
        "libbehind.py": "import standin\nstandin.see(__name__)\n",
    },
    preloads=("libbehind",),
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
    "name that a standard module makes when it is asked for it",
    "a library takes it, too, which is imported ahead all the same",
    """
    from unittest import IsolatedAsyncioTestCase
    import libtests
    print(libtests.IsolatedAsyncioTestCase is IsolatedAsyncioTestCase)
    """,
    installed={"libtests.py": "import standin\nstandin.see(__name__)\nfrom unittest import IsolatedAsyncioTestCase\n"},
    preloads=("libtests",),
)
case(
    "name that typing makes when it is asked for it",
    "from Python 3.13 on",
    """
    from typing import ContextManager
    import libtypes
    print(libtypes.ContextManager is ContextManager)
    """,
    installed={"libtypes.py": "import standin\nstandin.see(__name__)\nfrom typing import ContextManager\n"},
    preloads=("libtypes",),
)
case(
    "name that a standard module would make, and does not",
    "a library puts it there",
    """
    import unittest
    BEFORE = hasattr(unittest, "Added")
    import libadds
    print(BEFORE)
    """,
    installed={"libadds.py": "import unittest\nunittest.Added = 1\n"},
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
case(
    "socket that nobody has closed",
    "Python says so when it takes all apart, by the filters that it has looked at last",
    """
    import makes_socket
    """,
    environment={"PYTHONWARNINGS": "default"},
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
