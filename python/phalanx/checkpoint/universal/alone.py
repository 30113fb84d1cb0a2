"""Locks of files, by which those who write into a folder keep out of each other's way, also from several nodes where
the file system has locks."""

import contextlib
import errno
import fcntl
import os

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


def locked(path):
    """A descriptor of the file, which is there and ours until that is closed; waits for who has it. File systems
    without locks are taken as they are. OSError."""
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(lock)
                raise
            return lock
        if _is_at(path, lock):
            return lock
        os.close(lock)  # who had it before has removed it


def locked_at_once(path):
    """The same of a file that is there and that nobody has; else, and where there are no locks, None. OSError."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with contextlib.suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(path, lock):
            return lock
    os.close(lock)
    return None


def _is_at(path, lock):
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(lock), os.stat(path))
    return False
