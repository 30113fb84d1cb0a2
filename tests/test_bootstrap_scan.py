"""What the static scan finds in a text. It reads; it runs nothing."""

import os
import sys
import textwrap
import types

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "python"))

from phalanx._bootstrap import places
from phalanx._bootstrap.scanning import scan, takes, texts, variables
from phalanx._bootstrap.watching import taken


def scanned(tmp_path, text, kind="script", script="script.py"):
    if text is not None:
        (tmp_path / "script.py").write_text(textwrap.dedent(text))
    return scan.scan(kind, script, str(tmp_path))


# What each text imports: its prefix; what stands behind usual things only; what stands behind others.
CASES = {
    "plain": (
        "import json, wave.sub as w\nfrom email import message, no_such_thing\n",
        ["json wave.sub email email.message", "", ""],
    ),
    "docstring and constants": (
        '"""Doc."""\nA = 1\nB = [A, {2: "x"}]\nimport json\nC: int = -A\nimport wave\n',
        ["json wave", "", ""],
    ),
    "definitions": (
        "def f(): configure()\nclass C:\n    x = 1\n    def g(self): pass\nimport json\n",
        ["json", "", ""],
    ),
    "a value made": (
        "import logging, re\nlog = logging.getLogger(__name__)\nP = re.compile('x')\nimport json",
        ["logging re json", "", ""],
    ),
    "a try": (
        "try:\n    import json\nexcept ImportError:\n    import wave\n"
        "else:\n    import bz2\nfinally:\n    import lzma\n",
        ["json bz2 lzma", "", ""],
    ),
    "a try in vain": ("try:\n    import no_such\nexcept ImportError:\n    import wave\n", ["wave", "", ""]),
    "a known if": (
        "import sys\nif sys.version_info >= (3, 7):\n    import cmd\nelse:\n    import wave\n",
        ["cmd", "", ""],
    ),
    "an unknown if": ("import os\nif os.environ.get('X'):\n    import cmd\nimport wave\n", ["os", "", "cmd wave"]),
    "a with": ("import json\nwith x:\n    import code\nimport csv\n", ["json", "", "code csv"]),
    "a loop": ("for i in y:\n    import code\nimport csv\n", ["", "", "code csv"]),
    "a call": ("import json\nconfigure()\nimport csv\n", ["json", "", "csv"]),
    "a call of a function of the text": (
        "import json\ndef f():\n    import csv\n    g()\nf()\nimport wave\n",
        ["json", "csv", "wave"],
    ),
    "a decorator of nobody's": ("import json\n@register\ndef f(): pass\nimport csv\n", ["json", "", "csv"]),
    "a base that is called": ("import json\nclass C(make()): pass\nimport csv\n", ["json", "", "csv"]),
    "a default that is called": ("import json\ndef f(x=make()): pass\nimport csv\n", ["json", "", "csv"]),
    "a module's attribute": ("import json\njson.dumps = None\nimport csv\n", ["json", "", "csv"]),
    "a function handed over": ("import json\nx = sorted([1], key=configure)\nimport csv\n", ["json", "", "csv"]),
    "arguments": (
        "import argparse\ndef main():\n    p = argparse.ArgumentParser()\n    p.add_argument('--x', type=int)\n"
        "    args = p.parse_args()\n    import csv\nif __name__ == '__main__':\n    main()\n",
        ["argparse", "csv", ""],
    ),
    "main guard": ("if __name__ == '__main__':\n    import json\n", ["json", "", ""]),
    "functions": ("def f():\n    import json\nasync def g():\n    import wave\n", ["", "", ""]),
    "type checking": ("if TYPE_CHECKING:\n    import json\nelse:\n    import wave\n", ["wave", "", ""]),
    "star": ("from json import *\n", ["json", "", ""]),
    "relative without package": ("from . import x\nfrom .. import y\n", ["", "", ""]),
    "twice": ("import json\nimport json\nfrom json import decoder", ["json json.decoder", "", ""]),
    "what is not found": ("import json, no_such_module, csv\n", ["json", "", "csv"]),
    "syntax error": ("import json\nx = = 1", ["", "", ""]),
    "nothing": ("", ["", "", ""]),
    "a try whose handler acts": (
        "import os\ntry:\n    os.environ['A']\nexcept KeyError:\n    os.environ['A'] = 'b'\nimport wave",
        ["os", "", "wave"],
    ),
    "a try whose handler imports": (
        "import sys\ntry:\n    a = sys.argv[1]\nexcept IndexError:\n    import cmd\nimport wave",
        ["", "", "cmd wave"],
    ),
    "a try that leaves out": (
        "import sys\ntry:\n    a = sys.argv[1]\n    import cmd\nexcept IndexError:\n    pass\nimport wave",
        ["", "", "cmd wave"],
    ),
    "a try that binds": (
        "import os\ntry:\n    a = os.environ['A']\nexcept KeyError:\n    a = None\nimport wave",
        ["os wave", "", ""],
    ),
    "a try for a name": (
        "try:\n    from typing import NotThere\nexcept ImportError:\n    import cmd\nimport wave",
        ["typing", "", "cmd wave"],
    ),
    "a try for a name that is there": (
        "try:\n    from typing import List\nexcept ImportError:\n    import cmd\nimport wave",
        ["typing wave", "", ""],
    ),
    "a try up to what is missing": (
        "try:\n    import cmd, no_such, lzma\n    import code\nexcept ImportError:\n    import wave\nimport csv",
        ["cmd wave csv", "", ""],
    ),
    "a try for a part that is missing": (
        "try:\n    from email.no_such import x\nexcept ImportError:\n    pass\nimport csv",
        ["email csv", "", ""],
    ),
    "a try with two handlers": (
        "try:\n    import no_such\nexcept KeyError:\n    import code\n"
        "except (OSError, ImportError):\n    import wave\nexcept Exception:\n    import cmd\n",
        ["wave", "", ""],
    ),
    "a try that does not catch it": (
        "try:\n    import no_such\nexcept KeyError:\n    import code\nimport wave",
        ["", "", "code wave"],
    ),
    "a look that may be left out": (
        "import pytest\nif FAST:\n    part = pytest.mark\nimport wave",
        ["pytest", "", "wave"],
    ),
    "a look of a test": (
        "import pytest\nif pytest.mark is None:\n    part = 1\nimport wave",
        ["pytest pytest:mark wave", "", ""],
    ),
    "a look in a handler": (
        "import os, pytest\ntry:\n    part = os.environ['A']\nexcept KeyError:\n    part = pytest.mark\nimport wave",
        ["os pytest", "", "wave"],
    ),
    "a decorator that is made": (
        "import functools\n@functools.partial(configure)\ndef f(): pass\nimport wave",
        ["functools", "", "wave"],
    ),
    "a setter of no property": (
        "class A:\n    def a(self): pass\n    @a.setter\n    def b(self): pass\nimport wave",
        ["", "", "wave"],
    ),
    "a lazy package of the standard library": (
        "from concurrent.futures import Executor\nimport concurrent.futures as f\nx = f.ThreadPoolExecutor",
        ["concurrent.futures concurrent.futures:Executor concurrent.futures:ThreadPoolExecutor", "", ""],
    ),
    "a base that is told": (
        "class A:\n    def __init_subclass__(cls): configure()\nclass B(A): pass\nimport wave",
        ["", "", "wave"],
    ),
    "a base whose base is told": (
        "class A:\n    def __init_subclass__(cls): configure()\nimport wave\nclass B(A): pass\n"
        "class C(B): pass\nimport cmd",
        ["wave", "", "cmd"],
    ),
    "a metaclass of the text": (
        "class M(type):\n    def __new__(*a): configure()\nimport wave\nclass A(metaclass=M): pass\nimport cmd",
        ["wave", "", "cmd"],
    ),
    "a generic base of a library": (
        "import pytest\nclass A(pytest.Item[int]): pass\nimport cmd",
        ["pytest", "", "cmd"],
    ),
    "an enumeration that makes its members": (
        "import enum\nclass A(enum.Enum):\n    X = 1\n    def __init__(self, x): configure()\nimport cmd",
        ["enum", "", "cmd"],
    ),
    "harmless bases": (
        "import abc, enum, typing, collections\nfrom typing import Generic, TypeVar\nT = TypeVar('T')\n"
        "class A(Generic[T], metaclass=abc.ABCMeta): pass\nclass B(A[int]): pass\nclass C(B, Exception): pass\n"
        "class D(enum.Enum):\n    X = 1\nclass E(collections.namedtuple('E', 'x y')): pass\n"
        "class F(typing.TypedDict, total=False):\n    x: int\nimport cmd",
        ["abc enum typing collections cmd", "", ""],
    ),
    "a function that is one of two": (
        "if FAST:\n    def f(): pass\nelse:\n    def f(): print(1)\nf()\nimport wave",
        ["", "", "wave"],
    ),
    "modules that are there": ("import sys\nx = 'a' in sys.modules\nimport wave", ["", "wave", ""]),
    "modules that are there, by name": ("from sys import modules\nx = 'a' in modules\nimport wave", ["", "wave", ""]),
    "the state of a logger": ("import logging\nx = logging.getLogger('a').level\nimport wave", ["logging", "wave", ""]),
    "the state of a named logger": (
        "import logging\nlog = logging.getLogger('a')\nx = log.level\nimport wave",
        ["logging", "wave", ""],
    ),
    "a logger": ("import logging\nlog = logging.getLogger('a')\nimport wave", ["logging wave", "", ""]),
    "all of a module of the standard library": ("from math import *\nimport wave", ["math", "", "wave"]),
    "a copy of the environment": ("import copy, os\nx = copy.copy(os.environ)\nimport torch", ["copy os", "", "torch"]),
    "a function for each match": (
        "import re\ndef f(match): configure()\nre.sub('a', f, 'a')\nimport torch",
        ["re", "", "torch"],
    ),
    "a file that an import may make": ("import os\nx = os.path.exists('a')\nimport wave", ["os", "wave", ""]),
    "a path that an import may make": (
        "from pathlib import Path\nx = Path('a').exists()\nimport wave",
        ["pathlib", "wave", ""],
    ),
    "a logger that is changed": (
        "import logging\nlog = logging.getLogger('a')\nlog.disabled = True\nimport wave",
        ["logging", "", "wave"],
    ),
    "a text for each match": ("import re\nre.sub('a', 'b', 'a')\nimport torch", ["re", "torch", ""]),
    "relative in a script that says its package": (
        "__package__ = 'own'\nimport cmd\nfrom .part import x\nimport wave",
        ["cmd", "", "wave"],
    ),
    "a try for what is relative": (
        "try:\n    from .part import x\nexcept ImportError:\n    import cmd\nimport wave",
        ["cmd wave", "", ""],
    ),
    "a try for what is relative, of which another error comes": (
        "try:\n    from .part import x\nexcept ModuleNotFoundError:\n    import cmd\nimport wave",
        ["", "", "cmd wave"],
    ),
    "a try for what is relative, in a script that says its package": (
        "__package__ = 'own'\ntry:\n    from .part import x\nexcept ImportError:\n    import cmd\nimport wave",
        ["", "", "cmd wave"],
    ),
    "a name by which others are imported": ("__path__ = ['/x']\nimport wave", ["", "", "wave"]),
    "type checking that is switched on": ("TYPE_CHECKING = 1\nif TYPE_CHECKING:\n    import cmd", ["", "", "cmd"]),
    "type checking that is switched off": (
        "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    import cmd\nimport wave",
        ["wave", "", ""],
    ),
    "a function that is another by now": (
        "from pytest import fail\ndef f(): pass\nf = fail\nf()\nimport torch",
        ["pytest pytest:fail", "", "torch"],
    ),
    "a function of another's": (
        "def f():\n    def g(): pass\ndef g(): configure()\nf()\ng()\nimport torch",
        ["", "", "torch"],
    ),
    "a builtin that a function has declared": (
        "def f():\n    global print\n    print = configure\nf()\nprint()\nimport torch",
        ["", "", "torch"],
    ),
    "a value that a function was given": (
        "import os\ndef f(print): print()\nf(os.abort)\nimport torch",
        ["os", "", "torch"],
    ),
    "names of a function's own": (
        "import argparse, os\ndef f(argv=None):\n    print = os.getcwd\n    p = argparse.ArgumentParser()\n"
        "    return p.parse_args(argv)\nargs = f()\nprint(args.x)\nimport torch",
        ["argparse os", "torch", ""],
    ),
    "a function that gives a library's value": (
        "import pytest\ndef f(): return pytest.mark\nx = f()\ny = x.slow\nimport torch",
        ["pytest", "", "torch"],
    ),
    "a name of a comprehension": ("x = [print(1) for print in [configure]]\nimport torch", ["", "", "torch"]),
    "a name of a lambda": ("x = sorted([1], key=lambda len: len(1))\nimport torch", ["", "", "torch"]),
    "a key that is called": ("import os\nd = dict()\nd[os.environ.pop('A')] = 1\nimport wave", ["os", "", "wave"]),
    "an end": ("raise SystemExit(3)\nimport json", ["", "", "json"]),
}


