"""What tests of jobs rely on: a node that has ended has been heard, and each of its processes is found."""

import os
import signal
import subprocess
import sys
import threading

import harness
import pytest
from harness import WORKLOADS, Job, environment_of, name_of, wait_ends

MARK = b"PHALANX_TEST_MARK=1"
# stat_fields of a process whose memory is there, but for its environment.
IN_EXEC = ["R", *["0"] * (harness.VSIZE - 1), "4096", *["0"] * 30]
PLACED = [*IN_EXEC[: harness.ENV_END], "140722", *IN_EXEC[harness.ENV_END + 1 :]]


class LateListener(Job):
    """Reads no report before it may."""

    may_listen = threading.Event()

    def _listen(self):
        self.may_listen.wait()
        super()._listen()


def test_what_was_reported_before_a_nodes_end_is_heard(tmp_path):
    job = LateListener(tmp_path)
    try:
        text = "from report import report; report('first'); report('last')"
        node = job.run(command=[sys.executable, "-c", text], env={"PYTHONPATH": WORKLOADS})
        assert wait_ends([node.pid], 60) == []
        timer = threading.Timer(0.3, job.may_listen.set)
        timer.start()
        assert node.wait() == 0, job.story()
        assert [event["ev"] for event in job.events] == ["first", "last"]
    finally:
        job.may_listen.set()
        job.close()


def test_a_guard_that_hangs_is_left_over(tmp_path):
    """It hides its environment, and its parent has gone."""
    job = Job(tmp_path)
    try:
        node = job.standalone("light_steps.py")
        job.wait_stepping(life=0, world=2)
        (guard,) = job.guards()
        os.kill(guard, signal.SIGSTOP)
        job.stop()
        assert node.wait() == 0, job.story()
        assert [name.partition(" ")[0] for name in job.leftovers(0.1)] == [name_of(guard).partition(" ")[0]]
    finally:
        job.close()
    assert job.guards() == []


@pytest.mark.parametrize(
    ("looks", "found"),
    [
        ([MARK], True),
        ([b"", IN_EXEC, b"", IN_EXEC, b"", PLACED, MARK], True),
        ([b"", IN_EXEC, MARK], True),
        ([b"", IN_EXEC, b"", [], b""], False),
        ([b"", IN_EXEC, b"", ["Z", *IN_EXEC[1:]], b""], False),
        ([b"", ["S", *["0"] * 50], b""], False),  # a kernel thread
        ([b"", PLACED, b""], False),
    ],
)
def test_a_process_in_the_midst_of_exec(monkeypatch, looks, found):
    """It is looked at until it shows what it was started with."""
    seen = iter(looks)
    monkeypatch.setattr(harness, "stat_fields", lambda _pid: next(seen))
    monkeypatch.setattr(harness, "read_proc", lambda _pid, _name: next(seen))
    assert (MARK in environment_of(os.getpid())) == found
    assert list(seen) == []


@pytest.mark.parametrize(("env", "found"), [({"PHALANX_TEST_MARK": "1"}, True), ({}, False)])
def test_the_environment_of_a_process_that_has_just_been_started(env, found):
    """subprocess goes on while its child is in the midst of exec."""
    for _ in range(10):
        process = subprocess.Popen(["sleep", "1000"], env=env)
        try:
            assert (MARK in environment_of(process.pid)) == found
        finally:
            process.kill()
        assert wait_ends([process.pid], 60) == []
        assert MARK not in environment_of(process.pid)
        process.wait()
