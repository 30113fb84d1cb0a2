"""Scripts whose imports change what was there before, or what another process would have: what is done ahead of time
must be seen to have been done, and when."""

import textwrap

from sameness.case import case as _case


def case(name, why, text, **more):
    """Adds a script, whose first life ends behind its last line."""
    _case(name, why, textwrap.dedent(text) + "import standin\nstandin.tell()\n", **more)


_LIBA = {
    "liba.py": "class Trainer:\n    NAME = 'plain'\nCOUNT = 1\n\ndef run():\n    return 'plain'\n",
    "libpatch.py": (
        "import liba\nclass Fast:\n    NAME = 'fast'\nliba.Trainer = Fast\nliba.COUNT = 2\nliba.run = lambda: 'fast'\n"
    ),
}

case(
    "name taken before it is replaced",
    "a patching library behind the one that it patches",
    """
    from liba import Trainer
    import libpatch
    import liba
    print(Trainer.NAME, liba.Trainer.NAME)
    """,
    installed=_LIBA,
)
case(
    "value taken before it is replaced",
    "an attribute in an expression",
    """
    import liba
    kept = liba.COUNT
    run = liba.run
    import libpatch
    print(kept, run(), liba.COUNT)
    """,
    installed=_LIBA,
)
case(
    "name taken by a module of the script's before it is replaced",
    "the script's own package takes it",
    """
    from own import run
    import libpatch
    print(run())
    """,
    files={"own.py": "from liba import run\n"},
    installed=_LIBA,
)
case(
    "name of the standard library taken before it is replaced",
    "textwrap.dedent, by a library",
    """
    from textwrap import dedent
    import libtext
    import textwrap
    print(dedent("  a"), textwrap.dedent("  a"))
    """,
    installed={"libtext.py": "import textwrap\ntextwrap.dedent = lambda text: 'patched'\n"},
)
case(
    "container of the standard library looked into between imports",
    "what the later import registers is not in it yet",
    """
    import mimetypes
    KNOWN = len(mimetypes.knownfiles)
    import libkind
    print(KNOWN, len(mimetypes.knownfiles))
    """,
    installed={"libkind.py": "import mimetypes\nmimetypes.knownfiles.append('more')\n"},
)
case(
    "container of a library handed to a function between imports",
    "plugins that register themselves",
    """
    from libnames import NAMES
    BEFORE = sorted(NAMES)
    import libplugin
    print(BEFORE, NAMES)
    """,
    installed={
        "libnames.py": "NAMES = ['plain']\n",
        "libplugin.py": "import libnames\nlibnames.NAMES.append('more')\n",
    },
)
case(
    "name of a lazy package that keeps nothing, taken before it is replaced",
    "a package's __getattr__ that asks a part each time",
    """
    from liblazy import run
    import libother
    print(run())
    """,
    installed={
        "liblazy/__init__.py": (
            "import importlib\ndef __getattr__(name):\n"
            "    return getattr(importlib.import_module('liblazy.part'), name) if name == 'run' else None\n"
        ),
        "liblazy/part.py": "def run():\n    return 'plain'\n",
        "libother.py": "from liblazy import part\npart.run = lambda: 'other'\n",
    },
)
case(
    "name of a lazy package that makes another each time",
    "a class made by a package's __getattr__",
    """
    from libmaker import Made
    import libkeep
    import libmaker
    print(Made is libmaker.Made, libkeep.HERE)
    """,
    installed={
        "libmaker.py": "def __getattr__(name):\n    return type(name, (), {})\n",
        "libkeep.py": "HERE = True\n",
    },
)
_SEEN = "import standin\nstandin.see(__name__)\n"
_DEPRECATED = f"""{_SEEN}
import warnings
CALLS = []
def __getattr__(name):
    if name != "old":
        raise AttributeError(name)
    CALLS.append(name)
    warnings.warn("old is deprecated", FutureWarning, stacklevel=2)
    return 5
"""
case(
    "lazy package that counts who asks",
    "a deprecated name, which warns and is not kept",
    """
    from libdep import old
    import libb
    import libdep
    print(old, libdep.CALLS, libb.X)
    """,
    installed={"libdep.py": _DEPRECATED, "libb.py": "X = 1\n"},
    preloads=("libdep",),
)
case(
    "lazy package that counts who asks for a part",
    "hasattr, by which `from package import part` begins",
    """
    from libdep import part
    import libdep
    print(part.X, libdep.CALLS)
    """,
    installed={
        "libdep/__init__.py": (
            "CALLS = []\nclass Part:\n    X = 1\ndef __getattr__(name):\n    if name != 'part':\n"
            "        raise AttributeError(name)\n    CALLS.append(name)\n    return Part\n"
        ),
        "libdep/part.py": "",
    },
)
case(
    "lazy module of a lazy package",
    "a name that is two looks away",
    """
    import libpk
    X = libpk.sub.value
    import libb
    print(X, libpk.sub.COUNT, libb.X)
    """,
    installed={
        "libpk/__init__.py": (
            "import importlib\ndef __getattr__(name):\n    if name == 'sub':\n"
            "        return importlib.import_module('libpk.sub')\n    raise AttributeError(name)\n"
        ),
        "libpk/sub.py": "COUNT = []\ndef __getattr__(name):\n    COUNT.append(name)\n    return 7\n",
        "libb.py": "X = 1\n",
    },
)