@pytest.mark.parametrize("name", CASES)
def test_imports(tmp_path, name):
    text, expected = CASES[name]
    found = scanned(tmp_path, text)
    assert [found.prefix, found.usual, found.later] == [names.split() for names in expected]


@pytest.mark.parametrize("clock", "monotonic monotonic_ns perf_counter perf_counter_ns thread_time time_ns".split())
def test_a_look_at_a_clock_is_usual(tmp_path, clock):
    assert scanned(tmp_path, f"import time\nBEGAN = time.{clock}()\nimport csv\n").usual == ["csv"]


# What is taken behind two imports, and before a third.
TAKEN = {
    "x = wave.Error": ["wave.Error"],
    "from wave import Error": ["wave.Error"],
    "x = [wave.Error, cmd.Cmd.prompt]": ["wave.Error", "cmd.Cmd.prompt", "cmd.Cmd"],
    "def f(a=wave.Error): return cmd.Cmd": ["wave.Error"],
    "class A:\n    x = wave.Error": ["wave.Error"],
    "import os\nx = os.environ.get('A')": ["os.environ:A"],
    "import os\nx = os.getenv('A', '0'), 'B' in os.environ": ["os.environ:A", "os.environ:B"],
    "import os\nx = os.environ.get('A', wave.Error)": ["os.environ:", "wave.Error"],
    "import os\nx = os.path.expanduser('~')": ["os.path.expanduser", "os.environ:"],
    "from pathlib import Path\nx = Path('~').expanduser()": ["os.environ:", "pathlib.Path"],
    "x = getattr(wave, 'patched', None), hasattr(cmd, 'Cmd')": ["wave.patched", "cmd.Cmd"],
    "x = print": ["builtins.print"],
    "x = profile": ["builtins.profile"],
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    x = wave.Error": ["typing.TYPE_CHECKING"],
    "from __future__ import annotations\ndef f(a: wave.Error): pass\nclass A:\n    x: wave.Error = None": [],
    "from os import environ\nx = environ['A']": ["os.environ", "os.environ:A"],
    "import os\nx = dict(os.environ)": ["os.environ:"],
    "import os\nx = os.environ.get('A' + str(1))": ["os.environ:"],
    "import logging\nlog = logging.getLogger('a')": [
        "logging.getLogger",
        "logging._loggerClass",
        "logging.Logger.manager.loggerClass",
    ],
    "import collections\nx = collections.namedtuple('A', 'a')\ny = x.a": ["collections.namedtuple"],
}


