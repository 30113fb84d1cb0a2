"""What was imported ahead of its turn and lies hidden, asked of small stand-ins of torch, NumPy and their like."""

import os
import subprocess
import sys
import textwrap
import zipfile

import pytest
from zygote_agent import BASE_ENV, Agent

TORCH = {
    "torch__in____init__": """
        class default_generator:
            seed = staticmethod(lambda: None)
        threads = [1]
        get_num_threads = lambda: threads[0]
        def set_num_threads(count): threads[0] = count
        """,
    "numpy__in____init__": "",
    "networkx": "",
    "sympy": "",
}


@pytest.fixture
def place(tmp_path, tmp_path_factory):
    """Writes libraries and a script of the user's own, and gives an agent whose Pythons find these libraries."""
    packages = tmp_path_factory.mktemp("packages") / "site-packages"  # by its name no code of the user's own
    with Agent(env={"PYTHONPATH": str(packages)}) as agent:
        yield _Place(tmp_path, packages, agent)


class _Place:
    def __init__(self, folder, packages, agent):
        self.folder, self.agent = folder, agent
        self._packages = packages
        self.env = {"PYTHONPATH": str(packages)}
        self.library(**TORCH)

    def library(self, **modules):
        _write(self._packages, modules)

    def own(self, **modules):
        _write(self.folder, modules)

    def warm(self, script, kind="script", learnt=(), deny=(), **env):
        """(status, stdout, stderr, whys) of a forked life; whys: why it started afresh, in its order."""
        name = script if kind == "module" else self.folder / f"{script}.py"
        answer = self.agent.start_zygote(name, kind=kind, cwd=self.folder, learnt=list(learnt), deny=list(deny))
        assert answer["type"] == "ready", answer
        return self.again(script, kind, **env)

    def again(self, script, kind="script", **env):
        """Another life of the same zygote."""
        name = script if kind == "module" else self.folder / f"{script}.py"
        worker = self.agent.fork().run(name, kind=kind, cwd=self.folder, env={**self.env, **env})
        messages = worker.messages()
        return (*worker.result(), [message["cold"] for message in messages if "cold" in message])

    def plain(self, script, kind="script", **env):
        """(status, stdout, stderr, []) of plain Python."""
        words = ["-m", script] if kind == "module" else [self.folder / f"{script}.py"]
        done = subprocess.run(
            [sys.executable, "-u", *words],
            cwd=self.folder,
            env={**BASE_ENV, **self.env, **env},
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout, done.stderr, []


def _write(folder, modules):
    for name, text in modules.items():
        path = folder / (name.replace("__in__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


# `-m`.


def test_multiprocessing_in_a_module(place):
    """It gives __main__ a second name, which is no module of the user's own."""
    place.library(wants="import multiprocessing")
    text = "import wants, sys\nprint(sys.modules['__mp_main__'] is sys.modules['__main__'], __spec__.name)"
    place.own(package__in____init__="", package__in__train=text)
    assert place.warm("package.train", "module") == place.plain("package.train", "module")


def test_a_package_imports_what_was_imported_ahead_of_its_turn(place):
    """Its text is the script's: it runs with this rank's variables, and what is hidden is given out to it."""
    place.library(numpy__in____init__="import os\nprint('numpy is imported')\nos.environ['MADE'] = 'by numpy'")
    place.own(
        package__in____init__="import os\nprint('begins', os.environ.get('RANK'))\nimport numpy",
        package__in__train="import os\nprint(os.environ['MADE'])\nimport torch\nprint(torch.threads)\n1 / 0",
    )
    expected = place.plain("package.train", "module", RANK="3")
    assert expected[0] == 1 and expected[1] == "begins 3\nnumpy is imported\nby numpy\n[1]\n", expected
    assert place.warm("package.train", "module", ["torch", "numpy"], RANK="3") == expected


def test_a_package_that_says_something_first(place):
    """What libraries that it imports say at their import comes before it, in the order of the script."""
    place.library(says="print('library')")
    place.own(package__in____init__="import says\nprint('package')", package__in__train="print('module')")
    assert place.warm("package.train", "module") == place.plain("package.train", "module")


# Threads.


def test_a_number_of_threads_that_is_set_behind_torch(place):
    """It is for child processes: what the script has told torch stays, whatever is imported then."""
    place.own(
        behind="import torch, os\nos.environ['OMP_NUM_THREADS'] = '2'\ntorch.set_num_threads(3)\nimport networkx\n"
        "print(torch.get_num_threads())",
        before="import os\nos.environ['OMP_NUM_THREADS'] = '2'\nimport torch\nprint(torch.get_num_threads())",
    )
    assert place.warm("behind", learnt=["networkx"]) == (0, "3\n", "", [])
    assert place.warm("before", learnt=["torch"]) == (0, "2\n", "", [])


COUNTING_TORCH = """
    import os
    class default_generator:
        seed = staticmethod(lambda: None)
    threads = [int(os.environ.get("OMP_NUM_THREADS") or 7)]
    get_num_threads = lambda: threads[0]
    def set_num_threads(count): threads[0] = count
    """
SETTER = "import os\nif not os.environ.get('OMP_NUM_THREADS'):\n    os.environ['OMP_NUM_THREADS'] = '1'"


@pytest.mark.parametrize("order", ["torch, setter", "setter, torch"])
def test_a_number_of_threads_that_a_library_sets(place, order):
    """It is for what is imported behind it."""
    place.library(torch__in____init__=COUNTING_TORCH, setter=SETTER)
    place.own(train=f"import {order}, os\nprint(torch.get_num_threads(), os.environ['OMP_NUM_THREADS'])")
    expected = place.plain("train")
    assert expected[1] == ("7 1\n" if order.startswith("torch") else "1 1\n")
    assert place.warm("train") == expected


def test_a_number_of_threads_that_is_removed_before_torch(place):
    """Nobody knows how many torch would have counted without it."""
    place.library(torch__in____init__=COUNTING_TORCH)
    place.agent.env["OMP_NUM_THREADS"] = place.env["OMP_NUM_THREADS"] = "1"
    place.own(train="import os\ndel os.environ['OMP_NUM_THREADS']\nimport torch\nprint(torch.get_num_threads())")
    *told, whys = place.warm("train", learnt=["torch"])
    assert tuple(told) == place.plain("train")[:3] == (0, "7\n", "")
    assert "it has read OMP_NUM_THREADS, which the script has removed since" in whys[0]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one processor")
def test_processors_that_are_chosen_before_torch(place):
    """Torch counts those that the process may use."""
    counts = COUNTING_TORCH.replace('int(os.environ.get("OMP_NUM_THREADS") or 7)', "len(os.sched_getaffinity(0))")
    place.library(torch__in____init__=counts)
    pin = "import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    place.own(train=f"{pin}import torch\nprint(torch.get_num_threads())")
    *told, whys = place.warm("train", learnt=["torch"])
    assert tuple(told) == place.plain("train")[:3] == (0, "1\n", "")
    assert "the script has changed which processors it may use" in whys[0]


# Variables that C++ reads.


@pytest.mark.parametrize("variable", ["ONEDNN_VERBOSE", "CUBLAS_WORKSPACE_CONFIG", "KINETO_USE_DAEMON"])
def test_a_variable_of_torchs_libraries(place, variable):
    """It counts for an import of torch itself, and not for one of its late parts."""
    change = f"import os\nos.environ[{variable!r}] = str(1)\n"
    place.own(before=f"{change}import torch", behind=f"import torch\n{change}import networkx")
    assert variable in place.warm("before", learnt=["torch"])[3][0]
    assert place.warm("behind", learnt=["networkx"])[3] == []


@pytest.mark.parametrize("variable", ["KMP_X", "LD_X", "MKL_X", "TORCH_X"])
def test_a_variable_that_a_library_has_set_before(place, variable):
    """It is no change by the script: what is hidden was imported with it."""
    place.library(sets=f"import os\nos.environ[{variable!r}] = '1'", networkx="import os\nX = dict(os.environ)")
    place.own(
        train=f"import sets\nprint('begins')\nimport networkx, os\n"
        f"print(networkx.X[{variable!r}], os.environ[{variable!r}])"
    )
    assert place.warm("train", learnt=["networkx"]) == place.plain("train") == (0, "begins\n1 1\n", "", [])


SEES = "import os\nSAW = os.environ.get('TORCH_X'), os.environ.get('OTHER')\n"


@pytest.mark.parametrize(
    "text", ["['TORCH_X'] = '1'", ".setdefault('TORCH_X', '1')", ".update(TORCH_X='1', OTHER='2')"]
)
@pytest.mark.parametrize("given", [{}, {"TORCH_X": "given"}], ids=["none", "given"])
def test_a_variable_that_the_text_sets_before_torch(place, text, given):
    """Torch is imported with it, and so the life finds it imported; nothing else of the process knows of that."""
    place.library(networkx=SEES)
    place.own(
        train=f"import os\nprint(os.environ.get('TORCH_X'))\nos.environ{text}\nimport torch, networkx\n"
        "print(networkx.SAW, os.environ['TORCH_X'])"
    )
    with Agent(env={**place.env, **given}) as place.agent:
        assert place.warm("train", learnt=["networkx"], **given) == place.plain("train", **given)


def test_a_variable_that_the_text_removes_before_torch(place):
    place.library(networkx=SEES + "print('loaded in', os.getpid())")
    place.own(train="import os\nos.environ.pop('TORCH_X', None)\nimport torch, networkx\nprint(networkx.SAW)")
    with Agent(env={**place.env, "TORCH_X": "1"}) as place.agent:
        status, out, err, whys = place.warm("train", learnt=["networkx"], TORCH_X="1")
    assert (status, out.split("\n")[1:], err, whys) == (0, ["(None, None)", ""], "", [])


@pytest.mark.parametrize("text", ["['TORCH_X'] = str(2)", ".update(TORCH_X=str(2))", ".pop('TORCH_X')"])
def test_a_variable_that_is_not_what_the_text_sets(place, text):
    """A later line has changed it before the import."""
    place.library(networkx=SEES)
    place.own(
        train=f"import os\nos.environ['TORCH_X'] = '1'\nos.environ{text}\nimport torch, networkx\nprint(networkx.SAW)"
    )
    *told, whys = place.warm("train", learnt=["torch", "networkx"])
    assert tuple(told) == place.plain("train")[:3]
    assert len(whys) == 1 and "TORCH_X, which the script's text sets to something else than it is now" in whys[0]


def test_a_variable_behind_what_must_not_be_imported_ahead(place):
    """The prefix ends before it, and torch stands between the two."""
    place.library(denied="import os\nos.getpid()", networkx=SEES)
    place.own(train="import denied, torch, networkx, os\nos.environ['TORCH_X'] = '1'\nprint(networkx.SAW)")
    assert place.warm("train", learnt=["torch", "networkx"], deny=["denied"]) == place.plain("train")


def test_a_variable_that_a_library_has_set_and_the_script_sets_otherwise(place):
    place.library(sets="import os\nos.environ.setdefault('OTHER', '1')", networkx=SEES)
    changes = "for value in '0': os.environ['OTHER'] = value"
    place.own(train=f"import sets, os, torch\n{changes}\nimport networkx\nprint(networkx.SAW)")
    *told, whys = place.warm("train", learnt=["networkx"])
    assert tuple(told) == place.plain("train")[:3] and len(whys) == 1, whys


@pytest.mark.parametrize("number", ["+2", "²", "2,3", " 2"])
def test_a_number_of_threads_as_c_reads_it(place, number):
    place.own(
        train="import os\nos.environ['OMP_NUM_THREADS'] = str(os.environ['N'])\nimport torch\nprint(torch.threads)"
    )
    status, out, err, whys = place.warm("train", learnt=["torch"], N=number)
    assert (status, out, err, whys) == (0, "[1]\n" if number == "²" else "[2]\n", "", [])


def test_a_variable_that_is_read_with_a_device(place):
    place.own(train="import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '1'\nimport torch")
    assert place.warm("train", learnt=["torch"])[3] == []


def in_a_child(change, *statements):
    """A script that makes a change, and has a forked child do the rest."""
    lines = [f"import os, sys, torch\n{change}\nchild = os.fork()\nif child == 0:\n    try:"]
    lines += [f"        {statement}" for statement in statements]
    lines += ["    except ImportError as error:\n        print(error, flush=True)\n    os._exit(0)"]
    return "\n".join([*lines, "print(os.waitpid(child, 0)[1])"])


SET_ONE_OF_TORCH = "os.environ['TORCH_X'] = str(1)"


def test_a_forked_child_behind_a_changed_variable(place):
    """It cannot begin anew, and imports by itself what plain Python would."""
    place.library(networkx__in____init__="from .part import PID", networkx__in__part="import os\nPID = os.getpid()")
    place.own(train=in_a_child(SET_ONE_OF_TORCH, "import networkx", "print(networkx.PID == os.getpid(), flush=True)"))
    assert place.warm("train", learnt=["networkx"]) == place.plain("train") == (0, "True\n0\n", "", [])


def test_a_forked_child_that_imports_torch(place):
    """Its libraries are loaded: nobody can import it once more, and that is said where no handler hides it."""
    place.own(train=in_a_child(SET_ONE_OF_TORCH, "import torch").replace(", torch\n", "\nos.getloadavg()\n"))
    why = "phalanx: torch was imported ahead of its turn, but it may have read TORCH_X, which the script has changed "
    why += "since; start the job with --no-warm\n"
    assert place.warm("train", learnt=["torch"]) == (0, f"{why}0\n", why, [])


def test_a_forked_child_has_no_two_of_a_library(place):
    """Torch has taken the one that is hidden, which is not the script's."""
    place.library(torch__in__part="import networkx", networkx="X = 'usual'")
    place.own(
        vendored__in__networkx="X = 'vendored'",
        train=in_a_child(
            "sys.path.insert(0, 'vendored')", "import networkx", "print(networkx.X, flush=True)", "import torch.part"
        ),
    )
    status, out, err, whys = place.warm("train", learnt=["networkx", "torch.part"])
    assert (status, whys) == (0, []) and out.startswith("vendored\nphalanx: torch was imported ahead of its turn, but ")
    assert "networkx is another one on the script's sys.path" in err and err in out


# Random numbers.


def test_generators_of_libraries_that_do_not_care(place):
    """One that was seeded from the system has other numbers in each life, one with a seed of its own the same."""
    place.library(
        sympy="import random\nclass Holder: pass\nHolder.rng = random.Random()\nchoice = Holder.rng.random\n"
        "fixed = random.Random()\nfixed.seed(5)"
    )
    place.own(train="import sympy\nprint(sympy.choice(), sympy.fixed.random())")
    first, second = place.warm("train")[1].split(), place.again("train")[1].split()
    assert first[0] != second[0] and first[1] == second[1]


# What no Python shows to be read.


GO_BY = {
    "a variable past os.environ": ("os.putenv('MKL_CBWR', '1')", "it may have read MKL_CBWR"),
    "a variable set by C": ("ctypes.CDLL(None).setenv(b'MKL_CBWR', b'1', 1)", "it may have read MKL_CBWR"),
    "a number of threads by C": ("os.putenv('OMP_NUM_THREADS', '3')", "it may have read OMP_NUM_THREADS"),
    "a variable removed by C": ("os.unsetenv('TORCH_LATE')", "it may have read TORCH_LATE"),
    "flags of the loader": ("sys.setdlopenflags(os.RTLD_GLOBAL | os.RTLD_NOW)", "other flags of the dynamic loader"),
    "a function": ("os.cpu_count = lambda: 3", "the script has replaced os.cpu_count"),
    "a class": ("import threading\nthreading.Event = object", "the script has replaced threading.Event"),
}


@pytest.mark.parametrize("what", GO_BY)
def test_what_torch_goes_by_and_the_script_has_changed(place, what):
    change, why = GO_BY[what]
    place.env["TORCH_LATE"] = place.agent.env["TORCH_LATE"] = "1"
    tell = "import ctypes, os, sys\ngetenv = ctypes.PyDLL(None).getenv\ngetenv.restype = ctypes.c_char_p\n"
    tell += "SEEN = getenv(b'MKL_CBWR'), getenv(b'TORCH_LATE'), sys.getdlopenflags(), os.cpu_count() == 3\n"
    place.library(torch__in____init__=tell + textwrap.dedent(TORCH["torch__in____init__"]))
    place.own(train=f"import ctypes, os, sys\n{change}\nimport torch\nprint(torch.SEEN)")
    *told, whys = place.warm("train", learnt=["torch"])
    assert tuple(told) == place.plain("train")[:3]
    assert len(whys) == 1 and why in whys[0], whys


def test_what_torch_does_not_go_by(place):
    """A variable of the script's own, a function that debuggers replace, what is put back."""
    change = "os.putenv('MINE', '1')\nos.fork = lambda: None\nbuiltins.print = functools.partial(print, flush=True)\n"
    change += "flags = sys.getdlopenflags()\nsys.setdlopenflags(257)\nsys.setdlopenflags(flags)\n"
    place.own(train=f"import builtins, functools, os, sys\n{change}\nimport torch\nprint(torch.threads)")
    assert place.warm("train", learnt=["torch"]) == place.plain("train") == (0, "[1]\n", "", [])


def test_a_module_that_the_script_loads_by_its_spec(place):
    """It is put nowhere, as anybody who loads one so has it."""
    text = """
        import sys, importlib.util
        sys.argv = list(sys.argv)
        spec = importlib.util.find_spec("networkx")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        print(module.__name__, "networkx" in sys.modules)
        """
    place.own(train=text)
    assert place.warm("train", learnt=["torch", "networkx"]) == place.plain("train")


HIDDEN_BY_TWO = """
import sys, threading, types
from phalanx._bootstrap import hidden
from phalanx._bootstrap.steps import Step
sys.setswitchinterval(1e-6)
names = ["torch"] + [f"{top}.m{n}" for n in range(1000) for top in ("torch", "sympy")] + ["sympy"]
barrier = threading.Barrier(2)
def give_out(group):
    barrier.wait()
    group.give_out()
for round in range(200):
    modules = {name: types.ModuleType(name) for name in names}
    hidden._steps[:] = [Step(modules, frozenset(), {}, None, [])]
    hidden._modules_of[:], hidden._detached[:] = [dict(modules)], [{}]
    hidden._step_of.update(dict.fromkeys(modules, 0))
    groups = [hidden._group_of("torch"), hidden._group_of("sympy")]
    threads = [threading.Thread(target=give_out, args=(group,)) for group in groups]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert not hidden.any_there(), len(hidden.names())
    assert all(sys.modules[name] is modules[name] for name in names)
    for name in names: del sys.modules[name]
"""


def test_two_threads_that_import_at_the_same_time():
    """What one of them has taken lies hidden no more, whatever the other takes."""
    python = os.path.join(os.path.dirname(os.path.dirname(__file__)), "python")
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN_BY_TWO],
        env={**BASE_ENV, "PYTHONPATH": python},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def library_of_c(tmp_path_factory):
    """A function that makes a library, and returns its path. `name`: what others find it by."""

    def make(name, symbol):
        path = tmp_path_factory.mktemp("c") / name
        words = ["cc", "-shared", "-fPIC", "-x", "c", "-", f"-Wl,-soname,{name}", "-o", path]
        subprocess.run(words, input=f"int {symbol}(void) {{ return 1; }}", text=True, check=True)
        return str(path)

    return make


def test_libraries_that_the_script_has_loaded_before_torch(place, library_of_c):
    """Torch's own find one of their name, or symbols that are for all, and nothing else of it."""
    of_torch, same_name, other = (
        library_of_c(name, f"standin_{count}")
        for count, name in enumerate(("libstandin.so.1", "libstandin.so.1", "libother.so"))
    )
    place.library(
        torch__in____init__=f"import ctypes\nKEPT = ctypes.CDLL({of_torch!r})\n"
        + textwrap.dedent(TORCH["torch__in____init__"])
    )
    load = "import ctypes, os\nos.getloadavg()\nkept = ctypes.CDLL({!r}, {})\nimport torch"
    place.own(
        name=load.format(same_name, "os.RTLD_LOCAL"),
        everybody=load.format(other, "os.RTLD_GLOBAL"),
        nobody=load.format(other, "os.RTLD_LOCAL"),
        extension="import os\nos.getloadavg()\nimport _ssl, sqlite3, torch",
        late=f"import torch, ctypes\nctypes.CDLL({other!r}, ctypes.RTLD_GLOBAL)\nimport networkx",
    )
    for script, path in (("name", same_name), ("everybody", other)):
        status, out, err, (why,) = place.warm(script, learnt=["torch"])
        assert (status, out, err) == (0, "", "")
        assert f"the script has loaded {path}, whose symbols libraries behind it take" in why
    for script in ("nobody", "extension", "late"):
        assert place.warm(script, learnt=["torch", "networkx"]) == (0, "", "", [])


# What a hidden library needs.


TELL_OF_MPMATH = """
import sys, typing, inspect, os
os.getloadavg()
import sympy
print('mpmath' in sys.modules, 'networkx' in sys.modules, 'numpy' in sys.modules)
print(sorted(typing.get_type_hints(sympy.Kind)), inspect.getfile(sympy.Kind) == sys.modules['mpmath'].__file__)
"""
MPMATH = "import numpy\nclass Other: pass\nclass Kind:\n    other: 'Other'\nKIND = Kind()"


@pytest.mark.parametrize("learnt", [["sympy"], ["mpmath", "sympy"], ["networkx", "sympy"], ["torch"]])
@pytest.mark.parametrize(
    "taken",
    ["import mpmath\nKind = mpmath.Kind", "from mpmath import Kind", "from mpmath import KIND\nKind = type(KIND)"],
)
def test_a_hidden_library_comes_with_what_it_needs(place, learnt, taken):
    """Whoever imported that first: what one finds in the library may be asked for its module."""
    place.library(mpmath=MPMATH, sympy=taken, networkx="import mpmath")
    place.library(torch__in____init__=textwrap.dedent(TORCH["torch__in____init__"]) + "\nimport networkx, sympy")
    place.own(train=TELL_OF_MPMATH)
    expected = place.plain("train")
    assert expected[1].startswith("True False True\n['other'] True"), expected
    assert place.warm("train", learnt=learnt) == expected


def test_what_a_needed_library_needs_is_looked_at(place):
    """What it has read, the loggers that it has made, what the script has put in its place."""
    place.library(mpmath="import os\nX = os.environ.get('MPMATH_X')", sympy="from mpmath import X\nimport networkx")
    place.library(networkx="import logging\nlogging.getLogger('networkx')")
    place.own(
        variable="import os\nos.environ['MPMATH_X'] = str(1)\nimport sympy\nprint(sympy.X)",
        logger="import logging\nlogging.getLogger('networkx').info(1)\nimport sympy",
        module="import sys\nsys.modules['networkx'] = sys\nimport sympy\nprint(sympy.networkx is sys)",
    )
    for script, why in (("variable", "MPMATH_X"), ("logger", "its logger networkx"), ("module", "into sys.modules")):
        *told, whys = place.warm(script, learnt=["sympy"])
        assert tuple(told) == place.plain(script)[:3]
        assert len(whys) == 1 and why in whys[0]


# Libraries that we use ourselves.


def test_the_bootstrap_sets_up_no_openssl(place):
    """It reads OPENSSL_CONF when it does, and the script may set that first."""
    place.own(train="import sys\nprint('_hashlib' in sys.modules, '_ssl' in sys.modules)")
    assert place.warm("train") == (0, "False False\n", "", [])


def test_a_script_that_replaces_functions_of_json(place):
    """What we tell of it goes by Python's own; also that it starts afresh."""
    replace = "import json\njson.dumps = json.loads = lambda *a, **k: b'not a text'\n"
    change = "import os\nos.environ['MKL_CBWR'] = '1'\n"
    place.own(
        train=f"{replace}{change}import networkx\nprint('done')", steps=f"{replace}import phalanx\nphalanx.step(1)"
    )
    assert place.warm("steps") == (0, "", "", [])
    status, out, err, whys = place.warm("train", learnt=["networkx"])
    assert (status, out, err, len(whys)) == (0, "done\n", "", 1) and "MKL_CBWR" in whys[0]


# A life after another.


def test_what_is_imported_ahead_is_never_looked_through_for_garbage(place):
    """That would be a tenth of a first start."""
    text = """
        import gc
        looked_at = [0]
        gc.callbacks.append(lambda phase, _: looked_at.append(len(gc.get_objects())))
        kept = [[] for _ in range(200_000)]
        """
    place.library(torch__in____init__=textwrap.dedent(text) + textwrap.dedent(TORCH["torch__in____init__"]))
    place.own(script="import os\nos.getloadavg()\nimport torch\nprint(max(torch.looked_at) < len(torch.kept))")
    assert place.warm("script", learnt=["torch", "networkx", "sympy"]) == (0, "True\n", "", [])


def test_a_name_that_an_edited_script_takes_before_an_import(place):
    """What is imported then may change what stands there, and nobody has looked whether it does."""
    place.library(patches="import textwrap\ntextwrap.dedent = None")
    place.own(train="import textwrap, patches, os\nprint(os.name)")
    assert place.warm("train")[1] == "posix\n"
    place.own(train="import textwrap\ntaken = textwrap.dedent\nimport patches, os\nprint(taken is None)")
    why = "the script was edited, and takes textwrap.dedent now before it imports patches"
    assert place.again("train") == (0, "False\n", "", [why])


def test_a_name_that_an_edited_script_takes_behind_its_imports(place):
    place.own(train="import textwrap, os\nprint(os.name)")
    assert place.warm("train")[3] == []
    place.own(train="import textwrap, os\ntaken = textwrap.dedent\nprint(os.name)")
    assert place.again("train") == (0, "posix\n", "", [])


def test_a_folder_of_the_path_that_a_life_makes(place):
    """Python keeps that nothing was there when the zygote looked."""
    place.env["PYTHONPATH"] += ":" + str(place.folder / "made")
    place.agent.env.update(place.env)
    text = "import os, sympy\nos.makedirs('made', exist_ok=True)\nopen('made/fresh.py', 'w').write('X = 1')\n"
    place.own(train=text + "if os.environ['LIFE'] == '1':\n    import fresh\n    print(fresh.X)")
    assert place.warm("train", LIFE="0") == (0, "", "", [])
    assert place.again("train", LIFE="1") == (0, "1\n", "", [])


def test_an_archive_of_the_path_that_is_another_in_the_next_life(place):
    """Python keeps where its files begin."""
    place.env["PYTHONPATH"] += ":" + str(place.folder / "code.zip")
    place.agent.env.update(place.env)
    place.own(train="import sympy, os\nos.getloadavg()\nimport inner\nprint(inner.X)")
    for life, (start, said) in enumerate(((place.warm, "1"), (place.again, "two"))):
        with zipfile.ZipFile(place.folder / "code.zip", "w") as archive:
            if life == 1:
                archive.writestr("before.py", "#" * 1000)
            archive.writestr("inner.py", f"X = {said!r}")
        assert start("train") == (0, f"{said}\n", "", [])


# What imports leave in modules of the standard library.


TELL_LOGGERS = """
import logging
def tell(*names):
    for name in names:
        logger = logging.getLogger(name)
        print(name, logger.level, logger.disabled, logger.parent.name, logger.isEnabledFor(logging.INFO))
"""
MAKES_LOGGERS = "import logging\nlogging.getLogger('networkx.part.deep').setLevel(30)\nlogging.getLogger('networkx')\n"


@pytest.mark.parametrize(
    "between",
    [
        "print(sorted(logging.root.manager.loggerDict))",
        "import logging.config\nlogging.config.dictConfig({'version': 1, 'root': {'level': 'INFO'}})",
        "mine = logging.getLogger('networkx.part.mine')",
        "mine = logging.getLogger('networkx.part.deep.mine')\nlogging.root.setLevel(10)",
    ],
    ids=["names", "dictConfig", "a child", "a deeper child"],
)
def test_loggers_come_with_their_library(place, between):
    place.library(networkx=MAKES_LOGGERS, early="import logging\nlogging.getLogger('networkx.early')")
    after = "import networkx\ntell('networkx', 'networkx.part', 'networkx.part.deep', 'networkx.early')\n"
    after += "tell('networkx.part.mine', 'networkx.part.deep.mine')\nprint(sorted(logging.root.manager.loggerDict))"
    place.own(train=f"import early\n{TELL_LOGGERS}\n{between}\n{after}")
    assert place.warm("train", learnt=["networkx"]) == place.plain("train")


@pytest.mark.parametrize(
    "change, why",
    [
        ("logging.getLogger('networkx').setLevel(10)", "the script has asked for its logger networkx"),
        ("class Mine(logging.Logger): pass\nlogging.setLoggerClass(Mine)", "another class of loggers"),
    ],
)
def test_loggers_that_the_script_has_touched(place, change, why):
    place.library(networkx=MAKES_LOGGERS)
    place.own(
        train=f"{TELL_LOGGERS}\n{change}\nimport networkx\ntell('networkx')\nprint(type(logging.getLogger('networkx')))"
    )
    *told, whys = place.warm("train", learnt=["networkx"])
    assert tuple(told) == place.plain("train")[:3] and why in whys[0]


@pytest.mark.parametrize("between", ["logging.root.setLevel(10)", "logging.getLogger('own')"])
def test_loggers_of_torch_stand_where_they_would(place, between):
    """All at once, where the script has made none; else each by itself."""
    place.library(
        early="import logging\nfor name in ('lib.part', 'lib.deep.er', 'alone'): logging.getLogger(name)",
        torch__in__part="import logging\n"
        "for name in ('lib', 'lib.deep', 'torch.part.x', 'torch.part', 'alone.child'):\n"
        "    logging.getLogger(name).isEnabledFor(10)",
    )
    place.own(
        train=f"""
        import logging, early
        def tell():
            for name, logger in sorted(logging.root.manager.loggerDict.items()):
                if isinstance(logger, logging.PlaceHolder):
                    print(name, sorted(child.name for child in logger.loggerMap))
                elif not name.startswith("concurrent"):
                    print(name, logger.parent.name, logger.isEnabledFor(10))
        {between}
        tell()
        import torch.part
        tell()
        """
    )
    assert place.warm("train", learnt=["torch.part"]) == place.plain("train")


def test_loggers_of_torch_that_the_script_has_touched(place):
    """With torch comes all that there is, whatever was imported first."""
    place.library(torch__in__part="import logging\nlogging.getLogger('torch.part').setLevel(30)")
    text = "import logging\nlogging.getLogger('torch.part').setLevel(10)\nimport torch.part\n"
    text += "print(logging.getLogger('torch.part').level)"
    place.own(train=text)
    status, out, err, whys = place.warm("train", learnt=["sympy", "torch.part"])
    assert (status, out, err) == (0, "30\n", "") and "its logger torch.part" in whys[0]


def test_filters_of_warnings_come_with_their_library(place):
    """In front of those that the script has set before, and behind where they were put there."""
    place.library(
        networkx="import warnings\nclass Rank(UserWarning): pass\nwarnings.simplefilter('always', Rank)\n"
        "warnings.simplefilter('error', Rank, append=True)\ndef warn(): warnings.warn('rank', Rank)"
    )
    text = "import warnings\nwarnings.filterwarnings('ignore')\nprint(len(warnings.filters))\nimport networkx, sympy\n"
    text += "print([(entry[0], entry[2].__name__) for entry in warnings.filters])\nnetworkx.warn()\nnetworkx.warn()"
    place.own(train=text)
    expected = place.plain("train")
    assert expected[2].count("Rank: rank") == 2
    assert place.warm("train", learnt=["networkx", "sympy"]) == expected


def test_the_folder_of_temporary_files_is_chosen_by_the_script(place, tmp_path):
    """A late module that asks for it chooses it for the script only when that imports it."""
    place.library(torch__in__late="import tempfile\nFOUND = tempfile.gettempdir()")
    tell = (
        "import torch, os, tempfile, json\n{0}\nprint(tempfile.tempdir)\nimport torch.late\nprint(tempfile.tempdir)\n"
    )
    set_it = f"tempfile.tempdir = {str(tmp_path)!r}"
    place.own(sets=tell.format(set_it), leaves=tell.format("os.getloadavg()"))
    for script in ("sets", "leaves"):
        assert place.warm(script, learnt=["torch.late"]) == place.plain(script)


AT_THE_END = """
    import atexit, sys, threading
    def look(who):
        print(who, "torch" in sys.modules, "numpy" in sys.modules, flush=True)
    def behind():
        threading.main_thread().join()
        look("thread")
    def hook(*what):
        look("hook")
    atexit.register(look, "callback")
    threading.Thread(target=behind).start()
    sys.excepthook = hook
    """


@pytest.mark.parametrize("last", ["1 / 0", "sys.exit(3)", "pass"])
def test_who_looks_behind_the_scripts_end_finds_nothing_hidden(place, last):
    place.own(train=f"{textwrap.dedent(AT_THE_END)}{last}\nimport torch\n" if last != "pass" else AT_THE_END)
    assert place.warm("train", learnt=["torch", "numpy"]) == place.plain("train")


def test_an_import_behind_the_scripts_end(place):
    """In a callback: the life begins no other then."""
    hook = "sys.meta_path.append(type('Hook', (), {'find_spec': staticmethod(lambda *what: None)}))"
    place.own(train=f"import atexit, sys\n{hook}\natexit.register(lambda: print(__import__('torch').__name__))")
    status, out, err, whys = place.warm("train", learnt=["torch"])
    assert (status, out, whys) == (0, "torch\n", []) and "too late for this process" in err


LEAVES = """
    import copyreg, inspect, sys
    class Kept:
        pass
    def reduce(kept):
        return Kept, ()
    copyreg.pickle(Kept, reduce)
    def {0}(*what):
        pass
    inspect.{0} = {0}
    """
TORCH_LEAVES = textwrap.dedent(TORCH["torch__in____init__"]) + textwrap.dedent(LEAVES.format("getfile"))
TORCH_LEAVES += "sys._torch_started = True\n"
LOOKS = """
    import copyreg, inspect, sys
    def look():
        names = [name for name in vars(sys) if name.endswith("_started")]
        print(len(copyreg.dispatch_table), names, inspect.getfile.__module__, inspect.getdoc.__module__)
    look()
    """


@pytest.mark.parametrize(
    "imports", ["", "import torch", "import networkx", "import networkx, torch", "import torch.part"]
)
def test_what_hidden_libraries_leave_in_the_standard_library_comes_with_them(place, imports):
    place.library(torch__in____init__=TORCH_LEAVES, torch__in__part="", networkx=LEAVES.format("getdoc"))
    place.own(train=f"{textwrap.dedent(LOOKS)}{imports}\nlook()\n")
    plain = place.plain("train")
    assert plain[0] == 0 and place.warm("train", learnt=["torch", "networkx", "torch.part"]) == plain


def test_what_a_script_replaces_in_the_standard_library_as_torch_does(place):
    """It has done so before: Torch would have put its own in its place."""
    place.library(torch__in____init__=TORCH_LEAVES)
    place.own(train="import inspect\ninspect.getfile = len\nimport torch\nprint(inspect.getfile.__module__)")
    status, out, err, whys = place.warm("train", learnt=["torch"])
    assert (status, out, err) == (0, "torch\n", "") and "replaced inspect.getfile" in whys[0]
