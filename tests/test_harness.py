"""What tests of jobs rely on: a node that has ended has been heard, and each of its processes is found."""

import errno
import os
import signal
import subprocess
import sys
import threading

import conftest
import harness
import netns
import pytest
import small_disk
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
        assert wait_ends(job.processes(), 60) == []
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


@pytest.mark.parametrize(
    ("said", "skips"),
    [
        ("mount --make-shared /run/netns failed: Operation not permitted", True),
        ("RTNETLINK answers: Operation not supported", True),
        ("RTNETLINK answers: File exists", False),
        ('Object "netns" is unknown', False),
    ],
)
def test_only_what_the_kernel_refuses_lets_tests_of_networks_be_skipped(monkeypatch, said, skips):
    def refuse(*command):
        raise OSError(f"{' '.join(command)}: {said}")

    monkeypatch.setattr(netns, "run", refuse)
    monkeypatch.setattr(netns.os, "geteuid", lambda: 0)
    if skips:
        assert netns.why_not().endswith(said)
    else:
        with pytest.raises(OSError, match=said):
            netns.why_not()


@pytest.mark.parametrize(("number", "skips"), [(errno.EPERM, True), (errno.ENOENT, True), (errno.EIO, False)])
def test_only_a_machine_without_loop_devices_lets_tests_of_a_hanging_disk_be_skipped(monkeypatch, number, skips):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(small_disk.fcntl, "ioctl", refuse)
    monkeypatch.setattr(small_disk, "open", lambda *_: open(os.devnull, "rb"), raising=False)
    if skips:
        assert os.strerror(number) in small_disk.why_no_hanging_disk()
    else:
        with pytest.raises(OSError, match=os.strerror(number)):
            small_disk.why_no_hanging_disk()


def test_a_hanging_disk_that_cannot_be_made_is_no_skip(request, monkeypatch):
    """As where mkfs is missing, on a machine that has what the test needs of the kernel."""

    def fail(_):
        raise OSError("mkfs.ext4: not found")

    monkeypatch.setattr(conftest, "why_no_hanging_disk", str)
    monkeypatch.setattr(conftest, "HangingDisk", fail)
    monkeypatch.setattr(conftest.os, "geteuid", lambda: 0)
    with pytest.raises(OSError, match=r"mkfs\.ext4"):
        request.getfixturevalue("hanging_disk")