def _between(name, why, look, library):
    """`look` makes SEEN, before the import of a library that changes what it looks at."""
    case(name, why, f"{look}import liblater\nprint(SEEN)\n", installed={"liblater.py": library})


_between(
    "name that a later import adds",
    "hasattr, getattr with a default",
    "import collections\nSEEN = hasattr(collections, 'Callable'), getattr(collections, 'Callable', None)\n",
    "import collections\ncollections.Callable = len\n",
)
_between(
    "name that a later import adds, in an if",
    "a shim for what newer Pythons have no more",
    "import inspect\nif not hasattr(inspect, 'getargspec'):\n    SEEN = 'new'\nelse:\n    SEEN = 'old'\n",
    "import inspect\ninspect.getargspec = inspect.getfullargspec\n",
)
_between(
    "name that a later import adds, in a try",
    "except AttributeError",
    "import inspect\ntry:\n    SEEN = inspect.getargspec\nexcept AttributeError:\n    SEEN = None\n",
    "import inspect\ninspect.getargspec = inspect.getfullargspec\n",
)
_between(
    "name that a later import adds to a class",
    "a method more",
    "import argparse\nSEEN = hasattr(argparse.Namespace, 'to_dict')\n",
    "import argparse\nargparse.Namespace.to_dict = vars\n",
)
_between(
    "builtin that a later import adds",
    "line profilers do so",
    "try:\n    SEEN = profile\nexcept NameError:\n    SEEN = None\n",
    "import builtins\nbuiltins.profile = len\n",
)
_between(
    "module that a later import adds to its package",
    "hasattr before the import of a part",
    "import xml\nSEEN = hasattr(xml, 'sax')\nimport xml.sax.handler\n",
    "",
)
_between(
    "name that comes and is replaced then",
    "absent at first, taken later",
    "import xml\nHAD = hasattr(xml, 'sax')\nimport xml.sax.saxutils\nSEEN = HAD, xml.sax.saxutils.escape.__module__\n",
    "import xml.sax.saxutils\nxml.sax.saxutils.escape = len\n",
)
_between(
    "state of the standard library behind an object",
    "the loggers that there are, the root's level",
    "import logging\nSEEN = sorted(logging.Logger.manager.loggerDict), logging.Logger.root.level\n",
    "import logging\nlogging.getLogger('liblater')\nlogging.basicConfig(level=10)\n",
)
_between(
    "context of decimal numbers",
    "what C keeps",
    "import decimal\nSEEN = decimal.DefaultContext.prec\n",
    "import decimal\ndecimal.DefaultContext.prec = 50\n",
)
_between(
    "attribute of a function",
    "as instrumentation marks what it has patched",
    "import json\nSEEN = getattr(json.dumps, 'patched', False), json.loads.__doc__[:9]\n",
    "import json\njson.dumps.patched = True\njson.loads.__doc__ = 'other text'\n",
)
_between(
    "container in a container",
    "schemes of sysconfig",
    "import sysconfig\nSEEN = len(sysconfig._INSTALL_SCHEMES['posix_prefix'])\n",
    "import sysconfig\nsysconfig._INSTALL_SCHEMES['posix_prefix']['more'] = 'x'\n",
)
_between(
    "container of another kind",
    "a dictionary that holds its values weakly",
    "import logging\nSEEN = len(logging._handlers)\n",
    "import logging\nKEPT = logging.NullHandler()\nKEPT.set_name('liblater')\n",
)
_between(
    "home folder by a path's method",
    "a library sets HOME",
    "from pathlib import Path\nSEEN = Path('~/cache').expanduser().parts[1:]\n",
    "import os\nos.environ['HOME'] = '/elsewhere'\n",
)
_between(
    "link that a later import makes",
    "where paths lead",
    "import os\nfrom pathlib import Path\n"
    "SEEN = os.path.basename(os.path.realpath('link')), Path('link').resolve().name\n",
    "import os\nif not os.path.islink('link'):\n    os.symlink('target', 'link')\n",
)
case(
    "usual looks between imports",
    "they leave what follows warm",
    """
    import collections
    import enum
    import logging
    import os
    import re
    import signal
    import sys
    from pathlib import Path
    from typing import Optional
    ROOT = Path(__file__).resolve().parent
    HERE = os.path.dirname(os.path.realpath(__file__)), (Path(__file__).parent / "..").resolve()
    IS_LINUX = sys.platform == "linux"
    MINOR = sys.version_info.minor, sys.version_info[0], sys.flags.optimize, sys.maxsize, sys.implementation.name
    POINT = collections.namedtuple("Point", "x y")
    X = POINT.x
    NUMBER = signal.SIGTERM.value, signal.Signals.SIGINT.name, re.IGNORECASE, len(signal.Signals)
    LEVEL = logging.getLevelName, logging.INFO, getattr(logging, "TRACE", None), logging.Logger.manager
    log = logging.getLogger(__name__)
    MODE = os.environ.get("MODE", "none"), os.environ.get("HOME")
    ARGUMENTS = sys.argv[1:], len(sys.argv)
    KNOWN = logging.Formatter.default_time_format, str.lower, Optional[int]
    import libseen
    print(MINOR[1], NUMBER[:2], MODE[0], ARGUMENTS, IS_LINUX)
    """,
    installed={"libseen.py": _SEEN},
    preloads=("libseen",),
)
case(
    "sys.modules looked at between imports",
    "what will be imported is not there yet",
    """
    import sys
    HERE = "liba" in sys.modules
    import liba
    print(HERE)
    """,
    installed=_LIBA,
)
case(
    "variable taken before a library sets it",
    "os.environ.get between two imports",
    """
    import os
    before = os.environ.get("MODE"), "MODE" in os.environ, os.getenv("MODE", "none")
    import libset
    print(before, os.environ.get("MODE"))
    """,
    installed={"libset.py": "import os\nos.environ['MODE'] = 'set'\n"},
)
case(
    "all variables taken before a library sets one",
    "dict(os.environ) between two imports",
    """
    import os
    before = dict(os.environ)
    import libset
    print(before.get("MODE"), os.environ.get("MODE"))
    """,
    installed={"libset.py": "import os\nos.environ['MODE'] = 'set'\n"},
)
case(
    "logger taken before its class is replaced",
    "logging.setLoggerClass in a library",
    """
    import logging
    log = logging.getLogger("app")
    import liblog
    print(type(log).__name__, type(logging.getLogger("other")).__name__)
    """,
    installed={"liblog.py": "import logging\nclass Other(logging.Logger):\n    pass\nlogging.setLoggerClass(Other)\n"},
)
case(
    "level of a logger taken before it is set",
    "an attribute of what getLogger gives",
    """
    import logging
    level = logging.getLogger("app").level
    import liblog
    print(level, logging.getLogger("app").level)
    """,
    installed={"liblog.py": "import logging\nlogging.getLogger('app').setLevel(10)\n"},
)
case(
    "all names of a module of the standard library",
    "what `from math import *` binds is no builtin any more",
    """
    from libpow import *
    value = pow(2, 3)
    import libseen
    print(value, libseen.MODE)
    """,
    installed={
        "libpow.py": "import os\n\ndef pow(a, b):\n    os.environ['MODE'] = 'pow'\n    return 0\n",
        "libseen.py": "import os\nMODE = os.environ.get('MODE')\n",
    },
)
case(
    "library's generic in an annotation",
    "its __class_getitem__ runs where the function is made",
    """
    import libgeneric
    def f(x: libgeneric.Array[int]):
        pass
    import libseen
    print(libseen.MODE)
    """,
    installed={
        "libgeneric.py": (
            "import os\nclass Array:\n    def __class_getitem__(cls, item):\n"
            "        os.environ['MODE'] = 'generic'\n        return cls\n"
        ),
        "libseen.py": "import os\nMODE = os.environ.get('MODE')\n",
    },
)
case(
    "copy of os.environ",
    "what is set in the copy is set in the process",
    """
    import copy, os
    other = copy.copy(os.environ)
    other["LIB_MODE"] = "copied"
    import sees_c_env
    import standin
    standin.tell("c:LIB_MODE")
    """,
)
case(
    "warning about who imports",
    "stacklevel=2 names the script's line",
    """
    import os
    import libold
    print(libold.__name__)
    """,
    installed={"libold.py": "import warnings\nwarnings.warn('libold is old', DeprecationWarning, stacklevel=2)\n"},
)
case(
    "warning about a module of the script's that imports",
    "stacklevel=2 names that module's line",
    """
    import own
    print(own.libold.__name__)
    """,
    files={"own.py": "\n\nimport libold\n"},
    installed={"libold.py": "import warnings\nwarnings.warn('libold is old', FutureWarning, stacklevel=2)\n"},
)
case(
    "library that takes sys.argv",
    "the script's own list of arguments",
    """
    import libargv
    import sys
    sys.argv.append("--more")
    print(libargv.argv is sys.argv, libargv.argv[1:])
    """,
    args=("--lr", "1"),
    installed={"libargv.py": "from sys import argv\n"},
)
case(
    "library that reads sys.orig_argv",
    "the interpreter's own list",
    """
    import liborig
    print(liborig.KEPT[-2:])
    """,
    args=("--lr", "1"),
    installed={"liborig.py": "import sys\nKEPT = list(getattr(sys, 'orig_argv', ['none'] * 2))\n"},
)
case(
    "library that reads its command line of /proc",
    "another process has another",
    """
    import libproc
    print(libproc.KEPT)
    """,
    args=("--lr", "1"),
    installed={"libproc.py": "KEPT = open('/proc/self/cmdline', 'rb').read().split(b'\\0')[-3:]\n"},
)
case(
    "library that reads all of the environment as a text",
    "repr(os.environ)",
    """
    import librepr
    print(librepr.HAS)
    """,
    installed={"librepr.py": "import os\nHAS = 'LOCAL_RANK' in repr(os.environ)\n"},
)
case(
    "library that asks C by ctypes.pythonapi",
    "a PyDLL has getenv, too",
    """
    import libpy
    print(libpy.RANK)
    """,
    installed={
        "libpy.py": (
            "import ctypes\nget = ctypes.PyDLL(None).getenv\nget.restype = ctypes.c_char_p\nRANK = get(b'RANK')\n"
        )
    },
)
case(
    "library that writes past sys.stdout",
    "sys.stdout.buffer at its import",
    """
    import libbytes
    print("script")
    """,
    installed={
        "libbytes.py": "import sys\nsys.stdout.buffer.write(b'bytes of a library\\n')\nsys.stdout.buffer.flush()\n"
    },
)
case(
    "library that reads a file which changes",
    "between two lives",
    """
    import libfile
    print(libfile.TEXT)
    """,
    files={"cfg.txt": "one"},
    edits={"cfg.txt": "three"},
    installed={"libfile.py": "TEXT = open('cfg.txt').read()\n"},
)
for way in (
    "__loader__.get_data(os.path.abspath('cfg.txt'))",
    "io.open_code(os.path.abspath('cfg.txt')).read()",
    "io.FileIO('cfg.txt').read()",
):
    case(
        f"library that reads a file which changes by {way}",
        "between two lives",
        """
        import libfile
        print(libfile.TEXT)
        """,
        files={"cfg.txt": "one"},
        edits={"cfg.txt": "three"},
        installed={"libfile.py": f"import io, os\nTEXT = {way}\n"},
    )
