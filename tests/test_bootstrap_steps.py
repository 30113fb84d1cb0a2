"""What torch imports late comes when the script comes to it, and not with `import torch`."""

import subprocess
import sys
import textwrap

import pytest
from harness import clean_environment, command_path
from test_bootstrap_late import TORCH
from test_bootstrap_late import place as place  # the fixture
from zygote_agent import BASE_ENV, Agent

LATE = {
    "torch__in__first": "import os\nSAW = os.environ.get('FIRST')",
    "torch__in__second": "import os\nfrom torch import first\nSAW = os.environ.get('SECOND')",
    "torch__in__distributed": "there = []\ndef is_initialized(): return bool(there)",
}
LEARNT = ["torch.distributed", "torch.first", "torch.second"]
TELL = """
    import os, sys
    def tell():
        import torch
        there = [name for name in ("first", "second") if f"torch.{name}" in sys.modules]
        print(there, [name for name in ("first", "second") if hasattr(torch, name)])
    def saw():
        from torch import first, second
        print(first.SAW, second.SAW)
    """


@pytest.fixture
def steps(place):
    place.library(**LATE)
    place.own(tell=TELL)
    return place


@pytest.mark.parametrize("torch", ["in the prefix", "behind it"])
@pytest.mark.parametrize("then", ["", "import torch.first", "import torch.second", "import torch.second, torch.first"])
def test_each_part_comes_with_its_step(steps, torch, then):
    begin = "import os\nos.getloadavg()\n" if torch == "behind it" else ""
    text = f"{begin}import torch\nimport tell\ntell.tell()\n{then}\ntell.tell()\ntell.saw()\n"
    steps.own(train=text)
    assert steps.warm("train", learnt=LEARNT) == steps.plain("train")


SETS = {
    "sets it": "os.environ['SECOND'] = str(2)",
    "updates": "os.environ.update(SECOND=str(2))",
    "sets a default": "os.environ.setdefault('SECOND', str(2))",
}


@pytest.mark.parametrize("torch", ["in the prefix", "behind it"])
@pytest.mark.parametrize("how", SETS)
def test_a_variable_that_a_part_has_read(steps, torch, how):
    """The life begins anew where the variable is set: at the import itself others may wait for it in a collective."""
    begin = "import os\nos.getloadavg()\n" if torch == "behind it" else ""
    steps.own(train=f"{begin}import torch\nimport tell, os\nprint('life')\n{SETS[how]}\nprint('set')\ntell.saw()\n")
    status, out, err, whys = steps.warm("train", learnt=LEARNT)
    expected = steps.plain("train")
    assert (status, err) == (expected[0], expected[2]) and out == "life\n" + expected[1]
    assert whys == ["what torch imports late has read SECOND, which the script has changed"]
    warm = steps.warm("train", learnt=LEARNT, deny=["phalanx.late.parts"])
    assert warm == expected, "of the next zygote no life begins anew"


def test_what_is_left_to_be_imported_anew_is_said_to_the_agent(steps):
    steps.own(train="import torch, os\nos.environ['SECOND'] = str(2)\nimport torch.second\n")
    steps.agent.start_zygote(steps.folder / "train.py", cwd=steps.folder, learnt=LEARNT)
    worker = steps.agent.fork().run(steps.folder / "train.py", cwd=steps.folder, env=steps.env)
    denied = [message["deny"] for message in worker.messages() if "deny" in message]
    assert worker.wait() == 0 and denied == ["phalanx.late.parts"]


def test_a_variable_that_another_library_has_read(steps):
    """Nobody knows whether the script will come to it."""
    steps.library(networkx="import os\nSAW = os.environ.get('THIRD')")
    steps.own(train="import torch, os\nprint('life')\nos.environ['THIRD'] = '3'\nimport torch.first\n")
    assert steps.warm("train", learnt=[*LEARNT, "networkx"]) == steps.plain("train")


def test_a_variable_that_stays_what_it_was(steps):
    steps.own(
        train="import torch, os\nos.environ.pop('SECOND', 0)\nos.environ['THIRD'] = '3'\nimport tell\ntell.saw()\n"
    )
    assert steps.warm("train", learnt=LEARNT) == steps.plain("train")


