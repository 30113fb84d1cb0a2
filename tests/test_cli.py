"""phalanx status|events|why: of a live job from its master, of a finished one from its record."""

import json
import os
import signal

from harness import workload

FLAGS = ["--max-restarts=3", "--rdzv-id=traced"]


def start(job):
    """A job in the default state directory, as a person would have it."""
    flags = ["--nproc-per-node=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{job.port}", *FLAGS]
    node = job.run(*flags, workload("light_steps.py"))
    job.wait_stepping(life=0, world=2)
    return node


def test_live_and_finished(job):
    """The same questions before and after the end: state, numbers, and the reason of each decision."""
    node = start(job)
    os.kill(job.pid(rank=1, life=0), signal.SIGKILL)
    job.wait_stepping(life=1, world=2)

    live = json.loads(job.phalanx("status", "traced", "--json").stdout)
    assert (live["job_id"], live["phase"], live["world_size"], live["restart_count"]) == ("traced", "running", 2, 1)
    assert live["restarts_left"] == 2
    assert len(live["nodes"]) == 1
    text = job.phalanx("status", "traced").stdout
    assert "traced" in text
    assert "running" in text
    check_story(job)

    job.stop()
    assert node.wait() == 0, job.story()
    ended = json.loads(job.phalanx("status", "traced", "--json").stdout)
    assert (ended["phase"], ended["exit_code"], ended["restart_count"]) == ("finished", 0, 1)
    check_story(job)


def check_story(job):
    """Events tell the death with rank and signal, and the round that followed; why says it in one sentence."""
    events = [json.loads(line) for line in job.phalanx("events", "traced", "--json").stdout.splitlines()]
    kinds = [event["kind"] for event in events]
    assert kinds.count("round-started") == 2
    death = next(event for event in events if event["kind"] == "worker-exited")
    assert death["rank"] == 1
    assert "SIGKILL" in death["reason"]
    assert kinds.index("worker-exited") < len(kinds) - 1 - kinds[::-1].index("round-started")
    assert "SIGKILL" in job.phalanx("events", "traced").stdout
    why = job.phalanx("why", "traced").stdout
    assert "rank 1" in why
    assert "SIGKILL" in why


def test_unknown_job(job):
    """A job that nobody knows is an error with its name."""
    done = job.phalanx("status", "nobody-knows-it", check=False)
    assert done.returncode != 0
    assert "nobody-knows-it" in done.stderr


def test_without_a_name(job):
    """Where only one job is known it needs no name."""
    node = start(job)
    assert json.loads(job.phalanx("status", "--json").stdout)["job_id"] == "traced"
    job.stop()
    assert node.wait() == 0, job.story()
