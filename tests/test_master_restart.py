"""The master dies, or stands still: ranks train on, and who serves the job next goes on where the last one ended."""

import os
import signal

import pytest
from harness import read_proc, wait_ends


def master_pid(job):
    (pid,) = (pid for pid in job.processes() if read_proc(pid, "comm").startswith(b"phalanx-master"))
    return pid


def kill_master(job):
    pid = master_pid(job)
    os.kill(pid, signal.SIGKILL)
    assert wait_ends([pid], 10) == []


def kinds(job):
    """Of the record's rows: whichever node's phalanx-run was the first to start a master."""
    (record,) = job.folder.glob("state*/**/events.db")
    rows = job.phalanx("events", f"--state-dir={record.parent}").stdout.splitlines()[1:]
    return [row.split()[2] for row in rows]


def test_a_killed_master_is_started_again(job):
    """By the phalanx-run whose child it was: no rank is restarted, and the next failure is served as ever."""
    node = job.standalone("steps.py", flags=["--max-restarts=1"])
    job.wait_stepping(life=0, world=2)
    for _ in range(2):
        kill_master(job)
        node.wait_line("the job's master has ended")
        node.wait_line("the master answers again")
        node.lines["stderr"].clear()
    os.kill(job.pid(1, 0), signal.SIGKILL)
    job.wait_stepping(life=1, world=2)
    job.stop()
    assert node.wait() == 0, job.story()
    assert sorted(job.lives()) == [0, 1]
    seen = kinds(job)
    assert "job-resumed" in seen  # twice, but a row may die with its master
    assert seen.count("round-started") == 2
    assert seen[-1] == "master-stopped"


@pytest.mark.parametrize("journal", ["whole", "damaged", "gone"])
def test_two_nodes_go_on(job, journal):
    """Also from what the agents tell alone. The restart that was used is remembered."""
    nodes = [job.node(index, "steps.py", flags=["--max-restarts=1"]) for index in (0, 1)]
    job.wait_stepping(life=0, world=2)
    os.kill(job.pid(1, 0), signal.SIGKILL)
    job.wait_stepping(life=1, world=2)
    (path,) = job.folder.glob("state*/**/journal")
    os.kill(master_pid(job), signal.SIGSTOP)  # it may not write another one
    if journal == "damaged":
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    if journal == "gone":
        path.unlink()
    kill_master(job)
    for node in nodes:
        node.wait_line("the master answers again")
    os.kill(job.pid(0, 1), signal.SIGKILL)
    assert [node.wait() for node in nodes] == [1, 1], job.story()
    assert sorted(job.lives()) == [0, 1]
    assert "--max-restarts=1 is used up" in nodes[0].stderr


def test_a_failure_without_a_master(job):
    """A rank that dies while nobody serves the job is restarted by the next master."""
    nodes = [job.node(index, "steps.py", flags=["--max-restarts=1"]) for index in (0, 1)]
    job.wait_stepping(life=0, world=2)
    victim = job.pid(1, 0)
    os.kill(master_pid(job), signal.SIGKILL)
    os.kill(victim, signal.SIGKILL)
    job.wait_stepping(life=1, world=2)
    job.stop()
    assert [node.wait() for node in nodes] == [0, 0], job.story()
    assert sorted(job.lives()) == [0, 1]


@pytest.mark.slow
def test_a_master_that_stood_still(job):
    """SIGSTOP for longer than the lease: nobody is given up, and nothing is restarted."""
    nodes = [job.node(index, "steps.py", flags=["--max-restarts=0"]) for index in (0, 1)]
    job.wait_stepping(life=0, world=2)
    pid = master_pid(job)
    os.kill(pid, signal.SIGSTOP)
    stopped_at = job.found("step")[-1]["t"]
    job.wait(lambda events: events[-1]["t"] > stopped_at + 6, "6 s of steps")
    os.kill(pid, signal.SIGCONT)
    job.stop()
    assert [node.wait() for node in nodes] == [0, 0], job.story()
    assert sorted(job.lives()) == [0]
    assert "master-stalled" in kinds(job)