def test_a_variable_that_only_what_has_come_has_read(steps):
    """It keeps what it saw, as under plain Python."""
    steps.own(
        train="import os\nos.getloadavg()\nimport torch.first\nos.environ['FIRST'] = '1'\nimport tell\ntell.saw()"
    )
    assert steps.warm("train", learnt=LEARNT) == steps.plain("train")


@pytest.mark.parametrize("how", ["os.environ['SECOND'] = '2'", "os.putenv('SECOND', '2')"])
def test_who_has_a_process_group_goes_on(steps, how):
    """Others would meet another process in the middle of a collective."""
    begin = "import torch.distributed, os\ntorch.distributed.there.append(1)\nprint('life')\n"
    steps.own(train=f"{begin}{how}\nimport tell\ntell.saw()")
    steps.agent.start_zygote(steps.folder / "train.py", cwd=steps.folder, learnt=LEARNT)
    worker = steps.agent.fork().run(steps.folder / "train.py", cwd=steps.folder, env=steps.env)
    messages = worker.messages()
    status, out, err = worker.result()
    assert (status, out) == (0, "life\nNone None\n")
    if "putenv" in how:  # os.environ does not show it, to the script or to what it imports
        assert err == "" and [message for message in messages if "deny" in message] == []
        return
    assert err == (
        "phalanx: torch was imported ahead of its turn, but it has read SECOND, which the script has changed since: "
        "too late for this process, which cannot begin anew\n"
    )
    assert [message.get("deny") for message in messages] == [None, "phalanx.late.parts"]
    assert [message for message in messages if "cold" in message] == []


def test_what_scripts_do_behind_torch_is_no_reason_to_begin_anew(steps):
    """Filters, hooks and functions of others: they do not change what torch's late parts are."""
    text = """
        import os
        os.getloadavg()
        import torch
        import sys, warnings, logging, time
        class Hook:
            def find_spec(self, name, path=None, target=None): return None
        sys.meta_path.insert(0, Hook())
        warnings.simplefilter("always")
        time.sleep = print
        import tell
        tell.saw()
        """
    steps.own(train=text)
    assert steps.warm("train", learnt=LEARNT) == steps.plain("train")


