"""The standard streams as `python -u` makes them, on descriptors that have just been put in place."""

import fcntl
import io
import os
import sys


def put_in_place(fds):
    """Moves three descriptors to 0, 1 and 2."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) if fd < 3 else fd for fd in fds]
    for target, fd in enumerate(high):
        os.dup2(fd, target, inheritable=True)
    for fd in set(fds) | set(high):
        if fd > 2:
            os.close(fd)


def renew():
    """Re-makes sys.stdin, sys.stdout and sys.stderr. The objects stay the same, so that what holds them (a logging
    handler made by an import) goes on as in a fresh process; what they know of their descriptor is asked anew."""
    _renew("stdin", "__stdin__", 0, "strict")
    _renew("stdout", "__stdout__", 1, "strict")
    _renew("stderr", "__stderr__", 2, "backslashreplace")


def _renew(name, original_name, fd, errors):
    stream = getattr(sys, original_name)
    old_encoding = getattr(stream, "encoding", None) or "utf-8"
    old_errors = getattr(stream, "errors", None) or errors
    try:
        if fd == 0:
            buffer = open(fd, "rb", buffering=-1, closefd=False)
            buffer.raw.name = f"<{name}>"
        else:
            buffer = open(fd, "wb", buffering=0, closefd=False)
            buffer.name = f"<{name}>"
    except OSError:
        return  # closed, as `<&-` leaves it
    settings = {"encoding": old_encoding, "errors": old_errors, "newline": "\n", "write_through": True}
    if type(stream) is io.TextIOWrapper:
        stream.__init__(buffer, **settings)
    else:
        replaced = getattr(sys, name) is not stream
        stream = io.TextIOWrapper(buffer, **settings)
        setattr(sys, original_name, stream)
        if not replaced:
            setattr(sys, name, stream)
    stream.mode = "r" if fd == 0 else "w"