@pytest.mark.parametrize("text", TAKEN)
def test_what_is_taken_between_imports(tmp_path, text):
    found = scanned(tmp_path, f"import wave, cmd\n{text}\nimport sndhdr\n")
    called = {f"builtins.{name}" for name in ("dict", "getattr", "hasattr", "str")} | {
        "os.path",
        "__future__.annotations",
    }
    at_of = {name.partition(takes.CONTENTS)[0]: at for name, at in found.taken.items()}
    taken = {name: at for name, at in at_of.items() if "." in name and name not in called}
    assert sorted(taken) == sorted(TAKEN[text])
    assert {at for places in taken.values() for at in places} <= {2, 3}, "steps before it"
    assert 1 in found.taken["wave"] and 2 in found.taken["cmd"], "what is bound by an import"


@pytest.mark.parametrize(
    ("name", "comes", "changes"),
    [("part", types.ModuleType("lazy.part"), None), ("part.X", types.ModuleType("lazy.part"), None)]
    + [("part", 1, "lazy.part")],
)
def test_a_part_of_a_lazy_module_that_a_later_import_brings(monkeypatch, name, comes, changes):
    """As numpy.random: the script's own look would have brought it, but not a value of another kind."""
    lazy = types.ModuleType("lazy")
    lazy.__getattr__ = None
    monkeypatch.setitem(sys.modules, "lazy", lazy)
    looked = taken.Taken({f"lazy.{name}{takes.CONTENTS}": [0]})
    looked.step_begins()
    vars(comes).update(X=1) if changes is None else None
    lazy.part = comes
    assert (looked.unclear, looked.changed()) == (None, changes)