# A part that replaces a function of torch's, and others.
WRAPS = {
    "torch__in__wraps": """
        import torch, numpy.part
        plain = torch.draw
        def draw(): return plain() + 1
        torch.draw = draw
        """,
    "torch__in____init__": TORCH["torch__in____init__"] + "\n        def draw(): return 1\n        plain = draw\n",
    "torch__in__last": "",
    "numpy__in__part": "",
}
# A script behind which torch's late parts come, and modules of its libraries.
SAME = {
    "a logger whose level is set before its module comes": (
        "import torch, logging\nlogging.getLogger('torch.makes').setLevel(40)\nfrom torch import makes\n"
        "print(makes.LOG is logging.getLogger('torch.makes'), makes.LOG.level)",
        {"torch__in__makes": "import logging\nLOG = logging.getLogger('torch.makes')"},
    ),
    "a logger that is set in a group": (
        "import torch.distributed, logging\ntorch.distributed.there.append(1)\n"
        "logging.getLogger('sympy').setLevel(40)\nimport torch.uses\nprint('on')",
        {"torch__in__uses": "import sympy", "sympy": "import logging\nlogging.getLogger('sympy')"},
    ),
    "what a part sets and the script has set in a group": (
        "import torch.distributed, os\ntorch.distributed.there.append(1)\nos.environ['CACHE'] = 'mine'\n"
        "import torch.sets\nprint(os.environ['CACHE'])",
        {"torch__in__sets": "import os\nos.environ.setdefault('CACHE', 'torch')"},
    ),
    "what a part sets to come": (
        "import torch, os\nos.environ.setdefault('OTHER', 'mine')\nimport torch.sets\nprint(os.environ['OTHER'])",
        {"torch__in__sets": "import os\nos.environ['OTHER'] = os.environ.get('NOBODY', 'torch')"},
    ),
    "what a part says": (
        "import torch\nprint('begins')\nimport torch.says\nprint('ends')",
        {"torch__in__says": "print('comes')"},
    ),
    "a stub of the script's in a group": (
        "import torch.distributed, sys\ntorch.distributed.there.append(1)\nsys.modules['sympy'] = None\n"
        "import torch.uses\nprint(sys.modules['sympy'])",
        {"torch__in__uses": "try: import sympy\nexcept ImportError: pass"},
    ),
    "a need of a package that was laid aside before its module": (
        "import torch.c\nprint(torch.c.b.X)\nprint(torch.a.b is torch.c.b)",
        {"torch__in__a__in____init__": "", "torch__in__a__in__b": "X = 1", "torch__in__c": "from torch.a import b"},
    ),
    "a need that another step has imported again": (
        "import networkx, sys\nprint('mpmath' in sys.modules)\nimport torch.needs",
        {"networkx": "from mpmath import VERSION", "mpmath": "VERSION = '1'", "torch__in__needs": "import mpmath"},
    ),
    "stderr that the script has closed in a group": (
        "import torch.distributed, os\ntorch.distributed.there.append(1)\nos.close(2)\nos.environ['SECOND'] = '2'\n"
        "import torch.second\nprint('on')",
        {},
    ),
    "a child that sets a variable of its own": (
        "import torch, os, sys\nchild = os.fork()\nif child == 0:\n    os.environ['FIRST'] = '1'\n    os.close(2)\n"
        "    import torch.first\n    os._exit(7)\nprint(os.waitpid(child, 0)[1])",
        {},
    ),
    "a function that a part replaces": (
        "import torch\nprint(torch.draw(), torch.draw is torch.plain)\nimport torch.wraps\n"
        "print(torch.draw(), torch.draw is torch.plain)",
        WRAPS,
    ),
    "a part that has nothing to do with one that replaces": (
        "import torch.wraps\nprint(torch.draw is torch.plain)\nimport torch.last\nprint(torch.draw is torch.plain)",
        WRAPS,
    ),
    "a part of NumPy's that came with one that replaces": (
        "import torch, numpy\nprint(torch.draw is torch.plain)\nimport numpy.part\nprint(torch.draw is torch.plain)\n"
        "import torch.wraps\nprint(torch.draw is torch.plain)",
        WRAPS,
    ),
    "a part of NumPy's that a child imports": (
        "import torch, numpy, os, warnings\nwarnings.simplefilter('always')\nchild = os.fork()\nif child == 0:\n"
        "    import numpy.part\n    print('on', flush=True)\n    os._exit(0)\nprint(os.waitpid(child, 0)[1])",
        WRAPS,
    ),
    "the folder for temporary files, which a part asks for": (
        "import torch, tempfile\nprint(tempfile.tempdir)\nimport torch.first\nprint(tempfile.tempdir)\n"
        "import torch.second\nprint(tempfile.tempdir)",
        {"torch__in__second": "import tempfile\ntempfile.gettempdir()"},
    ),
    "a variable of a library that comes with a part": (
        "import torch, os\nos.environ['SYMPY_X'] = 'own'\nimport sympy\nprint(sympy.SAW)",
        {"sympy": "import os\nSAW = os.environ.get('SYMPY_X')", "torch__in__uses": "import sympy"},
    ),
}
STEPS = (
    "torch.distributed torch.first torch.second torch.makes torch.uses torch.sets torch.says torch.wraps torch.last "
    "torch.a torch.a.b torch.c"
)
STEPS += " networkx torch.needs"


@pytest.mark.parametrize("torch", ["in the prefix", "behind it"])
@pytest.mark.parametrize("case", SAME)
def test_what_the_script_sees(steps, torch, case):
    text, modules = SAME[case]
    steps.library(**modules)
    steps.own(train=("import os\nos.getloadavg()\n" if torch == "behind it" else "") + text)
    status, out = steps.plain("train")[:2]
    warm = steps.warm("train", learnt=STEPS.split())
    # A life that began anew has said twice what it said until then.
    assert warm[0] == status and warm[1][-len(out) :] == out
    assert "Traceback" not in warm[2] and (warm[3] == [] or case.startswith("a variable of a library")), warm


def test_a_function_that_a_part_replaces_and_the_script_has_replaced(steps):
    """The part would have wrapped the script's: it is imported anew."""
    steps.library(
        torch__in__wraps="import torch\nplain = torch.get_num_threads\ntorch.get_num_threads = lambda: plain() + 1"
    )
    steps.own(
        train="import torch\ntorch.get_num_threads = lambda: 7\nimport torch.wraps\nprint(torch.get_num_threads())\n"
    )
    *told, whys = steps.warm("train", learnt=STEPS.split())
    assert tuple(told) == steps.plain("train")[:3] == (0, "8\n", "")
    assert len(whys) == 1 and "the script has replaced torch.get_num_threads" in whys[0]


