"""Installed beside the stand-in libraries: what they see while they are imported, and what the script tells of it.

A library says `see(__name__, "env:LIB_MODE", "argv")`; the script ends with `tell(...)`, which prints all that was
seen, in its order, a JSON line each, then what the script itself sees. Nothing is looked at that was not asked for: a
recorder that read RANK for everybody would have every library imported by each rank.
"""

import os
import sys

SEEN = []
_PIDS = {}


def see(library, *what):
    _PIDS[library] = _process()
    SEEN.append({"library": library, **{name: _look(name) for name in what}})


def _process():
    """Not by os.getpid: a library that asks for it is never imported ahead."""
    return os.readlink("/proc/self")


def note(library, **fields):
    """What a library has done, in the order of such things."""
    SEEN.append({"library": library, **fields})


def tell(*what):
    """Prints what was seen. In the life that is to die, this is where it dies."""
    import json

    for record in SEEN:
        print(json.dumps(record, sort_keys=True))
    print(json.dumps({"script": {name: _look(name) for name in what}}, sort_keys=True))
    _note_preloaded()
    step = getattr(sys.modules.get("phalanx"), "step", None)
    if step is not None:
        step(1)
    _die_if_asked()


def _note_preloaded():
    """For the test alone, not to be compared: which libraries another process had imported for this one."""
    if os.environ["RANK"] == "0":
        with open(os.environ["STANDIN_PRELOADED"], "a") as file:
            file.write(" ".join(sorted(name for name, pid in _PIDS.items() if pid != _process())) + "\n")


def _die_if_asked():
    """The first life edits what the test wants edited, and is then killed."""
    import json

    folder = os.environ["STANDIN_DIES"]
    if os.environ["RANK"] != "0" or os.path.exists(os.path.join(folder, "died")):
        return
    import signal

    open(os.path.join(folder, "died"), "x").close()
    with open(os.path.join(folder, "edits.json")) as file:
        edits = json.load(file)
    for path, text in edits.items():
        with open(path, "w") as file:
            file.write(text)
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def _look(what):
    kind, _, name = what.partition(":")
    return _LOOKS[kind](name)


def _c_getenv(name):
    import ctypes

    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    value = getenv(name.encode())
    return None if value is None else value.decode()


def _all_of_environment(prefix):
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(prefix)}


def _hooks(_):
    ours = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("phalanx")]
    return [getattr(finder, "__name__", type(finder).__name__) for finder in ours]


def _filters(_):
    import warnings

    return [[action, kind.__name__, str(module)] for action, _, kind, module, _ in warnings.filters]


def _logging(_):
    import logging

    root = logging.getLogger()
    formats = [getattr(handler.formatter, "_fmt", None) for handler in root.handlers]
    return [root.level, formats, logging.raiseExceptions, logging.getLoggerClass().__name__]


def _locale(_):
    import locale

    return locale.setlocale(locale.LC_ALL)


def _signals(_):
    import signal

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE)
    return {number.name: _name_of(signal.getsignal(number)) for number in numbers}


def _name_of(value):
    return getattr(value, "__qualname__", None) or str(value)


def _draw(_):
    import random

    return random.random()


def _threads(_):
    import threading

    return sorted(thread.name for thread in threading.enumerate())


def _descriptors(_):
    """Open files but devices and the standard streams. What a launcher adds for itself are sockets and devices."""
    found = []
    for entry in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink("/proc/self/fd/" + entry)
        except OSError:
            continue  # the listing's own descriptor
        if int(entry) > 2 and target.startswith("/") and not target.startswith(("/dev/", "/proc/")):
            found.append(os.path.basename(target))
    return sorted(found)


def _gc(_):
    import gc

    return [gc.isenabled(), list(gc.get_threshold())]


def _umask(_):
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _exists(name):
    return os.path.exists(name)


def _main(_):
    main = sys.modules["__main__"]
    return [getattr(main, "__file__", None), sorted(name for name in vars(main) if not name.startswith("__"))]


def _attribute(name):
    import importlib

    module, _, attribute = name.rpartition(".")
    return _name_of(getattr(importlib.import_module(module), attribute, "not there"))


_LOOKS = {
    "env": os.environ.get,
    "has": lambda name: name in os.environ,
    "bytes": lambda name: str(os.environb.get(name.encode())),
    "environment": _all_of_environment,
    "c": _c_getenv,
    "argv": lambda _: list(sys.argv),
    "main": _main,
    "cwd": lambda _: os.getcwd(),
    "exists": _exists,
    "path": lambda _: list(sys.path),
    "hooks": _hooks,
    "filters": _filters,
    "logging": _logging,
    "locale": _locale,
    "signals": _signals,
    "draw": _draw,
    "threads": _threads,
    "fds": _descriptors,
    "gc": _gc,
    "umask": _umask,
    "loaded": lambda name: name in sys.modules,
    "file": lambda name: sys.modules[name].__file__,
    "attribute": _attribute,
    "recursion": lambda _: sys.getrecursionlimit(),
    "encoding": lambda _: [sys.stdout.encoding, sys.stdout.errors, sys.getfilesystemencoding()],
    "excepthook": lambda _: _name_of(sys.excepthook),
    "bytecode": lambda _: sys.dont_write_bytecode,
    "stdin": lambda _: os.readlink("/proc/self/fd/0"),
}
