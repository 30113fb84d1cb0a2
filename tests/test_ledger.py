"""phalanx ledger: real jobs, whose events tell what the figures must be. Both sides read the same machine's clock."""

import json
import os
import signal
import time

import pytest
from harness import descends_from, name_of, wait_ends


def ledger(job, *arguments, state="state"):
    """The ledger as programs get it; what must hold of every one is checked."""
    found = json.loads(job.phalanx("ledger", f"--state-dir={job.folder / state}", "--json", *arguments).stdout)
    assert sum(found["causes"].values()) == found["wall_ms"] == found["end_unix_ms"] - found["begin_unix_ms"]
    assert all(ms >= 0 for ms in found["causes"].values()), found
    assert sum(i["recovering_ms"] for i in found["incidents"]) == found["causes"]["recovering_ms"]
    assert sum(i["redoing_ms"] for i in found["incidents"]) == found["causes"]["redoing_ms"]
    return found


def check_wall_time(job, node, found):
    """No more than the launcher's whole life, and no less than from the workers' first line to their last."""
    whole_ms = (time.monotonic() - node.started_at) * 1000
    workers_ms = (max(e["t"] for e in job.found("done")) - min(e["t"] for e in job.found("main"))) * 1000
    assert workers_ms <= found["wall_ms"] <= whole_ms, found


def steps_of(job, life):
    return [event["n"] for event in job.found("step", life=life)]


UNTOLD = pytest.param(False, id="it does not", marks=pytest.mark.slow)


@pytest.mark.parametrize("tells", [pytest.param(True, id="it tells its steps"), UNTOLD])
def test_steps_done_again(job, tells):
    """A rank is killed at step 15 or so; the next life goes on from step 10, if anybody knows."""
    # Steps that nobody tells are those of a torch optimizer.
    script = ["light_resuming.py"] if tells else ["resuming.py", "--silent"]
    node = job.standalone(*script, "--save-every=10", "--step-ms=30")
    job.wait_events("step", n=15, count=2)
    victim = job.pid(rank=1, life=0)
    os.kill(victim, signal.SIGKILL)
    before = job.wait_events("loaded", life=1)[0]["n"]
    reached = max(steps_of(job, 0))
    job.wait_events("step", life=1, n=reached + 200, count=2)
    job.stop()
    assert node.wait() == 0, job.story()
    found = ledger(job)
    check_wall_time(job, node, found)
    assert (found["live"], found["phase"], found["exit_code"]) == (False, "finished", 0)
    assert found["causes"]["waiting_ms"] + found["causes"]["starting_ms"] > 0
    assert len(found["incidents"]) == 1, job.story()
    incident = found["incidents"][0]
    assert (incident["rank"], incident["epoch"], incident["ended_job"]) == (1, 1, False)
    assert "rank 1 died (SIGKILL)" in incident["what"]
    assert incident["recovering_ms"] > 0
    assert incident["rank_ms"] == 2 * (incident["recovering_ms"] + incident["redoing_ms"])
    text = job.phalanx("ledger", f"--state-dir={job.folder / 'state'}").stdout
    if not tells:
        assert (incident["steps_untold"], incident["steps_lost"], incident["redoing_ms"]) == (True, None, 0)
        assert "does not call phalanx.step" in text
        return
    # A rank may have told a step and died before the test heard of it.
    assert incident["steps_lost"] - (reached - before) in (0, 1), job.story()
    assert incident["steps_untold"] is False
    # Over before the end: so many steps are more than news takes, and ten less than the life went on for.
    again = {event["n"]: event["t"] for event in job.found("step", life=1, rank=0)}
    assert incident["redoing_ms"] > 0 or reached == before, job.story()
    assert incident["redoing_ms"] <= (again[reached + 190] - again[before + 1]) * 1000, job.story()
    assert "goodput" in text


