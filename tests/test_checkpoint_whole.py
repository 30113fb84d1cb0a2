"""What is restored had all of its bytes at one moment, whoever writes the state while it is saved."""

import pytest
from harness import PATIENCE_S
from test_checkpoint_cuda import on_device
from test_checkpoint_job import RESTARTS
from test_checkpoint_job import directory as directory
from test_checkpoint_job import jobs_with_memory as jobs_with_memory
from test_checkpoint_job import make_job as make_job

WRITERS = ["AverageSwap", "ScheduleFree", "Sharpness", "Normalisation", "Thread"]


def run(job, directory, *arguments, timeout_s=PATIENCE_S):
    flags = [RESTARTS, "--redirects=3"]
    node = job.node(0, "writing.py", directory, *arguments, nnodes="1", nproc=1, flags=flags)
    assert node.wait(timeout_s) == 0
    return job.events


def torn(writer, event):
    """Why what was restored is no state that the job had, or None. What a thread of its own writes has two values, by
    turns; each is a state."""
    if event["values"] is None:
        return None
    first, second = event["values"]
    expected = {float(event["saved"])}
    firsts = {*expected, -float(event["saved"])} if writer == "Thread" else expected
    if first in firsts and second in expected and event["saved"] == event["n"]:
        return None
    return f"step {event['n']} has {event['values']}, saved as {event['saved']}"


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
    found, promised = [event for event in events if event["ev"] == "restored"], 0
    assert [why for why in (torn(writer, event) for event in found) if why is not None] == []
    for event in events:
        if event["ev"] == "committed":
            promised = max(promised, event["n"])
        elif event["ev"] == "restored":
            assert event["n"] >= promised, "what was committed is never lost"
    assert len(found) == kills + 1 and promised > 0, "some were saved between two writes"
