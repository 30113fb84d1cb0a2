"""Random scripts: imports of stand-in libraries among whatever may influence them, in any order and any wrapping."""

import textwrap

from sameness import libraries
from sameness.case import Case

BLOCKS_MAX = 9
# Draws where nobody has seeded differ in each process; these end the script, or say something else each time.
_NOT_BY_THEMSELVES = {"sees_draw", "makes_error"}
_LIBRARIES = [name for name in (*libraries.SEEING, *libraries.MAKING) if name not in _NOT_BY_THEMSELVES]
_PACKAGES = ["foolib", "foolib.part", "uses_foolib", "lazy_like", "data_like", "spaced.left", "unsloth_like"]


class Block:
    """Some lines of a script, and the files that they need."""

    def __init__(self, text, files=None):
        self.text = textwrap.dedent(text).strip("\n")
        self.files = files or {}


class Script:
    """Blocks in order, and what surrounds them. `case()` makes a script of the corpus of it."""

    def __init__(self, blocks, more):
        self.blocks, self.more = blocks, more

    def case(self):
        lines = [*(block.text for block in self.blocks), _TELL_TAKEN, "import standin"]
        lines.append(f"standin.tell({self.more['looks']})")
        files = {name: text for block in self.blocks for name, text in block.files.items()}
        text = "\n".join(lines) + "\n"
        return Case("generated", text, {**files, "train.py": text}, **self.more["case"])

    def shrunk(self, differs):
        """The shortest script that still `differs(case)`, by leaving out one block after another."""
        script, index = self, 0
        while index < len(script.blocks):
            shorter = Script(script.blocks[:index] + script.blocks[index + 1 :], script.more)
            if differs(shorter.case()):
                script = shorter
            else:
                index += 1
        return script


def make_script(choose):
    blocks = [_block(choose, index) for index in range(choose.randint(2, BLOCKS_MAX))]
    environment = {}
    if choose.random() < 0.3:
        environment["LIB_MODE"] = "outer"
    if choose.random() < 0.2:
        environment["OMP_NUM_THREADS"] = str(choose.randint(1, 4))
    if choose.random() < 0.1:
        environment["PYTHONWARNINGS"] = choose.choice(["ignore", "error::UserWarning", "default"])
    looks = choose.sample(["env:LIB_MODE", "cwd", "path", "filters", "signals", "logging", "argv", "gc", "umask"], 3)
    args = choose.choice([(), ("--lr", "0.1"), ("one two",)])
    return Script(blocks, {"looks": ", ".join(map(repr, looks)), "case": {"environment": environment, "args": args}})


def _block(choose, index):
    if choose.random() < 0.45:
        return _import(choose)
    maker = choose.choice([_environment, _process, _path, _modules, _taken, _own_code, _harmless])
    block = maker(choose, index)
    return _wrapped(choose, block, index) if choose.random() < 0.5 else block


def _import(choose):
    name = choose.choice(_LIBRARIES if choose.random() < 0.8 else _PACKAGES)
    form = choose.randrange(5)
    if form == 0:
        return Block(f"from {name} import standin as _standin")
    if form == 1:
        return Block(f"def load():\n    import {name}\nload()")
    if form == 2:
        return Block(f"try:\n    import {name}\nexcept ImportError:\n    print('no', {name!r})")
    if form == 3:
        return Block(f"import {name}, {choose.choice(_LIBRARIES)}")
    return Block(f"import {name}")


def _environment(choose, index):
    name = choose.choice(["LIB_MODE", "LIB_EXTRA", "OMP_NUM_THREADS", "LIB_NEW"])
    value = str(choose.randint(1, 9))
    forms = [
        "import os\nos.environ[{name!r}] = {value!r}",
        "import os\ndef configure():\n    os.environ[{name!r}] = {value!r}\nconfigure()",
        "import os\nos.environ.update({name}={value!r})",
        "import os\nos.environ.setdefault({name!r}, {value!r})",
        "import os\nos.environ.pop({name!r}, None)",
        "import os\nclass Settings:\n    os.environ[{name!r}] = {value!r}",
        "import os\ndef train(mode=os.environ.setdefault({name!r}, {value!r})):\n    pass",
        "import os\ncount: os.environ.setdefault({name!r}, {value!r}) = 1",
        "import os\nlisted = [os.environ.setdefault(name, {value!r}) for name in ({name!r},)]",
        "import os\nos.putenv({name!r}, {value!r})",
        "import ctypes\nctypes.CDLL(None).setenv({name!r}.encode(), {value!r}.encode(), 1)",
        "from os import environ as env\nenv[{name!r}] = {value!r}",
        "import os\nprint(f'{{os.environ.setdefault({name!r}, {value!r})}}')",
        "import os\nsetattr_ = getattr(os, 'environ').__setitem__\nsetattr_({name!r}, {value!r})",
        'exec("import os; os.environ[{name!r}] = {value!r}")',
        "import os\nsorted([{value!r}], key=lambda value: os.environ.setdefault({name!r}, value))",
    ]
    if choose.random() < 0.15:
        file = {f"env{index}": f"{name}={value}\n"}
        return Block(f"from dotenv_like import load_dotenv\nload_dotenv('env{index}')", file)
    return Block(choose.choice(forms).format(name=name, value=value))


