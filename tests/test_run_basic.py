"""What a command line means: script, arguments, modules, programs, PET_* variables, worker counts, exit codes."""

import os
import re
import signal
import sys

import pytest
from harness import WORKLOADS, command_path, read_proc

dropin = pytest.mark.dropin


def told(job, count):
    """What the ranks told, by rank."""
    return {event["rank"]: event for event in job.wait_events("told", count)}


@dropin
def test_script_and_its_arguments(job):
    """Everything after the script is the script's, launcher's flags included; ${local_rank} is filled in."""
    node = job.standalone(
        "tell.py", "--lr", "0.1", "--nproc-per-node", "7", "--out=${local_rank}.txt", "--max-restarts=x"
    )
    assert node.wait() == 0, job.story()
    ranks = told(job, 2)
    for rank, event in ranks.items():
        own = ["--lr", "0.1", "--nproc-per-node", "7", f"--out={rank}.txt", "--max-restarts=x"]
        assert event["argv"] == [str(WORKLOADS / "tell.py"), *own]
        assert event["name"] == "__main__"
        assert event["path0"] == str(WORKLOADS)
        assert event["cwd"] == str(job.folder)


@dropin
def test_worker_environment(job):
    """Workers find every variable that torchrun sets, with its meaning."""
    node = job.standalone(
        "tell.py", flags=["--max-restarts=2", "--role=trainer", "--rdzv-id=ignored"], env={"MINE": "1"}
    )
    assert node.wait() == 0, job.story()
    for rank, event in told(job, 2).items():
        env = event["env"]
        expected = {
            "MINE": "1",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "ROLE_RANK": str(rank),
            "ROLE_NAME": "trainer",
            "ROLE_WORLD_SIZE": "2",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "2",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
            "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
            "OMP_NUM_THREADS": "1",
        }
        assert {name: env.get(name) for name in expected} == expected
        assert env["MASTER_ADDR"]
        assert int(env["MASTER_PORT"])
        assert env["TORCHELASTIC_RUN_ID"]
        assert env["TORCHELASTIC_ERROR_FILE"].endswith(f"/attempt_0/{rank}/error.json")


@dropin
def test_module(job):
    """-m runs a module as __main__, found from the working directory."""
    node = job.run("--standalone", "--nproc_per_node=1", "-m", "tell", "--flag", cwd=WORKLOADS)
    assert node.wait() == 0, job.story()
    event = told(job, 1)[0]
    assert event["argv"] == [str(WORKLOADS / "tell.py"), "--flag"]
    assert event["name"] == "__main__"
    assert event["path0"] == str(WORKLOADS)


@dropin
def test_program(job):
    """--no-python runs any program, with the worker's environment and the arguments."""
    script = job.folder / "program.sh"
    script.write_text('#!/bin/sh\necho "rank $RANK of $WORLD_SIZE: $*"\n')
    script.chmod(0o755)
    node = job.run("--standalone", "--nproc-per-node=2", "--no-python", script, "a b", "--c=${local_rank}")
    assert node.wait() == 0, job.story()
    assert sorted(node.stdout.splitlines()) == ["rank 0 of 2: a b --c=0", "rank 1 of 2: a b --c=1"]


@dropin
def test_pet_variables_and_prefixes(job):
    """PET_<FLAG> stands for a flag, the command line wins, and a flag may be shortened as long as it is unique."""
    env = {"PET_NPROC_PER_NODE": "3", "PET_MAX_RESTARTS": "4", "PET_STANDALONE": "1", "PET_ROLE": "from-env"}
    node = job.run("--nproc-per=2", "--role", "given", str(WORKLOADS / "tell.py"), env=env)
    assert node.wait() == 0, job.story()
    env = told(job, 2)[0]["env"]
    assert [env[name] for name in ("WORLD_SIZE", "TORCHELASTIC_MAX_RESTARTS", "ROLE_NAME")] == ["2", "4", "given"]


@dropin
def test_workers_by_word(job):
    """--nproc-per-node=cpu starts one worker for each CPU; without flags there is one."""
    node = job.run("--standalone", "--nproc-per-node=cpu", str(WORKLOADS / "tell.py"))
    assert node.wait() == 0, job.story()
    ranks = [(event["rank"], event["env"]["WORLD_SIZE"]) for event in job.found("told")]
    assert sorted(ranks) == [(rank, str(os.cpu_count())) for rank in range(os.cpu_count())]


