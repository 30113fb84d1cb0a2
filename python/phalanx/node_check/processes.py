"""Processes below this one: hearing of their ends, and ending all of them.

This process is a subreaper, so whatever leaves its session or its parent stays below it.
"""

import os
import select
import signal
import time

END_WITHIN_S = 5
_GONE = (b"Z", b"X")


class Wakeups:
    """Signals as bytes in a pipe: `fd` is readable when one has come. Of the main thread, one at a time."""

    def __init__(self, numbers=()):
        self.heard = set()
        self.fd, self._write = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, _hear) for number in (signal.SIGCHLD, *numbers)}

    def take(self):
        """Empties the pipe into `heard`. Before looking for what has ended, else an end is overheard."""
        try:
            while True:
                numbers = os.read(self.fd, 512)
                self.heard.update(numbers)
                if not numbers:
                    return
        except BlockingIOError:
            return

    def wait(self, seconds):
        select.select([self.fd], [], [], max(0, seconds))
        self.take()

    def close(self):
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        for fd in self.fds():
            os.close(fd)

    def fds(self):
        return self.fd, self._write


def _hear(_number, _frame):
    """The pipe has it."""


def forget_handlers():
    """In a fork: signals do what they do in a fresh Python."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def reap(statuses):
    """Takes the ends of all children that have ended into `statuses`, {pid: status as waitpid gives it}."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        statuses[pid] = status


def end_all(wakeups, statuses, within_s=END_WITHIN_S):
    """Kills all that is below this process, until nothing is left. Returns the names of what is left behind that time,
    as processes that wait for a device are."""
    until = time.monotonic() + within_s
    while True:
        wakeups.take()
        reap(statuses)
        alive = living_descendants()
        if not alive:
            return []
        # Parents before children: nobody is left who could take the end of a child for that child's own.
        for pid in alive:
            _kill(os.kill, pid)
        # And groups at once: one that forks faster than this looks does not get away.
        for group in {group for _, group in alive.values()} - {os.getpgrp()}:
            _kill(os.killpg, group)
        left_s = until - time.monotonic()
        if left_s <= 0:
            return [f"{pid} ({name})" for pid, (name, _) in alive.items()]
        # Each of them becomes our child before it is gone, or its parent is one that we have killed, too.
        wakeups.wait(left_s)


def _kill(how, number):
    try:
        how(number, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # gone since; one of another user is named when it stays


def living_descendants():
    """{pid: (name, process group)} of what is below this process and not a zombie, parents before children."""
    seen, children = {}, {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                stat = file.read()
        except (FileNotFoundError, ProcessLookupError):
            continue
        name, _, rest = stat.partition(b"(")[2].rpartition(b")")
        state, parent, group = rest.split()[:3]
        seen[int(entry)] = (state, name.decode("utf-8", "backslashreplace"), int(group))
        children.setdefault(int(parent), []).append(int(entry))
    found, below = {}, list(children.get(os.getpid(), ()))
    for pid in below:  # which grows
        below += children.get(pid, ())
        state, name, group = seen[pid]
        if state not in _GONE:
            found[pid] = (name, group)
    return found


def how_it_ended(status):
    """Of a waitpid's status, for people: "" for an end with 0."""
    if os.WIFSIGNALED(status):
        return f"died by {signal_name(os.WTERMSIG(status))}"
    code = os.WEXITSTATUS(status)
    return f"exited with status {code}" if code else ""


def signal_name(number):
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
