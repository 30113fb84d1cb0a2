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