_PROCESS = [
    "import os\nos.makedirs('inner', exist_ok=True)\nos.chdir('inner')\nopen('here.txt', 'w').close()",
    "import os\nos.umask(0o077)",
    "import sys\nsys.argv = sys.argv[:1] + ['--hidden']",
    "import sys\nsys.argv.append('--more')",
    "import sys\nsys.setrecursionlimit(2345)",
    "import warnings\nwarnings.simplefilter('ignore')",
    "import warnings\nwarnings.filterwarnings('error', category=FutureWarning, module='nowhere')",
    "import logging\nlogging.basicConfig(level=logging.INFO, format='script: %(message)s')",
    "import logging\nlogging.getLogger().setLevel(logging.ERROR)",
    "import locale\nlocale.setlocale(locale.LC_ALL, 'C.UTF-8')",
    "import signal\nsignal.signal(signal.SIGUSR2, signal.SIG_IGN)",
    "import signal\nsignal.signal(signal.SIGTERM, signal.default_int_handler)",
    "import random\nrandom.seed(5)\nimport sees_draw",
    "import gc\ngc.disable()",
    "import gc\ngc.set_threshold(500, 5, 5)",
    "import sys\nsys.dont_write_bytecode = True",
    "import sys\nsys.excepthook = lambda *what: None",
    "import threading\nthreading.Thread(target=print, args=('in a thread',), name='script').run()",
]


def _process(choose, index):
    return Block(choose.choice(_PROCESS))


def _path(choose, index):
    name = choose.choice(["foolib", "zebra", "sees_nothing", "data_like", "only_here"])
    folder = f"vendored{index}"
    text = f"import standin\nVERSION = 'vendored {index}'\nTEXT = ''\nstandin.see(__name__, 'loaded:zebra')\n"
    forms = [
        "import sys\nsys.path.insert(0, {folder!r})\nimport {name}",
        "import os, sys\nHERE = os.path.dirname(os.path.abspath(__file__))\n"
        "sys.path.insert(0, os.path.join(HERE, {folder!r}))\nimport {name}",
        "import sys\nsys.path.append({folder!r})\nimport only_here",
        "import sys\nsys.path[:0] = [{folder!r}]\ntry:\n    import {name}\nexcept ImportError:\n    pass",
        "import sys\nsys.path = [{folder!r}] + sys.path\nimport {name}, only_here",
        "import site\nsite.addsitedir({folder!r})\nimport only_here",
    ]
    files = {f"{folder}/{name}.py": text, f"{folder}/only_here.py": text}
    if choose.random() < 0.25:
        return Block(f"import {name}", {f"{name}.py": text})
    return Block(choose.choice(forms).format(folder=folder, name=name), files)


# What one keeps of what it replaces is its own: a script of two that recursed without end would tell its depth, and a
# worker's stack is some frames longer (docs/warm-workers.md).
_MODULES = [
    "import sys, types\nsys.modules.setdefault('foolib', types.ModuleType('foolib'))\n"
    "sys.modules['foolib'].__file__ = 'stub'",
    "import sys\nfor name in [name for name in sys.modules if name.startswith('sees_')]:\n    del sys.modules[name]",
    "import sys\nsys.modules['zebra'] = None",
    "import sys, standin\nclass Hook:\n    @staticmethod\n    def find_spec(name, path=None, target=None):\n"
    "        if name.startswith('sees_'):\n            standin.note('hook', asked=name)\nsys.meta_path.insert(0, Hook)",
    "import importlib, sees_env\nimportlib.reload(sees_env)",
    "import importlib\nimportlib.import_module('sees_env_too')",
    "import json\njson.dumps = lambda *a, dumps=json.dumps, **k: dumps(*a, **k)\nimport sees_json_patched",
    "import lazy_like\nlazy_like.part",
    "import builtins, standin\ndef noted(name, *a, _import=builtins.__import__, **k):\n"
    "    if name.startswith('makes_'):\n        standin.note('import', asked=name)\n    return _import(name, *a, **k)\n"
    "builtins.__import__ = noted",
]


def _modules(choose, index):
    return Block(choose.choice(_MODULES))


_HARMLESS = [
    "LEARNING_RATE = 0.1\nNAMES = ['one', 'two']",
    "def helper(value=1):\n    return value",
    "class Model:\n    size = 3\n    def run(self):\n        return self.size",
    "import dataclasses\n@dataclasses.dataclass\nclass Options:\n    rate: float = 0.1",
    "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr')\n"
    "options, _ = parser.parse_known_args()",
    "'a string that stands alone'",
    "import os\nMODE = os.environ.get('LIB_MODE', 'none')",
    "import typing\nif typing.TYPE_CHECKING:\n    import zebra",
]


