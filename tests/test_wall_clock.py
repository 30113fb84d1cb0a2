"""The wall clock is for people: a jump by an hour, forwards and back, changes nothing.

Master, launchers and workers see it through tests/shifted_clock.c; the machine's own clock is left alone.
"""

import signal
import socket
import sqlite3
import struct
import subprocess

import pytest
from harness import PATIENCE_S, ROOT, wait_ends

DYNAMIC = ROOT / "build" / "release" / "dynamic"  # the commands as a preloaded library can reach them
HOUR_S = 3600


class Clock:
    """What processes see: the wall clock, off by so many seconds."""

    def __init__(self, folder):
        self.file = folder / "offset"
        self.library = folder / "shifted_clock.so"
        self.file.write_bytes(struct.pack("=q", 0))
        source = ROOT / "tests" / "shifted_clock.c"
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", self.library, source, "-ldl"], check=True)

    def variables(self):
        return {"LD_PRELOAD": str(self.library), "SHIFTED_CLOCK": str(self.file)}

    def set(self, offset_s):
        with self.file.open("r+b") as file:  # in place: it is mapped
            file.write(struct.pack("=q", offset_s))

    def now_of_a_process(self):
        out = subprocess.run(["date", "+%s"], env=self.variables(), capture_output=True, check=True).stdout
        return int(out)


def train_on(job, life):
    """Further steps of the same life."""
    before = len(job.found("step", life=life))
    job.wait(lambda _: len(job.found("step", life=life)) > before + 4, f"further steps of life {life}")
    assert max(job.lives()) == life, job.story()


def lose_and_regain(job, life):
    """The node of rank 0 is frozen: its lease runs out, by another clock. Awake, it comes back."""
    victim = job.node_of(0, life)
    old = job.pid(0, life)
    job.signal_node(victim, signal.SIGSTOP)
    alone = job.wait_world(1, after=life)
    job.signal_node(victim, signal.SIGCONT)
    grown = job.wait_world(2, after=alone)
    assert wait_ends([old], 60) == []
    assert (alone, grown) == (life + 1, life + 2)
    return grown


@pytest.fixture
def dynamic(tmp_path, monkeypatch):
    """A function by which all that a job starts sees a Clock."""

    def use(job):
        clock = Clock(tmp_path)
        monkeypatch.setenv("PHALANX_RUN", str(DYNAMIC / "phalanx-run"))
        job.variables = {**clock.variables(), "PHALANX_BOOTSTRAP_DIR": str(ROOT / "python" / "phalanx" / "_bootstrap")}
        return clock

    return use


@pytest.mark.slow
def test_the_wall_clock_jumps(dynamic, job):
    """Two nodes train on while it is set by an hour, forwards and back. Timers go by the other clock after either jump:
    a frozen node is lost when its lease is over, and taken in again. The record's times never go back."""
    clock = dynamic(job)
    job.start_master("1:2", "--max-restarts=0")
    flags = ["--max-restarts=0"]
    nodes = [job.node(0, "light_steps.py", nnodes="1:2", flags=flags)]
    life = job.wait_world(1)
    nodes.append(job.node(1, "light_steps.py", nnodes="1:2", flags=flags))
    life = job.wait_world(2, after=life)
    before = clock.now_of_a_process()
    for offset_s in (HOUR_S, 0, -HOUR_S):
        clock.set(offset_s)
        assert abs(clock.now_of_a_process() - before - offset_s) < HOUR_S / 2
        train_on(job, life)
        life = lose_and_regain(job, life)
    job.stop()
    assert [node.wait() for node in (*nodes, job.master)] == [0, 0, 0], job.story()

    record = sqlite3.connect(job.folder / "master" / "events.db")
    times = [row[0] for row in record.execute("SELECT unix_ms FROM events ORDER BY id")]
    ((started, ended),) = record.execute("SELECT started_unix_ms, ended_unix_ms FROM runs")
    record.close()
    assert [started, *times, ended] == sorted([started, *times, ended])
    assert ended - started < HOUR_S * 1000 / 2


@pytest.mark.slow
def test_the_wall_clock_is_set_back_while_the_master_is_away(dynamic, job):
    """An agent without a master goes on to look for it: what listens at its address later is found. A program that is
    no master ends nothing, and is dialled again; the next master is joined, and the node's life goes on."""
    clock = dynamic(job)
    first = job.start_master("1:2")
    node = job.node(0, "light_steps.py", nnodes="1:2", flags=["--explain"])
    life = job.wait_world(1)
    clock.set(-HOUR_S)
    # Longer than any of the agent's timers runs: those that ran at the jump are over, by one clock or the other.
    reports = len(job.events)
    job.wait(lambda events: len(events) > reports + 80, "steps after the jump")
    first.signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    job.killed_by_test = True

    def dials(count):
        job.wait(lambda _: node.stderr.count("explain: the master is dialled again") >= count, f"{count} dials")

    dials(3)
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stranger.settimeout(PATIENCE_S)
        stranger.bind(("127.0.0.1", job.port))
        stranger.listen()
        for _ in range(2):
            connection, _ = stranger.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    job.start_master("1:2", "--resume", port=job.port)
    job.master.wait_line("node-back")
    train_on(job, life)
    job.stop()
    assert [node.wait(), job.master.wait()] == [0, 0], job.story()
    assert set(job.lives()) == {life}