def test_parts_that_are_left_out_begin_no_life_anew(steps):
    """Nor what the zygote would have imported beside them."""
    steps.library(torch__in__uses="import sympy")
    steps.own(train="import torch, warnings\nprint('life')\nwarnings.simplefilter('always')\nimport torch.uses\n")
    assert steps.warm("train", learnt=STEPS.split(), deny=["phalanx.late.parts"]) == steps.plain("train")


def test_torch_is_there_where_its_parts_are_left_out(steps):
    """Also where only a life before has told of it; and what is no part of it."""
    steps.library(networkx="import os\nPID = os.getpid()", torch__in__first="import os\nPID = os.getpid()")
    steps.own(
        train="import os\nos.chdir('.')\nimport torch, networkx\nfrom torch import first\n"
        "print(networkx.PID == os.getpid(), first.PID == os.getpid())\n"
    )
    told = steps.warm("train", learnt=["torch", *STEPS.split()], deny=["phalanx.late.parts"])
    assert told == (0, "False True\n", "", [])


def test_who_has_trained_does_not_begin_anew(steps):
    """Its peers are elsewhere, or what it has done took hours."""
    begin = "import torch, phalanx, os\nprint('life')\nphalanx.step(1)\n"
    steps.own(train=f"{begin}os.environ['SECOND'] = '2'\nimport torch.second\n")
    status, out, err, whys = steps.warm("train", learnt=LEARNT)
    assert (status, out, whys) == (0, "life\n", []) and err.count("which cannot begin anew") == 1


def test_a_name_that_is_none_of_a_file(steps):
    steps.library(asks="import os\nos.path.exists('/a\\0b/c')")
    steps.own(train="import asks\nprint('on')\n")
    steps.agent.start_zygote(steps.folder / "train.py", cwd=steps.folder)
    worker = steps.agent.fork(ahead=True).run(steps.folder / "train.py", cwd=steps.folder, env=steps.env)
    assert worker.result() == (0, "on\n", "")


REAL = """
    {begin}
    import torch
    import sys
    TOPS = ("torch", "functorch", "torchgen", "sympy", "mpmath", "triton", "networkx")
    def tell():
        print(sorted(name for name in sys.modules if name.partition(".")[0] in TOPS))
        for name in ("torch", "torch.distributed", "torch.nn", "torch.fx", "torch.utils", "torch._functorch"):
            module = sys.modules[name]
            children = [key for key, value in vars(module).items() if type(value) is type(sys)]
            print(name, sorted(key for key in children if f"{{name}}.{{key}}" in sys.modules))
    tell()
    {then}
    tell()
    """
THEN = {
    "an optimizer": "torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)",
    "its tensors of many": "import torch.distributed.tensor",
    "nothing": "",
}
BEHIND = "import os; os.getloadavg()"


