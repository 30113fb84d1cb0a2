"""This rank's end of the checkpoint socket: phalanx.checkpoint speaks with the agent through it."""

import fcntl
import os

from phalanx._bootstrap import wire

_fd = -1
_identity = None


def keep(fd):
    """From now on `fd`, which came with `run`, is the checkpoint socket. To be called before the standard streams are
    put in place: it makes room for them."""
    global _fd, _identity
    fd = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) if fd < 3 else fd
    os.set_inheritable(fd, False)
    _fd, _identity = fd, wire.identity(fd)


def socket_fd():
    """The socket; -1 where there is none: no agent, an older one, a forked child of the rank, or the script has closed
    the descriptor."""
    return _fd if _identity is not None and _identity == wire.identity(_fd) else -1


def forget():
    """In a forked child of the rank: the agent must see the end of the rank's life, not that of its children."""
    global _fd, _identity
    if socket_fd() >= 0:
        os.close(_fd)
    _fd, _identity = -1, None