@pytest.mark.parametrize("now", [1, None])
def test_a_value_that_is_none_is_watched(monkeypatch, now):
    """Also by Python before 3.10, which has no sys.orig_argv."""
    monkeypatch.delattr(sys, "orig_argv", raising=False)
    library = types.ModuleType("library")
    library.VALUE = None
    monkeypatch.setitem(sys.modules, "library", library)
    looked = taken.Taken({f"library.VALUE{takes.CONTENTS}": [0]})
    looked.step_begins()
    library.VALUE = now
    assert looked.changed() == ("library.VALUE" if now else None)


def test_what_an_import_takes_is_asked_of_the_module_that_it_names(tmp_path):
    """The package may have something else by the module's name."""
    found = scanned(tmp_path, "from email.message import Message\nfrom wave import Error\nimport email\nx = Message\n")
    assert {"email.message:Message", f"email.message:Message{takes.CONTENTS}", "wave.Error"} <= set(found.taken)


def test_values_of_libraries_are_no_modules_that_may_come(tmp_path):
    """Each name that may come is looked for at every start."""
    text = "import os, torch, torch.nn as nn\nACTIVATIONS = {'relu': nn.ReLU}\n"
    text += "DTYPE = torch.float16\nN, E = os.name, [os.sep]\n"
    found = scanned(tmp_path, text + "try:\n    import no_such\nexcept ImportError:\n    import wave\n")
    assert (found.absent, found.prefix[-1]) == ({"no_such"}, "wave")


# What may run code of a library's value, and what does not.
OF_LIBRARIES = {
    "x = pytest.mark.slow": False,
    "x = mark.slow": False,
    "x = mark['slow']": False,
    "x = pytest.mark[0]": False,
    "x = len(mark)": False,
    "x = str(pytest.mark)": False,
    "x = f'{mark}'": False,
    "x = mark == 1": False,
    "x = 1 + mark": False,
    "x = -mark": False,
    "x = {mark: 1}": False,
    "x = [*mark]": False,
    "x = not mark": False,
    "x = 1 if mark else 2": False,
    "x = [a for a in mark]": False,
    "a, b = mark": False,
    "n = 1\nn += mark": False,
    "if mark:\n    pass": False,
    "y = mark\nx = y['slow']": False,
    "y = [mark]\nx = y[0]['slow']": False,
    "x = getattr(mark, 'slow')": False,
    "x: int = mark.slow": False,
    "a, b = mark, 1\nx = a.slow": False,
    "a, b = 1, mark\na, b = b, a\nx = a.slow": False,
    "a = b = mark\nx = b.slow": False,
    "a, b = mark, 1\nx = f'{b}'": True,
    "if FAST:\n    mark = 1\nx = mark.slow": False,
    "if FAST:\n    mark = 1\nx = mark is None": True,
    "if FAST:\n    from pytest import skip as mark\nx = mark.slow": False,
    "x = mark": True,
    "x = [mark, {'a': pytest.mark}]": True,
    "x = mark is None": True,
    "x = pytest.__version__ + '1'": True,
    "x = getattr(pytest, 'mark')": True,
    "import functools\nx = functools.partial(mark, 1)": True,
    "import typing\nx: typing.Optional[pytest.Item] = None": True,
    "def f(x: mark | None, y: pytest.Item = None) -> pytest.Item: pass": True,
    "def f(x: mark[int]): pass": False,
    "import _pytest.nodes\nx = _pytest.nodes.Item": True,
}


@pytest.mark.parametrize("text", OF_LIBRARIES)
def test_what_runs_code_of_a_librarys_value(tmp_path, text):
    found = scanned(tmp_path, f"import pytest\nfrom pytest import mark\n{text}\nimport wave\n")
    assert found.prefix[0] == "pytest" and ("wave" in found.prefix) == OF_LIBRARIES[text], found.ends