def test_a_job_that_runs(job):
    """Up to now, and on; the job whose record changed last is meant where none is named."""
    node = job.standalone("light_resuming.py", "--save-every=1000")
    job.wait_events("step", n=40, count=2)
    node.wait_line("training, world 2")  # the master has heard of the first
    first = ledger(job)
    assert (first["live"], first["phase"]) == (True, "running")
    second = ledger(
        job, json.loads(job.phalanx("status", "--json", f"--state-dir={job.folder / 'state'}").stdout)["job_id"]
    )
    assert second["wall_ms"] > first["wall_ms"]
    assert second["causes"]["training_ms"] > first["causes"]["training_ms"]
    for cause in ("starting_ms", "waiting_ms"):
        assert second["causes"][cause] == first["causes"][cause]
    unknown = job.phalanx("ledger", "nobody-knows-it", f"--state-dir={job.folder / 'state'}", check=False)
    assert unknown.returncode == 1
    assert "nobody-knows-it" in unknown.stderr
    job.stop()
    assert node.wait() == 0, job.story()
    check_wall_time(job, node, ledger(job))


def test_waiting_for_a_node(job):
    """The job needs two nodes, and one comes late."""
    first = job.node(0, "light_resuming.py", nnodes="2")
    first.wait_line("waiting for 1 more node")
    alone_since = time.monotonic()
    assert ledger(job, state="state0")["causes"]["starting_ms"] == 0
    alone_ms = (time.monotonic() - alone_since) * 1000
    second = job.node(1, "light_resuming.py", nnodes="2")
    job.wait_events("step", n=3, count=2)
    job.stop()
    assert [first.wait(), second.wait()] == [0, 0], job.story()
    found = ledger(job, state="state0")
    check_wall_time(job, first, found)
    assert found["causes"]["waiting_ms"] >= int(alone_ms), found
    assert found["incidents"] == []
    assert found["causes"]["training_ms"] > 0


TORCH = pytest.param("resuming.py", id="torch.save", marks=pytest.mark.slow)


@pytest.mark.parametrize("script", [TORCH, pytest.param("light_resuming.py", id="phalanx.saving")])
def test_saves(job, script):
    """Two checkpoints of 0.4 s and more: torch.save, without a word about it in the script, and what it says itself."""
    node = job.standalone(script, "--save-every=5", "--save-ms=200")
    job.wait_events("saved", n=10)
    job.stop()
    assert node.wait() == 0, job.story()
    found = ledger(job)
    check_wall_time(job, node, found)
    began = sum(event["t"] for event in job.found("saving"))
    ended = sum(event["t"] for event in job.found("saved"))
    naps_ms = 2 * 200 * len(job.found("saved"))
    assert naps_ms <= found["causes"]["saving_ms"] <= (ended - began) * 1000, job.story()


def test_a_save_that_a_death_cuts_short(job):
    """It counts until the rank's death."""
    node = job.standalone("light_resuming.py", "--save-every=5", "--save-ms=60000", "--slow-lives=1")
    under_way = job.wait_events("flushing", life=0)[0]
    ledger(job)
    killed_at = time.monotonic()
    os.kill(under_way["pid"], signal.SIGKILL)
    job.wait_events("saved", life=1)
    job.stop()
    assert node.wait() == 0, job.story()
    found = ledger(job)
    assert found["causes"]["saving_ms"] >= int((killed_at - under_way["t"]) * 1000), job.story()
    (incident,) = found["incidents"]
    assert incident["steps_lost"] == 5, job.story()
    assert incident["rank"] == under_way["rank"]


def test_a_killed_master(job):
    """With its phalanx-run, so that nobody starts another: its record counts up to the last row, and says so."""
    node = job.standalone("light_resuming.py")
    job.wait_events("step", n=3, count=2)
    masters = [pid for pid in job.processes() if "phalanx-master" in name_of(pid) and descends_from(pid, node.pid)]
    assert ledger(job)["live"]
    job.killed_by_test = True
    node.signal(signal.SIGSTOP)
    os.kill(masters[0], signal.SIGKILL)
    assert wait_ends(masters, 60) == []
    lived_ms = (time.monotonic() - node.started_at) * 1000
    node.signal(signal.SIGKILL)
    assert wait_ends([node.pid], 60) == []
    found = ledger(job)
    assert (found["live"], found["phase"]) == (False, "unfinished")
    assert 0 < found["wall_ms"] <= lived_ms
    assert "up to its last row" in job.phalanx("ledger", f"--state-dir={job.folder / 'state'}").stdout