def test_programs_by_word(job):
    """A program that is no Python's, one for each CPU."""
    node = job.run("--standalone", "--nproc-per-node=auto", "--no-python", "/bin/echo", "hi")
    assert node.wait() == 0, job.story()
    assert node.stdout.split() == ["hi"] * os.cpu_count()


def test_no_flags_at_all(job):
    """`phalanx-run script` is a job of one worker."""
    node = job.run(str(WORKLOADS / "tell.py"))
    assert node.wait() == 0, job.story()
    assert told(job, 1)[0]["env"]["WORLD_SIZE"] == "1"


@dropin
def test_static_rendezvous(job):
    """--node-rank decides the ranks, whichever node comes first."""
    for rank in (1, 0):
        flags = ["--nnodes=2", f"--node-rank={rank}", "--master-addr=127.0.0.1", f"--master-port={job.port}"]
        own = [] if job.launcher == "torchrun" else [f"--state-dir={job.folder / f'state{rank}'}"]
        job.run(*flags, *own, "--nproc-per-node=1", str(WORKLOADS / "tell.py"), env={"NODE": rank})
    assert [node.wait() for node in job.nodes] == [0, 0], job.story()
    assert {rank: event["env"]["NODE"] for rank, event in told(job, 2).items()} == {0: "0", 1: "1"}


@dropin
def test_worker_failure_is_exit_code_1(job):
    """Whatever code the worker ended with; its own is in the report, with its rank."""
    node = job.standalone("tell.py", "--exit", "7", "--exit-rank", "1", flags=["--max-restarts=0"])
    assert node.wait() == 1, job.story()
    if job.launcher == "torchrun":
        assert re.search(r"rank      : 1 \(local_rank: 1\)\n +exitcode  : 7 \(pid: \d+\)", node.stderr), job.story()
    else:
        assert re.search(r"First cause: rank 1 .*\n.*\n  end:   exit code 7, pid \d+", node.stderr), job.story()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--no-such-flag", "x.py"], "--no-such-flag"),
        (["--nnodes=0", "x.py"], "--nnodes"),
        (["--nnodes=3:2", "x.py"], "3:2"),
        (["--nproc-per-node=many", "x.py"], "many"),
        (["--max-restarts=-1", "x.py"], "--max-restarts"),
        (["--redirects=9", "x.py"], "--redirects"),
        (["--auto-tunning", "x.py"], "not available yet: --auto-tunning"),
        (["--auto_tunning", "x.py"], "not available yet"),
        (["-m", "--no-python", "x"], "--no-python"),
        ([], "script"),
    ],
)
def test_wrong_usage(job, arguments, told):
    """Exit code 2 and a sentence that names what is wrong; nothing starts."""
    node = job.run(*arguments)
    assert node.wait() == 2, job.story()
    assert told in node.stderr
    assert node.stdout == ""


@pytest.mark.parametrize("module", ["phalanx.run", "phalanx.distributed.run"])
def test_as_a_python_module(job, module):
    """`python -m phalanx.run` is the same command, signals and exit code included: it becomes phalanx-run."""
    command = [sys.executable, "-m", module]
    env = {"PATH": f"{os.path.dirname(command_path('phalanx-run'))}:{os.environ['PATH']}"}
    node = job.run("--standalone", str(WORKLOADS / "tell.py"), "--exit", "3", env=env, command=command)
    assert node.wait() == 1, job.story()
    assert told(job, 1)[0]["argv"][1:] == ["--exit", "3"]
    node = job.run("--standalone", str(WORKLOADS / "light_steps.py"), env=env, command=command)
    job.wait_stepping(life=0, world=1)
    assert read_proc(node.pid, "comm") == b"phalanx-run\n"
    node.signal(signal.SIGTERM)
    assert node.wait() == 143, job.story()


def test_foreign_interpreter(job):
    """PYTHON_EXEC chooses another interpreter, which is started cold by the same supervisor."""
    wrapper = job.folder / "mypython"
    wrapper.write_text(f'#!/bin/sh\nVIA_WRAPPER=1 exec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    node = job.standalone("tell.py", nproc=1, env={"PYTHON_EXEC": str(wrapper)})
    assert node.wait() == 0, job.story()
    assert told(job, 1)[0]["env"]["VIA_WRAPPER"] == "1"
    assert node.stderr.count("phalanx-run: warm start is off: PYTHON_EXEC names another interpreter") == 1