# What is done with classes of the script's own, and whether that runs no code of theirs.
OF_CLASSES = {
    "x = P.A.dtype": False,
    "x = P.A": True,
    "x = P.A.value, P.A.name": True,
    "y = P.A\nx = y.dtype": False,
    "y = [P.A]\nx = y[0].dtype": False,
    "x = [P.A][0].dtype": False,
    "x = list(P)[0].dtype": False,
    "Q = P\nx = Q.A.dtype": False,
    "x = [p.dtype for p in P]": False,
    "x = [p.dtype for p in (P.A, P.B)]": False,
    "x = getattr(P.A, 'dtype')": False,
    "x = getattr(P.A, 'dtype', None)": False,
    "y = P.A\nx = getattr(y, 'dtype', None)": False,
    "a, b = P\nx = a.dtype": False,
    "d = dict()\nd['a'] = P.A\nx = d['a'].dtype": False,
    "def f(p=P.A) -> P: return p.dtype": True,
    "class C:\n    p: P = P.A": True,
    "class C:\n    p = P.A\nx = C.p.dtype": False,
    "class C:\n    class D(enum.Enum):\n        A = 1\n        __str__ = print\ny = f'{C.D.A}'": False,
    "x = f'{S.A}'": False,
    "x = str(S.A)": False,
    "x = f'{S.A.value}'": True,
    "x: typing.Optional[S] = None": True,
    "class C:\n    s: S = S.A": True,
    "x = f'{M.A}', M.A.name, M['A'], M.A == M.B, [m.value for m in M], list(M)": True,
    "class E(Made, enum.Enum):\n    A = 1": False,
    "class E(Data, enum.Enum):\n    A = 1": False,
    "class E(Said, enum.Enum):\n    A = 1": True,
    "class E(Said, enum.Enum):\n    A = 1\nx = f'{E.A}'": False,
    "class E(str, enum.Enum):\n    A = 'a'\n    def run(self): pass\nx = E.A.run": True,
    "class E(enum.Enum):\n    A = 1\n    def __setattr__(self, n, v): pass": False,
    "class E(enum.Enum):\n    A = 1\n    def __repr__(self): pass\nclass C:\n    e: E = E.A": False,
    "x = G['a']": False,
    "x: G['a'] = 1": False,
    "x = isinstance(1, H)": False,
    "class C(G): pass": False,
    "class C:\n    @property\n    def x(self): pass\n    SIZE = 1\nx = C.SIZE + 1, C.x": True,
    "class C:\n    @classmethod\n    @property\n    def x(cls): pass\ny = C.x": False,
    "class C:\n    x = pytest.mark": False,
    "class C:\n    x: int = dataclasses.field(default=pytest.mark)": False,
    "class C:\n    from pytest import mark": False,
    "class C:\n    x: pytest.Item = None\n    def f(self): return pytest.mark": True,
    "x = getattr(pytest, 'mark').slow": False,
    "x = [m.slow for m in [pytest.mark]]": False,
    "x = [pytest.mark][0].slow": False,
    "x = [pytest.mark] + [1]": True,
}
CLASSES = """
import abc, dataclasses, enum, typing, pytest
class P(enum.Enum):
    A, B = 1, 2
    @property
    def dtype(self): configure()
class S(enum.Enum):
    A, B = 1, 2
    def __str__(self): configure()
class M(enum.Enum):
    A, B = 1, 2
    def run(self): configure()
class Made:
    def __init__(self, *a): configure()
@dataclasses.dataclass
class Data:
    x: int = dataclasses.field(default_factory=print)
class Said:
    def __str__(self): configure()
class G:
    def __class_getitem__(cls, x): configure()
class H(abc.ABC):
    @classmethod
    def __subclasshook__(cls, x): configure()
"""


@pytest.mark.parametrize("text", OF_CLASSES)
def test_what_runs_code_of_a_class_of_the_scripts_own(tmp_path, text):
    found = scanned(tmp_path, f"{CLASSES}{text}\nimport wave\n")
    assert found.prefix[:1] == ["abc"] and ("wave" in found.prefix) == OF_CLASSES[text], found.ends
    assert found.end is None or found.end.line > CLASSES.count("\n"), found.ends


