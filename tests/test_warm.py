"""A worker forked from a warm interpreter is what a cold start would have made of the script, to the last detail."""

import copy
import os
import re
import signal
import subprocess
import sys

import pytest
from harness import WORKLOADS, Job, read_proc, wait_ends

ENVIRONMENT = {"PYTHONHASHSEED": "123", "LANG": "C.UTF-8", "CUDA_VISIBLE_DEVICES": ""}


def facts_of(job, *flags, env=ENVIRONMENT):
    if job.launcher == "torchrun":
        flags = ()
    node = job.standalone("facts.py", "one", "two words", flags=["--max-restarts=1", *flags], env=env)
    assert node.wait() == 0, job.story()
    assert len(job.found("atexit")) == 2
    return {event["rank"]: event for event in job.found("facts")}


def simplify(facts):
    """A copy without what differs between jobs by its nature."""
    facts = copy.deepcopy(facts)
    facts["process"].pop("cwd")
    # The same interpreter has several names in one folder; sys.prefix says which environment it is.
    facts["interpreter"]["executable"] = os.path.realpath(facts["interpreter"]["executable"])
    facts["process"]["cmdline"][0] = os.path.realpath(facts["process"]["cmdline"][0])
    # Older torches put a temporary folder there when they are imported, and that may be ahead of time.
    temporary = facts["environment"]["python"]["TMPDIR"]
    facts["interpreter"]["path"] = [p for p in facts["interpreter"]["path"] if os.path.dirname(p) != temporary]
    facts["environment"]["python"] = {
        name: value
        for name, value in facts["environment"]["python"].items()
        if name not in ("PHALANX_TEST_ID", "TMPDIR", "XDG_STATE_HOME", "TORCHELASTIC_USE_AGENT_STORE", "MASTER_ADDR")
        # The second: older torchruns do not set it; tests/test_run_basic.py looks at it.
        and name not in ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "TORCHELASTIC_SIGNALS_TO_HANDLE")
    }
    return facts


def differences(one, other, path=""):
    """["a.b: 1 != 2", ...]"""
    if isinstance(one, dict) and isinstance(other, dict):
        return [
            text
            for key in sorted({*one, *other})
            for text in differences(one.get(key), other.get(key), f"{path}.{key}")
        ]
    return [] if one == other else [f"{path[1:]}: {one} != {other}"]


def facts_under_torchrun(folder):
    job = Job(folder, "torchrun")
    try:
        return facts_of(job)
    finally:
        job.close()


def test_script_finds_what_torchrun_gives(make_job, tmp_path):
    """sys.*, __main__, signals, streams, descriptors, limits, threads, environment, process: all as in torchrun."""
    torchruns_facts = facts_under_torchrun(tmp_path)
    for flag in ("--warm", "--no-warm"):
        facts = facts_of(make_job(), flag)
        for rank in (0, 1):
            theirs, ours = (simplify(side[rank]["facts"]) for side in (torchruns_facts, facts))
            assert differences(theirs, ours) == [], flag
        draws = [event["draws"] for event in facts.values()]
        assert len(draws[0]) == len(draws[1]) > 0
        assert all(one != other for one, other in zip(*draws)), "ranks share a random state"


@pytest.fixture(scope="module")
def fake_cuda(tmp_path_factory):
    """A folder for LD_LIBRARY_PATH, of a CUDA driver that writes down whoever asks it: fake_cuda.c."""
    folder = tmp_path_factory.mktemp("cuda")
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        command = ["cc", "-shared", "-fPIC", "-O2", f"-Wl,-soname,{name}", "-o", folder / name]
        subprocess.run([*command, WORKLOADS.parent / "fake_cuda.c"], check=True)
    return folder


@pytest.mark.parametrize("flag", ["--warm", "--no-warm"])
def test_cuda_is_not_touched_before_the_script(job, fake_cuda, flag):
    """CUDA_VISIBLE_DEVICES that the script itself sets is early enough: nothing has asked for devices before."""
    script = job.folder / "visible.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(WORKLOADS)!r})\n"
        "import ctypes, os, torch\n"
        "os.environ['CUDA_VISIBLE_DEVICES'] = '0'\n"
        "from report import report\n"
        "cached = getattr(torch.cuda, '_cached_device_count', None)\n"
        "report('cuda', initialized=torch.cuda.is_initialized(), cached=cached, forked=torch.cuda._is_in_bad_fork())\n"
        "assert ctypes.CDLL('libcuda.so.1').cuInit(0) != 0 and torch.cuda.device_count() == 0\n"
    )
    log = job.folder / "cuda.log"
    node = job.standalone(
        script, nproc=1, flags=[flag], env={"LD_LIBRARY_PATH": str(fake_cuda), "FAKE_CUDA_LOG": str(log)}
    )
    assert node.wait() == 0, job.story()
    event = job.found("cuda")[0]
    assert (event["initialized"], event["cached"], event["forked"]) == (False, None, False)
    asked = [line.split() for line in log.read_text().splitlines()]
    assert ["cuInit", "0"] in asked
    assert {visible for _, visible in asked} == {"0"}, asked


