"""A share of this machine for each pytest process of a user, so that several may run tests beside each other.

Ports: a test that looks for a free port and gives it to a launcher leaves it free for a moment. The kernel hands out
ports of `ip_local_port_range` to everybody, so ours lie below, and each process has a range of its own, for which it
holds a lock as long as it lives. User ids: a limit of processes counts all that one user has on the machine.
"""

import fcntl
import functools
import itertools
import os
import socket
import tempfile
from pathlib import Path

# To 19,999: those behind are derived from Slurm's job ids.
FIRST_PORT, PORTS_EACH, SHARES = 10_000, 100, 100
FIRST_USER, USERS_EACH = 54_000, 10  # nobody's: users begin at 1,000, a system's own at 60,000 or so


class Share:
    """The first share that no other process of this machine has."""

    def __init__(self):
        folder = Path(tempfile.gettempdir()) / f"phalanx-test-shares-{os.getuid()}"
        folder.mkdir(exist_ok=True, mode=0o700)
        for number in range(SHARES):
            self._lock = open(folder / str(number), "w")
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._lock.close()
                continue
            self.number = number
            first = FIRST_PORT + number * PORTS_EACH
            self._ports = itertools.cycle(range(first, first + PORTS_EACH))
            first_user = FIRST_USER + number * USERS_EACH
            self._users = itertools.cycle(range(first_user, first_user + USERS_EACH))
            return
        raise RuntimeError(f"{SHARES} other processes run tests on this machine: {folder} has no share left")

    def free_port(self, address):
        """A port of ours that nobody uses on `address`, and that we gave out as long ago as can be."""
        for port in itertools.islice(self._ports, PORTS_EACH):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((address, port))
                except OSError:
                    continue
                return port
        raise RuntimeError(f"all {PORTS_EACH} ports of share {self.number} are in use")

    def free_user(self):
        """A user id of ours that no test of this process has had for long."""
        return next(self._users)


@functools.lru_cache(maxsize=None)
def own_share():
    """Of this process, taken when it is first asked for: one that only collects tests needs none."""
    return Share()


def free_port(address="127.0.0.1"):
    return own_share().free_port(address)


def free_user():
    return own_share().free_user()
