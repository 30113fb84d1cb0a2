"""Programs of other people that launch through torch, unchanged, below phalanx.shim: accelerate."""

import sys
from pathlib import Path

import pytest
from harness import WORKLOADS

SHIM = [sys.executable, "-m", "phalanx.shim", "--"]
ACCELERATE = str(Path(sys.executable).parent / "accelerate")
FLAGS = [
    *("launch", "--multi_gpu", "--num_processes=2", "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no"),
    "--main_process_port=0",
]


@pytest.mark.slow
def test_accelerate(job):
    """A training with accelerate's own interface: a rank is killed, and all go on from the last saved state."""
    line = [*FLAGS, str(WORKLOADS / "accelerated.py"), str(job.folder), "6"]
    node = job.run(*line, command=[*SHIM, ACCELERATE])
    assert node.wait() == 0, job.story()
    lives = {life: job.found("main", life=life) for life in (0, 1)}
    assert [sorted(event["resumed_at"] for event in events) for events in lives.values()] == [[0, 0], [3, 3]]
    assert {event["kind"] for event in job.found("main")} == {"DistributedDataParallel"}
    done = job.found("done", life=1)
    assert sorted(event["rank"] for event in done) == [0, 1] and all(event["epoch"] for event in done)
    sums = done[0]["sums"]
    assert sums[0] == sums[1], "ranks hold the same model"
    assert "restart 1 of 3" in node.stderr


def test_accelerate_hears_of_a_failure(job):
    """Its own exit status and torch's box, as from torchrun."""
    line = [*FLAGS, str(WORKLOADS / "tell.py"), "--exit", "4", "--exit-rank", "1"]
    node = job.run(*line, command=[*SHIM, ACCELERATE])
    assert node.wait() == 1, job.story()
    assert "torch.distributed.elastic.multiprocessing.errors.ChildFailedError" in node.stderr
    assert "exitcode  : 4" in node.stderr


def test_what_accelerate_starts_itself_is_said(job):
    """One process on the CPU: no launcher of torch's, and so nothing of ours."""
    node = job.run("launch", "--cpu", str(WORKLOADS / "calls.py"), "true", command=[*SHIM, ACCELERATE])
    assert node.wait() == 0, node.stderr
    assert (
        "phalanx.shim: nothing was launched through Phalanx: accelerate starts the script itself with " in node.stderr
    )


CPUS = ["launch", "--cpu", "--num_processes=2", "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no"]
MPIRUN = """#!/bin/sh
[ "$1" = --version ] && echo "mpirun (Open MPI) 4.1" && exit
echo "mpirun $*"
"""


def hosts(job, text):
    path = job.folder / "hosts"
    path.write_text(text)
    return f"--mpirun_hostfile={path}"


@pytest.mark.slow
def test_what_accelerate_gives_to_mpirun_goes_through_phalanx(job):
    """Where all processes belong on this machine: a rank is killed, and all go on. No MPI is installed here."""
    line = [*CPUS, hosts(job, "localhost slots=2\n127.0.0.1  # the same\n"), str(WORKLOADS / "accelerated.py")]
    node = job.run(*line, str(job.folder), "6", command=[*SHIM, ACCELERATE])
    assert node.wait() == 0, job.story()
    done = job.found("done", life=1)
    assert sorted(event["rank"] for event in done) == [0, 1] and all(event["epoch"] for event in done)
    assert "restart 1 of 3" in node.stderr and "nothing was launched" not in node.stderr


@pytest.mark.parametrize("module", [False, True], ids=["script", "module"])
def test_what_accelerate_gives_to_mpirun_is_told_as_it_is(job, module):
    """Arguments, accelerate's own variables, and its own exit status."""
    script = ["--module", "tell"] if module else [str(WORKLOADS / "tell.py")]
    line = [*CPUS, hosts(job, "127.0.0.1:2\n"), *script, "--lr", "1", "--exit", "4", "--exit-rank", "1"]
    env = {"PYTHONPATH": str(WORKLOADS)} if module else {}
    node = job.run(*line, command=[*SHIM, ACCELERATE], env=env)
    assert node.wait() == 1, job.story()
    assert "returned non-zero exit status 1" in node.stderr
    told = job.wait_events("told", 2)
    assert {tuple(event["argv"][1:3]) for event in told} == {("--lr", "1")}
    assert {event["env"]["ACCELERATE_USE_CPU"] for event in told} == {"True"}
    assert {event["env"]["WORLD_SIZE"] for event in told} == {"2"}


@pytest.mark.parametrize(
    ("text", "script", "flags", "why"),
    [
        ("localhost\n198.51.100.7 slots=2\n", "", [], "hosts names 198.51.100.7, which is not this machine"),
        ("localhost\n", "def f():\n    from mpi4py import MPI\n", [], "imports mpi4py, which needs MPI itself"),
        ("localhost\n", "", ["--no_python"], "may need MPI itself"),
        ("a\nb\n", "", ["--num_machines=2", "--main_process_ip=a", "--main_process_port=1"], "on several machines"),
    ],
    ids=["host", "mpi4py", "program", "machines"],
)
def test_what_mpirun_alone_can_start_is_left_to_it(job, text, script, flags, why):
    """And the reason is told."""
    commands = job.folder / "commands"
    commands.mkdir()
    (commands / "mpirun").write_text(MPIRUN)
    (commands / "mpirun").chmod(0o755)
    path = job.folder / "train.py"
    path.write_text(script)
    env = {"PATH": f"{commands}:{job.environment({})['PATH']}"}
    node = job.run(*CPUS, *flags, hosts(job, text), str(path), command=[*SHIM, ACCELERATE], env=env)
    assert node.wait() == 0, node.stderr
    assert "mpirun --hostfile " in node.stdout
    (said,) = [line for line in node.stderr.splitlines() if line.startswith("phalanx.shim: ")]
    assert said.startswith("phalanx.shim: nothing was launched through Phalanx: ")
    assert said.endswith(f"{why}: mpirun has started the ranks"), said
