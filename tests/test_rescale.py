"""Before nodes join or leave on purpose, ranks that want to come to a safe point; nobody waits for long."""

import os
import signal

import pytest
from harness import descends_from, read_proc


def start(job, index, how, *flags, nnodes="1:2"):
    env = {"PHALANX_TEST_FOLDER": job.folder}
    script = "rescaling.py" if how == "optimizer" else "light_rescaling.py"
    return job.node(index, script, how, nnodes=nnodes, flags=["--max-restarts=0", *flags], env=env)


def begin(job, how, *flags, nnodes="1:2"):
    node = start(job, 0, how, *flags, nnodes=nnodes)
    job.wait_events("step", n=11, world=1)
    return node


@pytest.mark.parametrize(
    ("how", "flags"),
    [("callback", []), ("optimizer", []), ("exit", []), ("signal", ["--rescale-signal"])],
)
def test_no_step_is_lost(job, how, flags):
    """One node becomes two and, by SIGTERM to the second, one again: each life begins where the one before has saved.
    Exit code 0 on the way is not the end of the job, and nothing costs a restart."""
    nodes = [begin(job, how, *flags), start(job, 1, how, *flags)]
    grown = job.wait_events("begin", 2, life=1, world=2)
    (saved,) = job.found("saved", life=0)
    assert [event["n"] for event in grown] == [saved["n"]] * 2 and saved["n"] > 0
    first_life = [event["n"] for event in job.found("step", life=0)]
    if how != "optimizer":  # whose count is that of a life
        assert max(first_life) <= saved["n"]

    job.wait_events("step", 2, life=1, n=saved["n"] + 40 - saved["n"] % 10 + 1)
    leaver = next(node for node in nodes if descends_from(job.pid(1, 1), node.pid))
    leaver.signal(signal.SIGTERM)
    assert leaver.wait() == 143, job.story()
    (alone,) = job.wait_events("begin", life=2, world=1)
    again = job.wait_events("saved", 2, life=1)
    assert {event["n"] for event in again} == {alone["n"]}
    job.stop()
    (stayed,) = [node for node in nodes if node is not leaver]
    assert stayed.wait() == 0, job.story()
    assert sorted(job.lives()) == [0, 1, 2]


def test_a_rank_that_does_not_come(job):
    """--rescale-grace is all that it gets."""
    nodes = [begin(job, "slow", "--rescale-grace=2"), start(job, 1, "none", "--rescale-grace=2")]
    job.wait_events("asked", life=0)
    job.wait_events("begin", 2, life=1, world=2)
    job.stop()
    assert [node.wait() for node in nodes] == [0, 0], job.story()
    (record,) = job.folder.glob("state*/**/events.db")
    assert "rescale-grace-over" in job.phalanx("events", f"--state-dir={record.parent}").stdout


def test_signals_need_leave(job):
    """Without --rescale-signal a rank that catches SIGUSR1 gets none; with it, one that does not catch it neither."""
    nodes = [begin(job, "signal"), start(job, 1, "none", "--rescale-signal")]
    job.wait_events("begin", 2, life=1, world=2)
    assert job.found("saved", life=0) == []
    nodes[0].signal(signal.SIGTERM)
    job.wait_events("begin", life=2, world=1)
    job.stop()
    assert [node.wait() for node in nodes] == [143, 0], job.story()
    assert job.found("saved", life=1) == []


@pytest.mark.slow
def test_a_new_master_hears_of_it(job):
    """Killed while ranks are asked, the master leaves them at their safe point: the next one ends the round."""
    nodes = [begin(job, "slow", "--rescale-grace=6"), start(job, 1, "none", "--rescale-grace=6")]
    job.wait_events("asked", life=0)
    for pid in job.processes():
        if read_proc(pid, "comm").startswith(b"phalanx-master"):
            os.kill(pid, signal.SIGKILL)
    job.wait_events("begin", 2, life=1, world=2)
    job.stop()
    assert [node.wait() for node in nodes] == [0, 0], job.story()


@pytest.mark.parametrize("how", ["callback", "optimizer", "exit"])
@pytest.mark.parametrize("nnodes", ["1", "1:2"])
def test_the_last_node_saves_before_it_goes(job, how, nnodes):
    node = begin(job, how, nnodes=nnodes)
    node.signal(signal.SIGTERM)
    assert node.wait() == 143, job.story()
    assert len(job.found("saved", life=0)) == 1, job.story()
    assert sorted(job.lives()) == [0]


def test_nodes_that_leave_together_save(job):
    """As a scheduler ends a job: all nodes get the signal, none a moment to itself."""
    nodes = [begin(job, "callback"), start(job, 1, "callback")]
    (saved,) = job.wait_events("saved", life=0)
    job.wait_events("step", 2, life=1, n=saved["n"] + 40 - saved["n"] % 10 + 1)
    for node in nodes:
        node.signal(signal.SIGTERM)
    assert [node.wait() for node in nodes] == [143, 143], job.story()
    saved = job.found("saved", life=1)
    assert len(saved) == 2 and saved[0]["n"] == saved[1]["n"], job.story()