# Each decides, or may decide, what an import behind it finds: the first ten of them were once imported over.
INFLUENCES = {
    "a folder on sys.path": "import sys\nsys.path.insert(0, 'vendored')",
    "a dotenv": "from dotenv import load_dotenv\nload_dotenv()",
    "the environment, in a function": "import os\ndef configure():\n    os.environ['A'] = str(1)\nconfigure()",
    "logging": "import logging\nlogging.basicConfig(level=10)",
    "warnings": "import warnings\nwarnings.filterwarnings('ignore')",
    "an import hook": "import sys\nsys.meta_path.insert(0, None)",
    "sys.argv": "import sys\nsys.argv = ['x']",
    "a working directory": "import os\nos.chdir('/')",
    "a patched module": "import json\njson.dumps = print",
    "a signal handler": "import signal\nsignal.signal(signal.SIGTERM, print)",
    "an open file": "f = open('/dev/null')",
    "a lock": "import threading\nlock = threading.Lock()",
    "a seed": "import random\nrandom.seed(1)",
    "sys.modules": "import sys\nsys.modules['wave'] = None",
    "an attribute that is set": "import sys\nsetattr(sys, 'path', [])",
    "a variable, to what is not in the text": "import os\nos.environ['A'] = str(1)",
    "a change in place": "import os\nos.environ |= {}",
    "bytes": "import os\nos.environb[b'A'] = b'1'",
    "the C library's": "import os\nos.putenv('A', '1')",
    "one that goes": "import os\ndel os.environ['A']",
    "in an if": "import os\nif 1:\n    os.environ['A'] = str(1)",
    "a variable, perhaps": "import os\nif os.environ.get('B'):\n    os.environ['A'] = '1'",
    "a variable, and something else": "import os\nos.environ['A'] = os.path.x = '1'",
    "a variable that no process can have": "import os\nos.environ['A'] = 1",
    "a variable of a name that Python refuses": "import os\nos.environ['A=B'] = '1'",
    "a variable that is not ASCII": "import os\nos.environ['A'] = '\u00e4'",
    "a variable that OpenMP goes by": "import os\nos.environ['OMP_PROC_BIND'] = 'true'",
    "a variable in a function that is called perhaps": "import os\ndef f(): os.environ['A'] = '1'\nif os.getpid(): f()",
    "a variable behind a return": "import os\ndef f():\n    return\n    os.environ['A'] = '1'\nf()",
    "a variable that must be there": "import os\nos.environ.pop('A')",
    "variables that are not in the text": "import os\nos.environ.update(load())",
    "a variable among those that are not in the text": "import os\nos.environ.update({'A': '1', **more})",
    "a default that is not in the text": "import os\nos.environ.setdefault('A', str(1))",
    "an imported list, in place": "from sys import path\npath += ['a']",
    "an imported mapping, in place": "from os import environ\nenviron |= {'A': '1'}",
    "a name of a class's, in place": "from sys import path\nclass A:\n    path = 1\npath += ['a']",
    "a path's method": "from pathlib import Path\nPath('x').write_text('new')",
    "a method of a path's parent": "from pathlib import Path\n(Path('x').parent / 'y').mkdir()",
    "a method of a named path": "from pathlib import Path\np = Path('x')\np.unlink()",
    "a logger's method": "import logging\nlogging.getLogger('a').setLevel(10)",
    "a call of a call": "import functools\nfunctools.partial(configure)()",
    "a call of an attribute": "import json\ngetattr(json, 'dumps')()",
    "a method that calls": "import re\nre.compile('x').sub(configure, 'x')",
    "a value of a container": "import os\ndict(a=os.environ).get('a').update(b='1')",
    "a class by type": "A = type('A', (Base,), {})",
    "a default of a lambda": "import os\nf = lambda x=os.environ.pop('A', None): x",
    "a target of a comprehension": "import os\nx = [0 for os.environ['A'] in ('b',)]",
    "a missing name of a library's": "import pytest\nx = hasattr(pytest, 'configure')",
}


@pytest.mark.parametrize("what", INFLUENCES)
def test_what_a_script_does_ends_the_prefix(tmp_path, what):
    text = INFLUENCES[what]
    found = scanned(tmp_path, f"import cmd\n{text}\nimport wave\n")
    assert found.prefix[0] == "cmd" and found.later == ["wave"] and not found.usual
    # dotenv is not there everywhere: then its import is what ends the prefix.
    lines = [2, 3] if what == "a dotenv" else [text.count("\n") + 2]
    assert found.ends.startswith(tuple(f"{tmp_path}/script.py:{line}: " for line in lines)), found.ends


@pytest.mark.parametrize(
    "value",
    [
        "rank = int(os.environ['RANK'])",
        "a = os.environ.get('A'), dict(os.environ)",
        "def f():\n    os.environ['A'] = '1'",
        "here = os.path.dirname(os.path.abspath(__file__))",
        "a = os.environ.get('A', '').lower().split(',')[0].strip()",
        "n = 1\nn += 1\nnames = ['a']\nnames += ['b']\nm = int('1')\nm += n",
        "import pathlib as l\np = l.Path(__file__).resolve().parent / 'x'\nq = p.parent.joinpath('y')",
        "import pathlib\np = (pathlib.Path(__file__).parent / '..').resolve()",
        "p = os.path.realpath(os.path.join(os.path.dirname(__file__), '..'))",
        "import pathlib\np = (pathlib.Path('a') / 'b').is_absolute()",
        "import re\nx = re.compile('a').match('b'), ', '.join(['a']), f'{os.getcwd()}'.upper()",
        "import logging\nlog = getattr(logging, 'getLogger')",
        "class A:\n    @property\n    def a(self): pass\n    @a.setter\n    def a(self, v): pass",
        "import functools\n@functools.lru_cache(maxsize=None)\ndef f(): pass",
        "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass A:\n    x: int = dataclasses.field(default=1)",
        "import typing\nT = typing.TypeVar('T')\nclass A(typing.NamedTuple):\n    x: int",
        "f = lambda x=1: x\npairs = [(a, b) for a, b in [(1, 2)]]",
        "import sys\nmajor, minor = sys.version_info.major, sys.version_info.minor\nx = major * 10 + minor",
        "import sys\nout, err = sys.stdout, sys.stderr\nx = [out, err]",
        "import time\nstart, clock = time.time, time.perf_counter",
        "import sys\nPY = (sys.version_info.major, sys.version_info.minor)\nx = PY >= (3, 8)",
        "import sys\nENCODING = sys.stdout.encoding or 'utf-8'\nx = f'{ENCODING}'",
        "import sys\nPYTHON = sys.argv[1] if len(sys.argv) > 1 else sys.executable\nx = 'run ' + PYTHON",
        "import torch\nnn, F = torch.nn, torch.nn.functional\nx = F.relu, nn.Module",
        "a, b = 1, [2]\na += 1\nb += [3]\nif a:\n    a, b = b, a\nx = f'{a} {b}'",
        "DEBUG = os.environ.get('D', '0')\nif DEBUG:\n    DEBUG = 'x'\nx = f'{DEBUG}'",
        "import torch\nclass Cfg:\n    F = torch.nn.functional\n    size = 2\nx = Cfg.size * 2",
    ],
)
def test_what_only_makes_a_value_does_not(tmp_path, value):
    found = scanned(tmp_path, f"import os, cmd\n{value}\nimport wave\n")
    assert found.prefix[:2] == ["os", "cmd"] and found.prefix[-1] == "wave", found.ends


