"""A spare that is told to check: it is `python -m phalanx.node_check`, with the torch that its zygote has imported."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from harness import read_proc, stat_fields
from node_check_agent import PYTHON, Helper, Told, end, has_ended, value_of
from zygote_agent import Agent

torch = pytest.importorskip("torch")

IN_PREFIX = "import torch\n"
HIDDEN = "print('first')\nimport torch\n"
SET_BEFORE = "import os\nos.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'max_split_size_mb:64'\nimport torch\n"
# What other programs see of this one, and of the process that carries out its order.
PROGRAM = """
    #!{python}
    import json, os
    values = [{{"name": "threads", "unit": "", "value": THREADS, "better": ""}}]
    with open("/proc/%d/status" % os.getppid()) as file:
        (line,) = [line for line in file if line.startswith("Threads:")]
    values[0]["value"] = int(line.split()[1])
    sentence = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "not set")
    print(json.dumps({{"passed": True, "sentence": sentence, "values": values}}))
"""
_START_OF_STACK = 27 - 3  # of /proc/<pid>/stat, behind the name


def is_fork_of(pid, zygote):
    """Whether it has the zygote's memory: a program that was executed has its stack at another place."""
    return stat_fields(pid)[_START_OF_STACK] == stat_fields(zygote)[_START_OF_STACK]


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "look"
    path.write_text(textwrap.dedent(PROGRAM.replace("THREADS", "0")).lstrip().format(python=sys.executable))
    path.chmod(0o755)
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A script's, with modules of its own by the names of the program's."""
    folder = tmp_path_factory.mktemp("script")
    for name in ("helper", "loading", "checks", "texts"):
        (folder / f"{name}.py").write_text("raise SystemExit('a module of the script')\n")
    return folder


@pytest.fixture(scope="module", params=[IN_PREFIX, HIDDEN, SET_BEFORE], ids=["in prefix", "hidden", "set before"])
def zygote(request, folder):
    """(an agent, its zygote's pid); the zygote has imported torch with one thread."""
    (folder / "train.py").write_text(request.param)
    with Agent(cwd=str(folder), env={"PYTHONPATH": ""}) as agent:
        env = {**agent.env, "OMP_NUM_THREADS": "1"}
        ready = agent.start_zygote(folder / "train.py", cwd=folder, env=env)
        assert ready["type"] == "ready", ready
        yield agent, ready["pid"]


def given(agent):
    return {name: value for name, value in agent.env.items() if name != "OMP_NUM_THREADS"}


def test_it_is_the_program_and_has_the_zygotes_torch(zygote, program):
    agent, zygote_pid = zygote
    with Helper.of_spare(agent.fork(), given(agent)) as helper:
        pid = helper.process.pid
        assert helper.ready == {"type": "ready", "torch": torch.__version__.partition("+")[0]}
        assert is_fork_of(pid, zygote_pid)
        words = [word for word in read_proc(pid, "cmdline").split(b"\0") if word]
        assert words[-3:] == [b"-u", b"-m", b"phalanx.node_check"]
        assert os.getsid(pid) == os.getpgid(pid) == pid
        assert b"SigBlk:\t0000000000000000\n" in read_proc(pid, "status")
        assert b"Threads:\t1\n" in read_proc(pid, "status")
        streams = [os.readlink(f"/proc/{pid}/fd/{number}") for number in range(3)]
        assert streams[0] == os.devnull and streams[1] == streams[2]
        # Orders, reports, and the two ends of the pipe by which it hears of signals.
        rest = [
            os.readlink(f"/proc/{pid}/fd/{number}") for number in map(int, os.listdir(f"/proc/{pid}/fd")) if number > 2
        ]
        assert len(rest) == 4 and len(set(rest)) == 3 and all(name.startswith("pipe:") for name in rest)
        results, ended = helper.carry_out(programs=[program])
        assert ended == ""
        assert {results[check]["outcome"] for check in ("matmul", "memory_bandwidth", "loopback")} == {"passed"}
        # What the script sets before it imports torch is the script's alone.
        assert results["look"]["sentence"] == "not set"
    assert helper.process.wait() == 0


def test_an_order_has_threads_of_its_own_number(zygote, program):
    """Ranks are told to use one each where there are several, which the zygote has heard: a node that is checked by a
    fork would look slower than one that is not."""
    agent, _ = zygote
    with Helper.of_spare(agent.fork(), {**given(agent), "OMP_NUM_THREADS": "3", "MKL_DYNAMIC": "FALSE"}) as helper:
        # And those of a pool that torch begins when it is told a number.
        assert value_of(helper.carry_out(programs=[program])[0]["look"], "threads") >= 3
        assert b"Threads:\t1\n" in read_proc(helper.process.pid, "status")


@pytest.mark.parametrize("number", ["", "1", "3"])
def test_threads_are_counted_as_by_a_fresh_torch(number):
    counted = "import os, torch\n{}\nprint(torch.get_num_threads())"
    anew = f"from phalanx._bootstrap import threads\nos.environ['OMP_NUM_THREADS'] = {number!r}\nthreads.count_anew()"
    assert output(counted.format(anew), "1") == output(counted.format(""), number)


def output(text, number):
    env = {**os.environ, "PYTHONPATH": PYTHON, "OMP_NUM_THREADS": number}
    return subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, check=True).stdout


