"""What a process has open, has set and has running: compared before and after an import, for what a fork would lose or
share."""

import gc
import os
import random
import signal
import sys

from phalanx._bootstrap import linux
from phalanx._bootstrap.watching.watch import is_indifferent

_DEVICE_PREFIXES = (
    *("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/infiniband", "/dev/accel", "/dev/davinci"),
    *("/dev/dxg", "/dev/vfio/"),  # WSL2; devices of virtual machines
)
_STREAMS = ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__")


class State:
    """What is there and allowed so far."""

    def __init__(self):
        self._fds = _descriptors()
        self._threads = _threads()
        self._settings = _settings()
        self._maps = _shared_maps()

    def module_is_there(self, module):
        """To be called when one of `awaited` is loaded: whoever wanted it may change what it has."""
        what, ask = _OF_MODULES[module.__name__]
        self._settings.setdefault(what, ask(module))
        if module.__name__ == "torch":  # 2.4 does, whoever imports it
            self._settings[_RENAMED] = linux.thread_name()

    def disregard_thread(self, native_id):
        self._threads.add(str(native_id))

    def new(self, name):
        """What the import of `name` has left that must not be there, or None. What is there is allowed from now on."""
        opened = self._opened(name)
        if opened:
            gc.collect()  # it may be garbage
            opened = self._opened(name)
        if opened:
            return f"it opened {opened}"
        self._fds = _descriptors()
        if _threads() - self._threads:
            return "it started a thread"
        if _has_children():
            return "it started a process"
        maps, settings = _shared_maps(), _settings()
        why = None
        if not is_indifferent(name):
            if maps - self._maps:
                why = "it has mapped memory that forks share"
            why = next((what for what, value in settings.items() if not _same(value, self._settings.get(what))), why)
        self._maps, self._settings = maps, settings
        return why

    def _opened(self, name):
        """What is open that was not before, or None: forks would share it, with its position. Of torch and its like
        only devices and sockets count."""
        for fd, target in _descriptors().items():
            if self._fds.get(fd) == target:
                continue
            if is_device(target) or target.startswith("socket:") or not is_indifferent(name):
                return target
        return None


def is_device(path):
    """Whether a descriptor with that target is a device of the kind that no two processes may share by a fork."""
    return path.startswith(_DEVICE_PREFIXES)


def _numbers(state):
    return [part.tobytes() if hasattr(part, "tobytes") else part for part in state]


def _state_of(generator):
    return generator.get_state().tolist() if hasattr(generator, "get_state") else None


# Of modules that may not be there: what it means to have changed what a rank gets anew, and that.
_OF_MODULES = {
    "numpy.random": (
        "it seeds random numbers of NumPy, or draws some",
        lambda module: _numbers(module.get_state()),
    ),
    "torch": (
        "it seeds random numbers of torch, or draws some",
        lambda module: _state_of(getattr(module, "default_generator", None)),
    ),
    "multiprocessing.process": (
        "it sets the key of multiprocessing",
        lambda module: bytes(module.current_process().authkey),
    ),
}
awaited = tuple(_OF_MODULES)
_RENAMED = "it renames the process"


def _settings():
    """What a rank gets anew when it is given its script, by what it means to have changed it."""
    found = {
        "it changes the working directory": os.getcwd(),
        "it changes sys.argv": (id(sys.argv), tuple(list.__iter__(sys.argv))),
        "it seeds random numbers, or draws some": random.getstate(),
        "it changes or replaces a standard stream": [_stream(name) for name in _STREAMS],
        "it sets a timer": [signal.getitimer(which)[0] > 0 for which in (0, 1, 2)],
        _RENAMED: linux.thread_name(),
        "it replaces __main__": id(sys.modules.get("__main__")),
    }
    for name, (what, ask) in _OF_MODULES.items():
        module = sys.modules.get(name)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            found[what] = ask(module)
    return found


def _same(value, before):
    return before is None or value == before


def _stream(name):
    stream = getattr(sys, name)
    what = ("encoding", "errors", "line_buffering", "write_through", "newlines")
    return (id(stream), *(getattr(stream, attribute, None) for attribute in what))


def _descriptors():
    found = {}
    for entry in os.listdir("/proc/self/fd"):
        try:
            found[entry] = os.readlink("/proc/self/fd/" + entry)
        except OSError:
            pass  # the listing's own descriptor
    return found


def _shared_maps():
    """Writable memory that forks have in common, by its addresses."""
    with open("/proc/self/maps") as file:
        return {line.split(" ", 1)[0] for line in file if line.split(" ", 2)[1][1::2] == "ws"}


def _threads():
    return set(os.listdir("/proc/self/task"))


def _has_children():
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return bool(file.read())
    except OSError:
        return False