def test_own_tree_is_read_in_the_order_of_the_imports(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/__init__.py").write_text("import json\nfrom . import part\n")
    (tmp_path / "own/part.py").write_text("import bz2\nfrom .deep import thing\n")
    (tmp_path / "own/deep.py").write_text("import lzma\nimport own.part\n")
    found = scanned(tmp_path, "import cmd\nfrom own.part import x\nimport code\n")
    assert found.prefix == ["cmd", "json", "bz2", "lzma", "code"]
    assert set(found.texts) == {str(tmp_path / name) for name in ("script.py", *OWN)}
    assert found.is_of_the_same_texts()
    (tmp_path / "own/deep.py").write_text("import lzma\nconfigure()\n")
    assert not found.is_of_the_same_texts()


OWN = ("own/__init__.py", "own/part.py", "own/deep.py")


def test_own_module_that_changes_the_environment(tmp_path):
    (tmp_path / "setup_env.py").write_text("import os\nos.environ['A'] = '1'\n")
    found = scanned(tmp_path, "import json, setup_env, wave\n")
    assert (found.prefix, found.usual, found.settings) == (["json", "os"], ["wave"], [("set", "A", "1")])
    assert found.ends == f"{tmp_path}/setup_env.py:2: os.environ['A'] = '1'"


# What sets variables, and what they are then where A was there before.
SETTINGS = {
    "os.environ['A'] = '1'": {"A": "1"},
    "os.environ['A'] = os.environ['B'] = '1'": {"A": "1", "B": "1"},
    "environ['B'] = '1'": {"B": "1"},
    "os.environ.setdefault('A', '1')": {},
    "os.environ.setdefault('B', '1')": {"B": "1"},
    "os.environ.update(B='1', C='2')": {"B": "1", "C": "2"},
    "os.environ.update({'B': '1'}, C='2')": {"B": "1", "C": "2"},
    "os.environ.pop('A', None)": {"A": None},
    "os.environ.pop('B', None)": {},
    "os.environ.pop('A', None)\nos.environ.setdefault('A', '1')": {"A": "1"},
    "os.environ['A'] = '1'\nos.environ['A'] = '0'": {},
    "def f():\n    os.environ['B'] = '1'\nf()": {"B": "1"},
    "if __name__ == '__main__':\n    os.environ['B'] = '1'": {"B": "1"},
}


@pytest.mark.parametrize("text", SETTINGS)
def test_variables_that_are_set_before_what_is_usual(tmp_path, text):
    found = scanned(
        tmp_path, f"import os\nfrom os import environ\n{text}\nimport torch\nenviron['LATE'] = '1'\nimport cmd"
    )
    assert (found.prefix, found.usual, found.later) == (["os"], ["torch"], ["cmd"])
    environment = {"A": "0"}
    assert variables.settle(found.settings, environment) == SETTINGS[text] and environment == {"A": "0"}


def test_names_that_may_be_values_of_their_package(tmp_path):
    found = scanned(tmp_path, "import email.header\nfrom email import message\n")
    assert found.prefix == ["email.header", "email", "email.message"]
    assert found.attributes == {"email.message"}


@pytest.mark.parametrize("name", ["package.module", "package"])
def test_modules(tmp_path, name):
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").write_text("import lzma")
    (tmp_path / "package/module.py").write_text("import wave\nfrom .other import x")
    (tmp_path / "package/__main__.py").write_text("import wave\nfrom package import other")
    (tmp_path / "package/other.py").write_text("import bz2")
    found = scanned(tmp_path, None, "module", name)
    assert found.prefix == ["lzma", "wave", "bz2"]
    assert found.main == str(tmp_path / "package" / ("module.py" if name == "package.module" else "__main__.py"))


def test_what_is_not_there(tmp_path):
    assert scanned(tmp_path, None).prefix == []
    assert scanned(tmp_path, None, "module", "no.such.module").prefix == []


def test_bounds(tmp_path):
    """A huge tree or a text of one deep expression costs no more than its share, and no failure. What is not read may
    do anything."""
    for i in range(scan.FILES_MAX + 50):
        (tmp_path / f"own{i}.py").write_text(f"import own{i + 1}\n")
    found = scanned(tmp_path, "import cmd, own0\nimport json\n")
    assert (found.prefix, found.later) == (["cmd"], ["json"]) and len(found.texts) <= scan.FILES_MAX + 1
    assert scanned(tmp_path, "x = " + "(" * 5000 + ")" * 5000).prefix == []
    assert scanned(tmp_path, "#" * (texts.SOURCE_BYTES_MAX + 1)).prefix == []


def test_own_names(tmp_path):
    for file in (
        "module.py",
        "extension.abi3.so",
        "notes.txt",
        "data.tar.gz",
        "package/__init__.py",
        "data/x.py",
        "no",
    ):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("")
    assert places.own_names(str(tmp_path)) == {"module", "extension", "package"}
    assert places.own_names(str(tmp_path), {"module", "data"}) == {"module"}
    assert places.own_names(str(tmp_path / "missing")) == set()


# A script's text, that of own/__init__.py and of own/part.py; what of it is prefix.
OWN_TEXTS = {
    "a value beside a module": ("from own import part\nimport cmd", "def part(): pass", "import wave", "cmd"),
    "a value that a module gives": ("from own import part\nimport cmd", "from .part import part", "part = 1", "cmd"),
    "a value perhaps": ("from own import part\nimport cmd", "if x: part = 1", "import wave", ""),
    "a module that answers": ("from own import X\nimport cmd", "def __getattr__(name): pass", "", ""),
    "a module that answers for its parts": ("from own import part\nimport cmd", "def __getattr__(n): pass", "", ""),
    "one that answers, in an expression": ("import own\nx = own.X\nimport cmd", "def __getattr__(n): pass", "", ""),
    "what is there is not asked for": ("from own import X\nimport cmd", "def __getattr__(n): pass\nX = 1", "", "cmd"),
    "a base": ("from own.part import A\nclass B(A): pass\nimport cmd", "", "class A: pass", "cmd"),
    "a base of a package": (
        "from own import A\nclass B(A): pass\nimport cmd",
        "from .part import *",
        "class A: pass",
        "cmd",
    ),
    "a base by its module": ("import own.part\nclass B(own.part.A): pass\nimport cmd", "", "class A: pass", "cmd"),
    "a base that is told": (
        "from own.part import A\nclass B(A): pass\nimport cmd",
        "",
        "class A:\n    def __init_subclass__(cls): pass",
        "",
    ),
    "a base of a library": (
        "from own import Item\nclass B(Item): pass\nimport cmd",
        "from .part import Item",
        "from pytest import Item",
        "pytest pytest:Item",
    ),
    "a builtin that is rebound": ("from own.part import *\nx = int('1')\nimport cmd", "", "def int(x): pass", ""),
    "all that a list names": ("from own import *\nimport cmd", "__all__ = ['part']", "import wave", "wave cmd"),
    "all that a sum of lists names": (
        "from own import *\nimport cmd",
        "__all__ = ['x'] + ['part']\nx = 1\n__all__ += ['x']",
        "import wave",
        "wave cmd",
    ),
    "all that a growing list names": (
        "from own import *\nimport cmd",
        "__all__ = ['x']\nx = 1\n__all__ += ['part']",
        "import wave",
        "wave cmd",
    ),
    "all that a list names, which is a value": (
        "from own import *\nimport cmd",
        "__all__ = ['part']\npart = 1",
        "import wave",
        "cmd",
    ),
    "all, without a list": ("from own import *\nimport cmd", "x = 1", "import wave", "cmd"),
    "all that is not known": ("from own import *\nimport cmd", "__all__ = [n for n in 'x']", "import wave", ""),
    "all of one that answers": ("from own import *\nimport cmd", "def __getattr__(name): pass", "", ""),
    "all but what is private": ("from own import *\n_run()\nimport cmd", "from os import getcwd as _run", "", "os"),
    "a part that is a value by now": (
        "import own.part\nx = own.part.slow\nimport cmd",
        "from .part import x\nfrom pytest import mark as part",
        "x = 1",
        "pytest pytest:mark",
    ),
    "a module's name in a module that is being imported": (
        "import own.part\nimport cmd",
        "",
        "try:\n    from own.part import later\nexcept ImportError:\n    import wave\nlater = 1",
        "",
    ),
    "a part that its package imports first": (
        "import own.part\nimport cmd",
        "from .part import x\nimport lzma",
        "import wave\nx = 1",
        "wave lzma cmd",
    ),
    "a place that a package changes": ("import own.part\nimport cmd", "__path__ = ['/x']", "import wave", ""),
    "a name that a module may answer": (
        "import own\nx = getattr(own, 'X', None)\nimport cmd",
        "def __getattr__(name): pass",
        "",
        "",
    ),
    "an enumeration of a module": (
        "from own import P\nx = P.A.dtype\nimport cmd",
        "import enum\nclass P(enum.Enum):\n    A = 1\n    @property\n    def dtype(self): pass",
        "",
        "enum",
    ),
    "a list of another's": ("from own.part import path\npath += ['a']\nimport cmd", "", "from sys import path", ""),
}


@pytest.mark.parametrize("name", OWN_TEXTS)
def test_what_an_own_module_gives(tmp_path, name):
    text, package, part, prefix = OWN_TEXTS[name]
    (tmp_path / "own").mkdir()
    (tmp_path / "own/__init__.py").write_text(package)
    (tmp_path / "own/part.py").write_text(part)
    found = scanned(tmp_path, text)
    assert found.prefix == prefix.split(), found.ends
    assert ("cmd" in found.later) != ("cmd" in found.prefix)
