"""What is restored had all of its bytes at one moment, whoever writes the state while it is saved."""

import pytest
from harness import PATIENCE_S
from test_checkpoint_cuda import on_device
from test_checkpoint_job import RESTARTS
from test_checkpoint_job import directory as directory
from test_checkpoint_job import jobs_with_memory as jobs_with_memory
from test_checkpoint_job import make_job as make_job
from written import WRITERS, lost, torn


def run(job, directory, *arguments, timeout_s=PATIENCE_S):
    flags = [RESTARTS, "--redirects=3"]
    node = job.node(0, "writing.py", directory, *arguments, nnodes="1", nproc=1, flags=flags)
    assert node.wait(timeout_s) == 0
    return job.events


@pytest.mark.slow
@pytest.mark.timeout(36_000)
@pytest.mark.parametrize(
    ("writer", "device"),
    [
        *((writer, "cpu") for writer in WRITERS),
        *((writer, "slow") for writer in ("AverageSwap", "Thread")),
        *(pytest.param(writer, "cuda", marks=on_device) for writer in WRITERS),
    ],
)
def test_kills_beside_a_writer_that_no_optimizer_is(job, directory, pytestconfig, choose, writer, device):
    """At the defaults, with parameters that are copied while the training goes on: of SGD 64 MiB. From the host's
    memory, as from a device's, and from one's where there is one."""
    kills = pytestconfig.getoption("--kills") or 4
    seed = choose.randrange(1 << 31)
    arguments = [writer, f"--seed={seed}", f"--deaths={kills}", f"--device={device}"]
    events = run(job, directory, *arguments, timeout_s=PATIENCE_S + 15 * kills)
    found = [event for event in events if event["ev"] == "restored"]
    assert [why for why in (torn(writer, event) for event in found) if why is not None] == []
    assert lost(events) == [], "what was committed is never lost"
    assert len(found) == kills + 1
    assert any(event["ev"] == "committed" for event in events), "some were saved between two writes"


def restored(n, *values, saved=None):
    return {"ev": "restored", "n": n, "values": list(values) or None, "saved": n if saved is None else saved}


def test_what_counts_as_torn_and_as_lost():
    whole = restored(7, 7.0, 7.0)
    assert [torn(writer, whole) for writer in WRITERS] == [None] * len(WRITERS)
    assert torn("Sharpness", restored(0)) is None
    for event in (restored(7, 7.0, 6.0), restored(7, 7.0, None), restored(7, 7.0, 7.0, saved=6)):
        assert torn("Sharpness", event).startswith("step 7 has ")
    negative = restored(7, -7.0, 7.0)
    assert torn("Thread", negative) is None and torn("AverageSwap", negative) is not None
    assert lost([{"ev": "committed", "n": 6}, restored(7, 7.0, 7.0)]) == []
    assert lost([{"ev": "committed", "n": 6}, restored(5, 5.0, 5.0), restored(0)]) == [(5, 6), (0, 6)]
