"""What a module must not hold for each of its forks to share."""

import sys

# A module that has one of these for each of its forks to share would share what no two ranks may: by class name, since
# nothing is imported for it.
_NOT_TO_BE_SHARED = {
    "_multiprocessing.SemLock": "a lock of multiprocessing",
    "multiprocessing.synchronize.SemLock": "a lock of multiprocessing",
    "multiprocessing.queues.Queue": "a queue of multiprocessing",
    "multiprocessing.queues.SimpleQueue": "a queue of multiprocessing",
    "multiprocessing.connection._ConnectionBase": "a pipe of multiprocessing",
    "multiprocessing.pool.Pool": "a pool of processes",
    "multiprocessing.managers.BaseManager": "a manager of processes",
    "concurrent.futures._base.Executor": "a pool of threads or processes",
    "mmap.mmap": "memory that is mapped",
    "tempfile.TemporaryDirectory": "a temporary folder",
    "tempfile._TemporaryFileWrapper": "a temporary file",
    "random.Random": "random numbers, which every rank would draw alike",
    "numpy.random._generator.Generator": "random numbers, which every rank would draw alike",
    "numpy.random.mtrand.RandomState": "random numbers, which every rank would draw alike",
    "torch._C.Generator": "random numbers, which every rank would draw alike",
    "socket.socket": "a socket",
    "select.epoll": "an epoll descriptor",
    "sqlite3.Connection": "a connection of SQLite",
    "_io._IOBase": "an open file",
}


def why_not_shared(value):
    """What a fork must not share of a value, or None."""
    kind = type(value)
    if kind.__module__ == "builtins" or any(value is one for one in _renewed_values()):
        return None
    for base in kind.__mro__:
        why = _NOT_TO_BE_SHARED.get(f"{base.__module__}.{base.__qualname__}")
        if why is not None:
            return None if getattr(value, "closed", False) is True else why
    return None


def _renewed_values():
    """Those that each fork has anew: its standard streams, and what Python and forker.py seed."""
    yield from (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)
    for module, name in (("random", "_inst"), ("numpy.random.mtrand", "_rand"), ("torch", "default_generator")):
        if module in sys.modules:
            yield getattr(sys.modules[module], name, None)
