"""What a run of tests leaves running: a process of pytest that dies cannot end the jobs that it has started."""

import contextlib
import os
import select
import signal
import time
from pathlib import Path

# In the environment of all that a run starts, however far down.
MARKER = "PHALANX_TEST_RUN"
ENDS_WITHIN_S = 5
ROUNDS = 3  # a process may start another one while we look


def read(pid, name):
    """A file of /proc/<pid>, b"" where the process is gone or not ours to look at."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def carries(pid, run):
    return f"{MARKER}={run}".encode() in read(pid, "environ").split(b"\0")


def found(run):
    """The processes of a run that live, but for this one."""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return [pid for pid in pids if pid != os.getpid() and carries(pid, run)]


def end(run):
    """Kills what a run has left, once that had time to end by itself. Returns "PID COMMAND" of what was killed."""
    deadline, killed = time.monotonic() + ENDS_WITHIN_S, {}
    for _ in range(ROUNDS):
        for pid in found(run):
            with contextlib.suppress(ProcessLookupError):
                end_one(pid, run, deadline, killed)
    return list(killed.values())


def end_one(pid, run, deadline, killed):
    """Waits for a process until the deadline, then kills it. A number may have gone to another process meanwhile: it is
    asked once more for its mark, behind a handle that stays that of the same process."""
    handle = os.pidfd_open(pid)
    try:
        if not carries(pid, run):
            return
        if not ends(handle, max(0, deadline - time.monotonic())):
            words = read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
            killed[pid] = f"{pid} {words[:150]}"
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            ends(handle, ENDS_WITHIN_S)
    finally:
        os.close(handle)


def ends(handle, within_s):
    return bool(select.select([handle], [], [], within_s)[0])