@pytest.mark.parametrize("flag", ["--warm", "--no-warm"])
def test_multiprocessing(job, flag):
    """Classes and functions of the script pickle; fork, spawn, forkserver and DataLoaders work."""
    node = job.standalone("multi.py", nproc=1, flags=[flag])
    assert node.wait() == 0, job.story()
    assert job.found("pools")[0]["results"] == {"fork": 42, "spawn": 42, "forkserver": 42}
    assert [event["total"] for event in job.found("loader")] == [140.0, 140.0]


@pytest.mark.parametrize("flag", ["--warm", "--no-warm"])
def test_endings_look_like_pythons(job, flag):
    """Tracebacks, sys.exit texts and exit statuses are those of a plain `python script`, without a frame of ours. (What
    torch does at the end is compared by test_bootstrap_torch.py.)"""
    script = job.folder / "ending.py"
    script.write_text(
        "import sys\n\n\ndef inner():\n    raise ValueError('wrong')\n\n\n"
        "if sys.argv[1] == 'raise':\n    inner()\nsys.exit('good bye')\n"
    )
    for ending in ("raise", "exit"):
        plain = subprocess.run([sys.executable, "-u", script, ending], capture_output=True, text=True)
        logs = job.folder / f"logs-{ending}"
        flags = ["--max-restarts=0", "--redirects=3", f"--log-dir={logs}", flag]
        assert job.standalone(script, ending, nproc=1, flags=flags).wait() == 1, job.story()
        assert next(logs.glob("*/attempt_0/0/stderr.log")).read_text() == plain.stderr


def test_core_dumps_and_segv(job):
    """A warm worker's SIGSEGV is a SIGSEGV: no handler that was not asked for changes the status."""
    node = job.standalone("steps.py", "--steps=9", "--fault=0:0:import:segv", nproc=1, flags=["--max-restarts=0"])
    assert node.wait() == 1, job.story()
    assert "SIGSEGV" in node.stderr


def test_edited_script(job):
    """A script edited between two lives runs with its new text."""
    script = job.folder / "edited.py"
    text = (
        f"import sys; sys.path.insert(0, {str(WORKLOADS)!r})\n"
        "import signal\nfrom report import report\nreport('main', version=1)\nsignal.pause()\n"
    )
    script.write_text(text)
    node = job.standalone(script, nproc=1, flags=["--max-restarts=1"])
    job.wait_events("main", version=1)
    script.write_text(text.replace("version=1", "version=2").replace("signal.pause()", "signal.SIGINT"))
    os.kill(job.pid(rank=0, life=0), signal.SIGKILL)
    assert node.wait() == 0, job.story()
    assert [event["version"] for event in job.found("main")] == [1, 2]


def zygotes(job):
    return [pid for pid in job.processes() if b"zygote.py" in read_proc(pid, "cmdline")]


def test_zygote_killed(job):
    """Workers do not need the zygote: it dies, they train on; a later death is mended all the same."""
    node = job.standalone("steps.py", flags=["--max-restarts=3"])
    job.wait_stepping(life=0, world=2)
    found = zygotes(job)
    assert found, "no zygote is there"
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    assert wait_ends(found, 60) == []
    steps = len(job.found("step"))
    job.wait(lambda _: len(job.found("step")) >= steps + 2, "further steps")
    os.kill(job.pid(rank=1, life=0), signal.SIGKILL)
    job.wait_stepping(life=1, world=2)
    job.stop()
    assert node.wait() == 0, job.story()
    assert sorted(job.lives()) == [0, 1]


