"""A share of this machine for each pytest process, so that several may run tests beside each other, whoever runs them.

Ports: a test that looks for a free port and gives it to a launcher leaves it free for a moment. The kernel hands out
ports of `ip_local_port_range` to everybody, so ours lie below, and each process has a range of its own. It holds it by
the name of a socket as long as it lives: such names are common to those who have their ports in common, all users of a
network namespace. User ids: a limit of processes counts all that one user has on the machine.
"""

import errno
import functools
import itertools
import socket

FIRST_PORT, PORTS_EACH, SHARES = 10_000, 100, 100
# What a Slurm job meets at is derived from its id: 20000 + (13 * id + step) % 10000. Those ports are shared out alike.
FIRST_SLURM_PORT, SLURM_FACTOR = 20_000, 13
FIRST_USER, USERS_EACH = 54_000, 10  # nobody's: users begin at 1,000, a system's own at 60,000 or so
NAME = "phalanx-test-share"


class Share:
    """The first share that no other process of this machine has."""

    def __init__(self):
        for number in range(SHARES):
            self._held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                self._held.bind(f"\0{NAME}-{number}")
            except OSError as error:
                self._held.close()
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            self.number = number
            first = FIRST_PORT + number * PORTS_EACH
            self._ports = itertools.cycle(range(first, first + PORTS_EACH))
            self._slurm_ports = itertools.cycle(range(number * PORTS_EACH, (number + 1) * PORTS_EACH))
            first_user = FIRST_USER + number * USERS_EACH
            self._users = itertools.cycle(range(first_user, first_user + USERS_EACH))
            return
        raise RuntimeError(f"{SHARES} other processes run tests on this machine: no share is left")

    def free_port(self, address):
        """A port of ours that nobody uses on `address`, and that we gave out as long ago as can be."""
        for port in itertools.islice(self._ports, PORTS_EACH):
            if is_free(address, port):
                return port
        raise RuntimeError(f"all {PORTS_EACH} ports of share {self.number} are in use")

    def free_slurm_job(self, address):
        """The id of a Slurm job whose step 0 meets at a port of ours that nobody uses on `address`."""
        all_ports = PORTS_EACH * SHARES
        for place in itertools.islice(self._slurm_ports, PORTS_EACH):
            if is_free(address, FIRST_SLURM_PORT + place):
                return all_ports + place * pow(SLURM_FACTOR, -1, all_ports) % all_ports
        raise RuntimeError(f"all {PORTS_EACH} ports of Slurm jobs of share {self.number} are in use")

    def free_user(self):
        """A user id of ours that no test of this process has had for long."""
        return next(self._users)


def is_free(address, port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
        return True


@functools.lru_cache(maxsize=None)
def own_share():
    """Of this process, taken when it is first asked for: one that only collects tests needs none."""
    return Share()


def free_port(address="127.0.0.1"):
    return own_share().free_port(address)


def free_user():
    return own_share().free_user()


def free_slurm_job(address="127.0.0.1"):
    return own_share().free_slurm_job(address)