@pytest.mark.parametrize(
    ("then", "begin"),
    [
        *(pytest.param(then, "", id=f"{then}-prefix") for then in THEN),
        *(
            pytest.param(then, BEHIND, id=f"{then}-behind", marks=pytest.mark.long)
            for then in THEN
            if then != "an optimizer"
        ),
        pytest.param("an optimizer", BEHIND, id="an optimizer-behind"),
    ],
)
def test_torch_itself(tmp_path, begin, then):
    """Its modules, and those that packages of it have by name, are those of plain Python, then and later."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(REAL).format(begin=begin, then=THEN[then]))
    done = subprocess.run([sys.executable, script], cwd=tmp_path, env=BASE_ENV, capture_output=True, text=True)
    with Agent(cwd=tmp_path) as agent:
        agent.start_zygote(script, cwd=tmp_path, learnt=["torch"])
        worker = agent.fork().run(script, cwd=tmp_path)
        whys = [message["cold"] for message in worker.messages() if "cold" in message]
        status, out, err = worker.result()
    assert (status, err, whys) == (done.returncode, done.stderr, [])
    assert out.split("\n") == done.stdout.split("\n")


def test_a_variable_of_the_compiler_that_is_set_behind_torch(tmp_path):
    """torch._inductor.config reads it when the first optimizer comes."""
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, os\nos.environ['TORCHINDUCTOR_MAX_AUTOTUNE'] = str(1)\n"
        "torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)\n"
        "import torch._inductor.config\nprint(torch._inductor.config.max_autotune)\n"
    )
    with Agent(cwd=tmp_path) as agent:
        agent.start_zygote(script, cwd=tmp_path, learnt=["torch"])
        worker = agent.fork().run(script, cwd=tmp_path)
        assert worker.result()[:2] == (0, "True\n")


def test_seeds_that_are_set_behind_torch(tmp_path):
    """torch._dynamo replaces torch.manual_seed when it comes; the script calls the one that it would."""
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, os, sys\nprint(torch.manual_seed is torch.random.manual_seed)\ntorch.manual_seed(1)\n"
        "print('torch._dynamo' in sys.modules)\nos.environ['TORCHINDUCTOR_MAX_AUTOTUNE'] = str(1)\n"
        "torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)\n"
        "import torch._inductor.config\nprint(torch._inductor.config.max_autotune, 'torch._dynamo' in sys.modules)\n"
        "print(torch.manual_seed is torch.random.manual_seed, torch.rand(1))\n"
    )
    done = subprocess.run([sys.executable, script], cwd=tmp_path, env=BASE_ENV, capture_output=True, text=True)
    with Agent(cwd=tmp_path) as agent:
        agent.start_zygote(script, cwd=tmp_path, learnt=["torch"])
        worker = agent.fork().run(script, cwd=tmp_path)
        status, out, err = worker.result()
    assert (status, out[-len(done.stdout) :], err) == (0, done.stdout, done.stderr)


def test_processors_that_the_compiler_may_use(tmp_path):
    """It counts them when its part comes: behind `import torch` the script may have chosen some."""
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, os\nos.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
        "import torch._inductor.config\nprint(torch._inductor.config.compile_threads)\n"
    )
    done = subprocess.run([sys.executable, script], cwd=tmp_path, env=BASE_ENV, capture_output=True, text=True)
    with Agent(cwd=tmp_path) as agent:
        agent.start_zygote(script, cwd=tmp_path, learnt=["torch"])
        assert agent.fork().run(script, cwd=tmp_path).result() == (0, done.stdout, done.stderr)


def test_a_variable_that_is_set_in_a_group_is_seen_by_the_next_launch(tmp_path):
    """By phalanx-run, which keeps what the life has told of."""
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, os\nimport torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "os.environ['TORCHINDUCTOR_MAX_AUTOTUNE'] = str(1)\n"
        "torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)\n"
        "import torch._inductor.config\nprint('autotune', torch._inductor.config.max_autotune)\n"
        "dist.destroy_process_group()\n"
    )
    said = []
    for _ in range(2):
        command = [command_path("phalanx-run"), "--standalone", "--nproc-per-node=1", script]
        environment = {**clean_environment(), "XDG_STATE_HOME": str(tmp_path / "state")}
        said.append(subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100))
    first, second = said
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "autotune False" in first.stdout and "autotune True" in second.stdout
    assert first.stderr.count("too late for this process, which cannot begin anew") == 1, first.stderr
    assert "too late" not in second.stderr and "afresh" not in second.stderr, second.stderr


def test_a_library_that_cython_has_made_before_torch(tmp_path):
    """It puts two names into sys.modules that others of its kind share, and torch imports some."""
    yaml = pytest.importorskip("yaml")
    assert yaml.__with_libyaml__
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\nos.environ['TOKENIZERS_PARALLELISM'] = 'false'\nprint(sys.argv)\nimport yaml\nimport torch\n"
        "print(yaml.load('a: [1, 2]', yaml.CSafeLoader), torch.ones(2))\n"
        "print(sorted(name for name in sys.modules if 'cython' in name))\n"
    )
    plain = subprocess.run([sys.executable, script], cwd=tmp_path, env=BASE_ENV, capture_output=True, text=True)
    with Agent(cwd=tmp_path) as agent:
        agent.start_zygote(script, cwd=tmp_path, learnt=["torch"])
        worker = agent.fork().run(script, cwd=tmp_path)
        whys = [message["cold"] for message in worker.messages() if "cold" in message]
        status, out, err = worker.result()
    assert (status, out, err, whys) == (0, plain.stdout, plain.stderr, []), plain.stderr