def test_module_names_of_the_scripts_folder(job):
    """Files beside the script named like modules torch looks for (torch._dynamo asks for `tree`) do no harm."""
    (job.folder / "tree.py").write_text("LEAVES = 3\n")
    script = job.folder / "script.py"
    script.write_text(
        f"import sys; sys.path.append({str(WORKLOADS)!r})\n"
        "import torch, tree\nfrom report import report\n"
        "torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1).step()\nreport('main', leaves=tree.LEAVES)\n"
    )
    node = job.standalone(script, nproc=1, flags=["--max-restarts=0"])
    assert node.wait() == 0, job.story()
    assert job.found("main")[0]["leaves"] == 3


def test_preload_that_fails(job):
    """A module that breaks the preloading process, time and again, costs a warning, not the job: ranks start cold."""
    library = job.folder.parent / "site-packages"  # by its name no code of the user's own
    library.mkdir()
    (library / "touchy.py").write_text("import os, sys\nif type(sys.argv) is not list: os._exit(9)\n")
    script = job.folder / "script.py"
    script.write_text(
        f"import touchy\nimport sys; sys.path.insert(0, {str(WORKLOADS)!r})\n"
        "from report import report\nreport('main')\n"
    )
    node = job.standalone(script, env={"PYTHONPATH": str(library)}, flags=["--max-restarts=0"])
    assert node.wait() == 0, job.story()
    assert len(job.found("main")) == 2
    told = [line for line in node.stderr.splitlines() if "warm start" in line]
    why = "the process that spares come from does not live: ended with exit code 9"
    assert told == [f"phalanx-run: warm start is off: {why}"], job.story()


def test_cold_worker_restarts(job):
    """--no-warm keeps no spare and no zygote, and restarts all the same."""
    node = job.standalone("light_steps.py", flags=["--no-warm", "--max-restarts=1"])
    job.wait_stepping(life=0, world=2)
    assert zygotes(job) == []
    os.kill(job.pid(rank=1, life=0), signal.SIGKILL)
    job.wait_stepping(life=1, world=2)
    job.stop()
    assert node.wait() == 0, job.story()


def test_spares_wait_and_end_with_the_job(job):
    """--spares=1 keeps one spare; a restart uses it. When the job ends no spare is left."""
    node = job.standalone("light_steps.py", flags=["--spares=1", "--max-restarts=1"])
    job.wait_stepping(life=0, world=2)
    os.kill(job.pid(rank=0, life=0), signal.SIGKILL)
    job.wait_stepping(life=1, world=2)
    node.wait_line("restarted from a warm spare")
    waiting = zygotes(job)  # a spare has its zygote's command line until it is a rank
    assert waiting, "neither zygote nor spare"
    job.stop()
    assert node.wait() == 0, job.story()
    assert wait_ends(waiting, 60) == []  # the last of them may still be giving its memory back


@pytest.mark.parametrize("locale", [{"LANG": "C.UTF-8"}, {"LANG": ""}], ids=["a locale", "none"])
def test_what_a_launch_learns_the_next_has_at_its_first_line(job, locale):
    """No reading of the script shows what it imports by a name that it makes. A standalone run has another job id each
    time. networkx is one of the libraries that do not care what a script does before."""
    library = job.folder.parent / "site-packages"
    library.mkdir()
    (library / "networkx.py").write_text("known = 'zygote.py' in open('/proc/self/cmdline').read()\n")
    script = job.folder / "late.py"
    # Written at once: print() writes its end by itself, and two ranks' may mix.
    tell = "sys.stdout.write(f\"{importlib.import_module('networkx').known} \")"
    script.write_text(f"import importlib, phalanx, sys\n{tell}\nphalanx.step(1)\n")
    for expected in ("False " * 2, "True " * 2):
        node = job.standalone(script, env={**locale, "PYTHONPATH": str(library)})
        assert node.wait() == 0, job.story()
        assert node.stdout == expected, job.story()
        assert "afresh" not in node.stderr


def test_step_of_a_script_that_tells_it(job):
    """From the second life on the line names the script's own step: it has told one before."""
    script = job.folder / "tells.py"
    script.write_text(
        "import os, phalanx, torch\n"
        "weight = torch.zeros(1, requires_grad=True)\n"
        "optimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "for step in range(118, 121):\n"
        "    weight.grad = torch.ones(1)\n"
        "    optimizer.step()\n"
        "    phalanx.step(step)\n"
        "os._exit(5 if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' else 0)\n"
    )
    node = job.standalone(script, nproc=1, flags=["--max-restarts=1"])
    assert node.wait() == 0, job.story()
    assert re.search(r"restarted from a warm spare in \d+ ms, world 1, step 118\n", node.stderr), job.story()