case(
    "library that has a class of files",
    "io.FileIO is a class while it is watched",
    """
    import libclass
    print(libclass.Own.__mro__[1] is libclass.io.FileIO, libclass.IS_ONE, libclass.File is libclass.io.FileIO)
    """,
    installed={
        "libclass.py": """
        import io
        from io import FileIO as File
        class Own(io.FileIO): pass
        with Own("/dev/null") as own:
            IS_ONE = isinstance(own, io.FileIO) and issubclass(Own, io.FileIO)
        """
    },
)
case(
    "library that looks for a file which comes",
    "between two lives",
    """
    import libfile
    print(libfile.HAS)
    """,
    edits={"cfg.txt": "there"},
    installed={"libfile.py": "import os\nHAS = os.path.exists('cfg.txt')\n"},
)
case(
    "library that lists a folder which changes",
    "between two lives",
    """
    import liblist
    print(liblist.NAMES)
    """,
    files={"confs/a.yaml": "a"},
    edits={"confs/b.yaml": "b"},
    installed={"liblist.py": "import os\nNAMES = sorted(os.listdir('confs'))\n"},
)
case(
    "module of a folder of PYTHONPATH that comes",
    "it stands before the installed one of that name",
    """
    import liba
    print(liba.COUNT)
    """,
    files={"more/other.py": ""},
    edits={"more/liba.py": "COUNT = 'mine'\n"},
    environment={"PYTHONPATH": "more"},
    installed=_LIBA,
)
case(
    "optional module of the script's that comes",
    "between two lives",
    """
    try:
        import local_settings
    except ImportError:
        local_settings = None
    import libseen
    print(libseen.MODE, local_settings is None)
    """,
    edits={"local_settings.py": "import os\nos.environ['MODE'] = 'local'\n"},
    installed={"libseen.py": "import os\nMODE = os.environ.get('MODE')\n"},
)
case(
    "library that looks for a module which comes",
    "importlib.util.find_spec at its import",
    """
    import libfind
    print(libfind.HAS)
    """,
    edits={"plugin_of_lib.py": ""},
    installed={"libfind.py": "import importlib.util\nHAS = importlib.util.find_spec('plugin_of_lib') is not None\n"},
)
case(
    "library that sets the key of multiprocessing",
    "current_process().authkey",
    """
    import libkey
    import multiprocessing
    print(bytes(multiprocessing.current_process().authkey))
    """,
    installed={"libkey.py": "import multiprocessing\nmultiprocessing.current_process().authkey = b'lib'\n"},
)
case(
    "library that keeps its thread's id",
    "threading.get_native_id()",
    """
    import libtid
    import threading
    print(libtid.TID == threading.get_native_id())
    """,
    installed={"libtid.py": "import threading\nTID = threading.get_native_id()\n"},
)
case(
    "sitecustomize that reads a rank's variable",
    "it runs in each rank's own start",
    """
    import sys
    import standin
    print(sys.RANK_AT_START)
    """,
    installed={"sitecustomize.py": "import os, sys\nsys.RANK_AT_START = os.environ.get('LOCAL_RANK')\n"},
)
case(
    "sitecustomize that sets a variable",
    "each rank has it",
    """
    import os
    import standin
    print(os.environ.get("BY_SITE"))
    """,
    installed={"sitecustomize.py": "import os\nos.environ['BY_SITE'] = 'yes'\n"},
)
case(
    "sitecustomize that does nothing of a rank's",
    "it has been done in a spare",
    """
    import sys
    import sees_nothing
    print(sys.BY_SITE)
    """,
    installed={"sitecustomize.py": "import sys\nsys.BY_SITE = 'yes'\n"},
    preloads=["sees_nothing"],
)
case(
    "line of a .pth file that reads a rank's variable",
    "it runs in each rank's own start",
    """
    import sys
    import standin
    print(sys.RANK_AT_START)
    """,
    installed={"ours.pth": "import os, sys; sys.RANK_AT_START = os.environ.get('RANK')\n"},
)
case(
    "filters of warnings before a torch that warns",
    "what lies hidden has said what it would say without them",
    """
    import warnings
    warnings.simplefilter("error" if 0 else "ignore")
    import networkx
    print("quiet")
    """,
    installed={
        "networkx.py": "import warnings\nwarnings.warn('networkx is old', FutureWarning)\n",
        "torch/__init__.py": "import networkx\n",
    },
)
case(
    "functions of files that classes and defaults keep",
    "what is watched during imports is what it is behind them",
    """
    import libkeeps
    import os, pathlib, shutil
    print(pathlib.Path("cfg.txt").exists(), pathlib.Path("cfg.txt").read_text(), libkeeps.Files().text("cfg.txt"))
    print(shutil.rmtree.avoids_symlink_attacks, os.stat in os.supports_follow_symlinks, os.open in os.supports_dir_fd)
    print(libkeeps.Files.open is open, libkeeps.later("/proc/self/comm") == libkeeps.later("/proc/self/comm"))
    print([entry.name for entry in pathlib.Path("confs").iterdir()], list(pathlib.Path("confs").glob("*.yaml")))
    """,
    files={"cfg.txt": "one", "confs/a.yaml": "a"},
    installed={
        "libkeeps.py": (
            "import os, pathlib, shutil, tempfile\nclass Files:\n    open, stat = open, os.stat\n"
            "    def text(self, path):\n        return self.stat(path).st_size, self.open(path).read()\n\n"
            "def later(path, _open=open):\n    return _open(path).read()\n"
            "import standin\nstandin.see(__name__)\n"
        )
    },
    preloads=["libkeeps"],
)
case(
    "library that replaces a function of files",
    "its own stays where it has put it",
    """
    import libopens
    import os
    print(os.stat.__name__, open.__name__)
    """,
    installed={
        "libopens.py": (
            "import builtins, os\n_open, _stat = builtins.open, os.stat\n"
            "def mine(*args, **named):\n    return _open(*args, **named)\nbuiltins.open = mine\n"
            "def stat(*args, **named):\n    return _stat(*args, **named)\nos.stat = stat\n"
        )
    },
)
case(
    "module that a library replaces in sys.modules",
    "the script has the one that it has imported before",
    """
    import wave
    import libwave
    import sys
    print(wave is sys.modules["wave"], hasattr(wave, "MINE"))
    """,
    installed={"libwave.py": "import sys, types\nnew = sys.modules['wave'] = types.ModuleType('wave')\nnew.MINE = 1\n"},
)
case(
    "method taken before it is replaced",
    "a patch of a class of the standard library",
    """
    import json
    old = json.JSONEncoder.default
    import libmethod
    print(old is json.JSONEncoder.default)
    """,
    installed={"libmethod.py": "import json\njson.JSONEncoder.default = lambda self, value: 'patched'\n"},
)
case(
    "logger that the script has silenced",
    "what a library logs at its import is not said",
    """
    import logging
    log = logging.getLogger("libsays")
    log.disabled = True
    import libsays
    """,
    installed={"libsays.py": "import logging\nlogging.getLogger('libsays').warning('said')\n"},
)
case(
    "file that a library makes",
    "looked for before its import",
    """
    import os
    first = not os.path.exists("made.txt")
    import libmakes
    print(first)
    os.unlink("made.txt")
    """,
    installed={"libmakes.py": "open('made.txt', 'w').close()\n"},
)
