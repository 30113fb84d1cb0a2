"""Jobs that a framework drives, without a line of ours: their true steps. Part of `./run test --callers`, elsewhere
left out by conftest.py."""

import json

import pytest

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("script", ["hugging_face.py", "lightning_trainer.py"])
def test_a_framework_tells_its_own_step(job, script):
    """Of two batches each; rank 1 dies at step 25, and the framework goes on from its checkpoint of step 20."""
    node = job.standalone(script, str(job.folder / "kept"), "25")
    assert node.wait(240) == 0, job.story()
    assert node.stdout.count("done at 40") == 2
    state = f"--state-dir={job.folder / 'state'}"
    rows = [json.loads(row) for row in job.phalanx("events", state, "--json").stdout.splitlines()]
    told = [row["reason"] for row in rows if row["kind"] == "steps-told"]
    assert told == [
        "training begins behind step 0",
        "training begins behind step 20; it had come to step 25, so 5 are done again",
    ]
    assert [row["reason"] for row in rows if row["kind"] == "caught-up"] == [
        "training has come as far as it was before: step 25"
    ]
