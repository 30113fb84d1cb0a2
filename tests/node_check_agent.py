"""The agent's end of docs/formats/node-check.md: starts helpers, gives orders, reads lines."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time

from pidfd import pidfd_open

PYTHON = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "python")
TIMEOUT_S = 60


class Helper:
    """One helper, as an agent has it. `env` is added to its environment."""

    def __init__(self, stderr=None, **env):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "phalanx.node_check"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": PYTHON, **env},
        )
        self._rest = b""
        self.ready = self.line()

    @classmethod
    def of_spare(cls, worker, env):
        """A spare of a zygote (zygote_agent.Worker), told to be one."""
        helper = cls.__new__(cls)
        helper.process, helper._rest = _OfSpare(worker, env), b""
        helper.ready = helper.line()
        return helper

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(TIMEOUT_S)
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        if self.process.stderr is not None:
            self.process.stderr.close()

    def line(self):
        """The next line as an object; None at the end."""
        while b"\n" not in self._rest:
            assert select.select([self.process.stdout], [], [], TIMEOUT_S)[0], "the helper is silent"
            data = self.process.stdout.read(1 << 16)
            if not data:
                assert not self._rest, f"half a line: {self._rest[:200]}"
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        assert len(line) < 64 << 10
        line.decode("ascii")
        return json.loads(line)

    def write(self, message):
        self.process.stdin.write(json.dumps(message).encode() + b"\n")

    def order(self, number=7, named=True, **fields):
        """Gives an order, of kind alone where nothing else is said."""
        order = {
            "type": "order",
            "id": number,
            "kind": "alone",
            "group_rank": 0,
            "group_size": 1,
            "store": None,
            "address": "127.0.0.1",
            "peers": [],
            "limit_ms": 30000,
            "directory": "",
            "programs": [],
            "switchbox": None,
            **fields,
        }
        if named and not order["peers"]:
            order["peers"] = [f"node-{chr(ord('a') + rank)}" for rank in range(int(order["group_size"]))]
        self.write(order)

    def until(self, kind, check=None):
        """Reads until that line, and returns it."""
        while True:
            line = self.line()
            assert line is not None, f"no {kind} {check}"
            if line["type"] == kind and check in (None, line.get("check")):
                return line

    def results(self, number=7):
        """({check: result} in their order, the sentence of done). Each result stands behind its begun."""
        found, begun = {}, None
        while True:
            line = self.line()
            assert line is not None and line["id"] == number, line
            if line["type"] == "begun":
                assert begun is None
                begun = line["check"]
            elif line["type"] == "result":
                assert line["check"] == begun
                found[begun], begun = line, None
            else:
                assert line["type"] == "done"
                return found, line["ended"]

    def carry_out(self, number=7, **fields):
        self.order(number, **fields)
        return self.results(number)


class _OfSpare:
    """What subprocess.Popen is to a helper, of a process that a zygote has forked."""

    def __init__(self, worker, env):
        orders, own_orders = os.pipe()
        own_reports, reports = os.pipe()
        own_words, words = os.pipe()
        worker.peer.send({"type": "check", "env": env}, [orders, reports, words])
        for fd in (orders, reports, words):
            os.close(fd)
        self.stdin, self.stdout = open(own_orders, "wb", 0), open(own_reports, "rb", 0)
        self.stderr = open(own_words, "rb", 0)
        self.pid, self._worker = worker.pid, worker

    def wait(self, _timeout_s=None):
        return self._worker.wait()

    def kill(self):
        self._worker.kill()

    def send_signal(self, number):
        os.kill(self.pid, number)


def value_of(result, name):
    values = {each["name"]: each for each in result["values"]}
    assert isinstance(values[name]["value"], int)
    return values[name]["value"]


class Told:
    """A FIFO into which programs tell their pids, a line each."""

    def __init__(self, path):
        os.mkfifo(path)
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._rest = b""

    def pidfd(self):
        """A handle of the process that tells next. It still runs when this returns, or has just ended."""
        while b"\n" not in self._rest:
            assert select.select([self._fd], [], [], TIMEOUT_S)[0], "no process has told its pid"
            self._rest += os.read(self._fd, 4096)
        line, _, self._rest = self._rest.partition(b"\n")
        return pidfd_open(int(line))

    def close(self):
        os.close(self._fd)


def has_ended(handle, within_s=0):
    """Whether the process of a pidfd has ended. A helper that says it is done has waited for that."""
    return bool(select.select([handle], [], [], within_s)[0])


def end(helper, number=signal.SIGKILL):
    """Sends the helper itself a signal, and waits for its end."""
    began = time.monotonic()
    helper.process.send_signal(number)
    helper.process.wait(TIMEOUT_S)
    return time.monotonic() - began
