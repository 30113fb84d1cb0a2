"""The agent's end of docs/formats/worker-socket.md, small and in Python, for the tests of the bootstrap.

Real sockets, real processes, and a real subreaper, as phalanx-run is.
"""

import array
import ctypes
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

from pidfd import pidfd_open

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BOOTSTRAP = os.environ.get("PHALANX_BOOTSTRAP_DIR") or os.path.join(ROOT, "python", "phalanx", "_bootstrap")
PR_SET_CHILD_SUBREAPER = 36
TIMEOUT_S = 60
# pytest changes its own variable all the time; a worker's environment does not change under its zygote.
BASE_ENV = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}


def write_board(path, redo_until=-1):
    """A board of two slots for ranks of round 5 (docs/formats/rank-board.md). `redo_until`: a step that an earlier
    life has come to."""
    with open(path, "wb") as file:
        file.write(struct.pack("<8sIIIIQqq16s", b"PHXBOARD", 5, 192, 2, 0, 5, redo_until, 0, b"") + bytes(384))


def become_subreaper():
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Peer:
    """The agent's end of one socket pair."""

    def __init__(self):
        self.socket, self.other = socket.socketpair()
        self.socket.settimeout(TIMEOUT_S)

    def send(self, message, fds=()):
        # Bytes of names as they are, as the real one writes them.
        text = json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogateescape")
        frame = struct.pack("<I", len(text)) + text
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        sent = self.socket.sendmsg([frame], ancillary)
        if sent < len(frame):
            self.socket.sendall(frame[sent:])

    def receive(self):
        """The next message, or None at the end of file."""
        head = self._exactly(4)
        if head is None:
            return None
        return json.loads(self._exactly(struct.unpack("<I", head)[0]))

    def _exactly(self, count):
        data = b""
        while len(data) < count:
            try:
                chunk = self.socket.recv(count - len(data))
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                return None
            data += chunk
        return data

    def close(self):
        self.socket.close()
        self.other.close()


class Worker:
    """One Python worker, warm or cold, from its socket to its end."""

    def __init__(self, peer, pid):
        self.peer = peer
        self.pid = pid
        self.status = None
        self.begin_with = None  # of a cold worker: has it begin with another environment
        self.out = tempfile.TemporaryFile()
        self.err = tempfile.TemporaryFile()

    def run(
        self, script, *args, kind="script", cwd=None, env=None, umask=0o022, board=None, stdio=None, base=None, **more
    ):
        env = {**(BASE_ENV if base is None else base), **(env or {})}
        if self.begin_with is not None:
            self.begin_with(env)
        self.send_run(script, *args, kind=kind, cwd=cwd, env=env, umask=umask, board=board, stdio=stdio, **more)
        return self

    def send_run(self, script, *args, kind, cwd, env, umask, board, stdio, **more):
        with open("/dev/null") as null:
            fds = stdio or [null.fileno(), self.out.fileno(), self.err.fileno()]
            message = {
                "type": "run",
                "kind": kind,
                "script": str(script),
                "args": [str(a) for a in args],
                "cwd": str(cwd or os.getcwd()),
                "env": env,
                "umask": umask,
                "board": board,
                **more,
            }
            self.peer.send(message, fds)

    def wait(self):
        """The exit status as subprocess gives it."""
        if self.status is None:
            _, status = _wait_within(self.pid, TIMEOUT_S)
            self.status = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        return self.status

    def stdout(self):
        self.out.seek(0)
        return self.out.read().decode()

    def stderr(self):
        self.err.seek(0)
        return self.err.read().decode()

    def result(self):
        """Waits for the end: (status, stdout, stderr)."""
        status = self.wait()
        return status, self.stdout(), self.stderr()

    def messages(self):
        """All messages until the end of file."""
        found = []
        while True:
            message = self.peer.receive()
            if message is None:
                return found
            found.append(message)

    def kill(self):
        if self.status is None:
            try:
                os.kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.wait()
        self.peer.close()

    def end(self):
        self.kill()
        self.out.close()
        self.err.close()


class Agent:
    """Starts a zygote, asks it for spares, starts cold workers. Use as a context manager: it leaves nothing running."""

    def __init__(self, python=sys.executable, env=None, base=None, cwd=None):
        become_subreaper()
        self.cwd = cwd  # of the processes that it starts; None: its own
        self.python = python
        self.env = {**(BASE_ENV if base is None else base), **(env or {})}
        self.workers = []
        self.zygotes = []
        self.zygote = None
        self.ready = None

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        for worker in self.workers:
            worker.end()
        for process, peer in self.zygotes:
            peer.close()
            process.wait(TIMEOUT_S)

    def start_zygote(self, script, kind="script", cwd=None, learnt=(), deny=(), args=(), given=None, **popen):
        """Returns the zygote's first answer, or None where it ended without one."""
        peer = Peer()
        process = self._start("zygote.py", peer, **popen)
        self.zygotes.append((process, peer))
        self.zygote, self.zygote_process = peer, process
        peer.send(
            {
                "type": "preload",
                "kind": kind,
                "script": str(script),
                "args": list(args),
                "cwd": str(cwd or os.getcwd()),
                **({} if given is None else {"env": given}),
                "learnt": list(learnt),
                "deny": list(deny),
            }
        )
        self.ready = peer.receive()
        return self.ready

    def fork(self, ahead=False):
        """One waiting spare. `ahead`: for a later life, as all but those of the first round."""
        peer = Peer()
        self.zygote.send({"type": "fork", "id": len(self.workers), "ahead": int(ahead)}, [peer.other.fileno()])
        peer.other.close()
        message = peer.receive()
        assert message is not None and message["type"] == "spare", message
        worker = Worker(peer, message["pid"])
        self.workers.append(worker)
        return worker

    def cold(self, **popen):
        """A cold worker that waits. As the real agent's it has the environment of its script from its start on: where
        that turns out to be another one, another process takes its place."""
        peer = Peer()
        process = self._start("worker.py", peer, **popen)
        worker = Worker(peer, process.pid)
        worker.process = process  # kept: its destructor would take the exit status
        self.workers.append(worker)

        def begin_with(env):
            if env != popen.get("env", self.env):
                worker.kill()
                worker.peer, worker.status = Peer(), None
                worker.process = self._start("worker.py", worker.peer, **{**popen, "env": env})
                worker.pid = worker.process.pid

        worker.begin_with = begin_with
        return worker

    def _start(self, door, peer, **popen):
        popen.setdefault("env", self.env)
        popen.setdefault("cwd", self.cwd)
        fd = peer.other.fileno()
        os.set_inheritable(fd, True)
        args = [self.python, "-u", os.path.join(BOOTSTRAP, door), str(fd), " " * 256]
        process = subprocess.Popen(args, pass_fds=[fd], start_new_session=True, **popen)
        peer.other.close()
        return process


def _wait_within(pid, timeout_s):
    """waitpid with a deadline, without polling: a pidfd becomes readable at the end."""
    import select

    fd = pidfd_open(pid)
    try:
        ready, _, _ = select.select([fd], [], [], timeout_s)
        assert ready, f"process {pid} still runs after {timeout_s} s"
        return os.waitpid(pid, 0)
    finally:
        os.close(fd)


def monotonic_ms():
    return time.monotonic_ns() / 1e6