def test_two_meet(zygote):
    """One that was forked, and one that was not."""
    agent, _ = zygote
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    fields = {"kind": "pair", "group_size": 2, "store": ["127.0.0.1", store.port]}
    with Helper.of_spare(agent.fork(), given(agent)) as forked, Helper() as fresh:
        forked.order(group_rank=0, address="127.0.0.2", **fields)
        fresh.order(group_rank=1, address="127.0.0.3", **fields)
        for helper in (forked, fresh):
            results, ended = helper.results()
            assert ended == "" and {each["outcome"] for each in results.values()} == {"passed"}, results


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_it_hears_signals(zygote, number):
    """Which its zygote does not."""
    agent, _ = zygote
    with Helper.of_spare(agent.fork(), given(agent)) as helper:
        helper.process.send_signal(number)
        assert helper.line() is None and helper.process.wait() == 0


def test_what_runs_dies_with_it(zygote, tmp_path):
    agent, _ = zygote
    told = Told(str(tmp_path / "told"))
    path = tmp_path / "waits"
    path.write_text(
        f"#!{sys.executable}\nimport os, time\n"
        f"open({told.path!r}, 'w').write('%d\\n' % os.getpid())\ntime.sleep(1000)\n"
    )
    path.chmod(0o755)
    with Helper.of_spare(agent.fork(), given(agent)) as helper:
        helper.order(programs=[str(path)])
        running = told.pidfd()
        end(helper, signal.SIGKILL)
        assert has_ended(running, within_s=60)
    os.close(running)
    told.close()


def test_without_torch_it_executes_the_program(tmp_path):
    (tmp_path / "train.py").write_text("import json\n")
    with Agent() as agent:
        zygote_pid = agent.start_zygote(tmp_path / "train.py", cwd=tmp_path)["pid"]
        worker = agent.fork()
        with Helper.of_spare(worker, agent.env) as helper:
            assert helper.process.pid == worker.pid and not is_fork_of(worker.pid, zygote_pid)
            assert helper.ready["torch"] == torch.__version__.partition("+")[0]
            assert helper.carry_out()[1] == ""
        assert helper.process.wait() == 0


def test_where_its_torch_would_be_another_it_executes_the_program(tmp_path):
    """As a rank begins anew then."""
    (tmp_path / "train.py").write_text(HIDDEN)
    with Agent() as agent:
        zygote_pid = agent.start_zygote(tmp_path / "train.py", cwd=tmp_path)["pid"]
        env = {**agent.env, "TORCH_LOGS": "+dynamo"}
        with Helper.of_spare(agent.fork(), env) as helper:
            assert not is_fork_of(helper.process.pid, zygote_pid)
            assert json.dumps(helper.ready["torch"]) != "null"


def test_a_cold_worker_checks_nothing():
    """It has no torch to give, and the agent does not ask it."""
    with Agent() as agent:
        worker = agent.cold()
        worker.peer.send({"type": "check", "env": agent.env}, [0, 1, 2])
        assert worker.wait() == 0