# What stands there between two imports: one behind it may put another value there.
_TAKEN = [
    "import os\ntaken{index} = os.environ.get('LIB_MADE'), os.getenv('LIB_EXTRA', 'none')",
    "import os\ntaken{index} = 'LIB_MADE' in os.environ, os.environ.get('LIB_MODE')",
    "import os\ntaken{index} = dict(os.environ).get('LIB_EXTRA')",
    "from json import dumps as taken{index}",
    "import json\ntaken{index} = json.dumps",
    "import json\nclass taken{index}:\n    __module__ = json.dumps.__module__",
    "import sys\ntaken{index} = 'makes_patch' in sys.modules, 'zebra' in sys.modules",
    "import logging\ntaken{index} = logging.getLogger('lib').propagate",
    "import sys\ntaken{index} = len(sys.path) - len(set(sys.path)), sys.getrecursionlimit()",
]
_TELL_TAKEN = (
    "for name in sorted(name for name in globals() if name.startswith('taken')):\n"
    "    print(name, getattr(globals()[name], '__module__', globals()[name]))"
)


def _taken(choose, index):
    return Block(choose.choice(_TAKEN).format(index=index))


_MEMBERS = """
import enum, os
class Kind{index}(enum.Enum):
    A, B = 1, 2
    @property
    def mode(self):
        return os.environ.setdefault({name!r}, {value!r})
    def __str__(self):
        return os.environ.setdefault({name!r}, {value!r})
    def run(self):
        return os.environ.setdefault({name!r}, {value!r})
"""
# Code of the script's own that runs without a call, or by an import that names no module; and the same where it does
# not run. `package` has a module, `setting`, that sets a variable.
_OWN_CODE = [
    *(
        _MEMBERS + line
        for line in (
            "made{index} = Kind{index}.A.mode",
            "made{index} = f'{{Kind{index}.A}}'",
            "made{index} = [one.mode for one in Kind{index}]",
            "kept{index} = [Kind{index}.B]\nmade{index} = kept{index}[0].mode",
            "one{index}, two{index} = Kind{index}\nmade{index} = two{index}.mode",
            "made{index} = Kind{index}.A, Kind{index}.B.value, Kind{index}['A'].name, list(Kind{index})",
            "class Holds{index}:\n    kind: Kind{index} = Kind{index}.A\nmade{index} = Holds{index}.kind.mode",
            "def give{index}(kind=Kind{index}.A):\n    return kind.mode\nmade{index} = give{index}()",
            "made{index} = getattr(Kind{index}.A, 'mode', None)",
        )
    ),
    "import enum, os\nclass Mixin{index}:\n    def __init__(self, *a):\n        os.environ[{name!r}] = {value!r}\n"
    "class Kind{index}(Mixin{index}, enum.Enum):\n    A = 1",
    "import os\nclass Registry{index}:\n    def __class_getitem__(cls, key):\n"
    "        return os.environ.setdefault({name!r}, {value!r})\nmade{index} = Registry{index}['a']",
    "from package{index} import *\nmade{index} = setting",
    "from package{index}.listed import *\nmade{index} = VALUE",
    "import package{index}.setting\nmade{index} = package{index}.setting.VALUE",
    "__package__ = 'package{index}'\nfrom .setting import VALUE\n__package__ = None",
    "try:\n    from .setting import VALUE\nexcept ImportError:\n    from package{index}.setting import VALUE",
]


def _own_code(choose, index):
    name, value = choose.choice(["LIB_MODE", "LIB_EXTRA"]), str(choose.randint(1, 9))
    folder = f"package{index}"
    files = {
        f"{folder}/__init__.py": choose.choice(["__all__ = ['setting']\n", "__all__ = []\n__all__ += ['setting']\n"]),
        f"{folder}/setting.py": f"import os, sees_env_too\nos.environ[{name!r}] = VALUE = {value!r}\n",
        f"{folder}/listed.py": "from .setting import *\n",
    }
    return Block(choose.choice(_OWN_CODE).format(index=index, name=name, value=value), files)


def _harmless(choose, index):
    return Block(choose.choice(_HARMLESS))


def _wrapped(choose, block, index):
    """The same in a place where it also runs, once."""
    body = textwrap.indent(block.text, "    ")
    forms = [
        "if True:\n{body}",
        "try:\n{body}\nfinally:\n    pass",
        "for _ in range(1):\n{body}",
        "def part{index}():\n{body}\npart{index}()",
        "if __name__ == '__main__':\n{body}",
        "class Part{index}:\n{body}",
        "import contextlib\nwith contextlib.suppress(KeyError):\n{body}",
        "while True:\n{body}\n    break",
        None,
    ]
    form = choose.choice(forms)
    if form is None:  # in a module beside the script
        return Block(f"import own{index}", {**block.files, f"own{index}.py": block.text + "\n"})
    return Block(form.format(body=body, index=index), block.files)
