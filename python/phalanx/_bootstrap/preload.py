"""Imports, ahead of time, what the script will import, and notices what must not be imported ahead of time."""

import gc
import importlib
import os
import sys

from phalanx._bootstrap import places

# What torch imports late: at the first optimizer, process group or wrapped model. About a second otherwise.
TORCH_LAZY = (
    "torch.distributed",
    "torch.distributed.nn",
    "torch.nn.parallel",
    "torch.optim",
    "torch.utils.data",
    "torch._dynamo",
    "torch.distributed.tensor",
    "torch.distributed.algorithms.join",
    "torch.distributed.elastic.multiprocessing.errors",
)

# Differ between ranks or between lives: a module that looks at them while it is imported must be imported by each rank.
RANK_VARIABLES = frozenset(
    (
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME"),
        *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT", "PHALANX_EPOCH", "PHALANX_BOARD"),
        *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    )
)
_RANK_PREFIX = "TORCHELASTIC_"

_DEVICE_PREFIXES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/infiniband", "/dev/accel", "/dev/davinci")


class Tainted(BaseException):
    """Importing `module` did something that a fork cannot undo or must not inherit."""

    def __init__(self, module, why):
        super().__init__(module, why)
        self.module = module
        self.why = why


class Shadowed(BaseException):
    """A library looks for a module whose name the script's folder has: only a process standing there can import it."""

    def __init__(self, module):
        super().__init__(module)
        self.module = module


class _Denied(BaseException):
    """An import that must not happen here. Not an Exception: no `except ImportError` may take another path for it."""


def differs_between_ranks(variable):
    return variable in RANK_VARIABLES or variable.startswith(_RANK_PREFIX)


class Preloader:
    """Imports modules one by one. `denied`: dotted names that are never imported, with all below them; `own`: top-level
    names that the script's folder provides, which would be another module there."""

    def __init__(self, denied, own):
        self._denied = frozenset(denied)
        self._own = own
        self._environment = _EnvironmentWatch()
        self._fds = _descriptors()
        self._threads = _threads()

    @property
    def variables_read(self):
        """Names of environment variables that imported modules looked at, with what they saw (None: unset)."""
        return self._environment.read

    def load(self, names, check=True):
        """Imports what can be imported of `names`. Raises Tainted or Shadowed."""
        with self._environment:
            sys.meta_path.insert(0, self)
            try:
                for name in names:
                    if self._load_one(name) and check:
                        self.check(name)
            finally:
                sys.meta_path.remove(self)

    def disregard_thread(self, native_id):
        """That thread is not a module's."""
        self._threads.add(str(native_id))

    def denies(self, name):
        """Whether `name`, or a package it is in, is never imported."""
        while name:
            if name in self._denied:
                return True
            name = name.rpartition(".")[0]
        return False

    def find_spec(self, name, path=None, target=None):
        """The import system asks here first."""
        if name in self._own or self.denies(name):
            raise _Denied(name)
        return None

    def _load_one(self, name):
        """False where it was there already."""
        if name in sys.modules:
            return False
        before = set(sys.modules)
        try:
            importlib.import_module(name)
        except (Tainted, Shadowed, KeyboardInterrupt):
            raise
        except BaseException as error:  # whatever a module does when it fails, it is left to the script to meet it
            _forget_orphans(before)
            if isinstance(error, _Denied) and not before.issuperset(sys.modules):
                # Half done, it has left its marks in what it imported; done again in a fork it would meet them.
                if str(error) in self._own:
                    raise Shadowed(str(error)) from None
                raise Tainted(name, f"it imports {error}, which must not be imported here") from None
        return True

    def check(self, name):
        """Raises Tainted where something has been done that a fork cannot undo; `name` is said to have done it."""
        opened = self._opened()
        if opened:
            gc.collect()  # it may be garbage
            opened = self._opened()
        if opened:
            raise Tainted(name, f"it opened {opened}")
        if _threads() - self._threads:
            raise Tainted(name, "it started a thread")
        if _has_children():
            raise Tainted(name, "it started a process")

    def _opened(self):
        """A device or a socket that was not there before, or None."""
        for fd, target in _descriptors().items():
            if self._fds.get(fd) != target and target.startswith((*_DEVICE_PREFIXES, "socket:")):
                return target
        return None


class _EnvironmentWatch:
    """Sees which variables are read through os.environ while it is entered."""

    def __init__(self):
        self.read = {}

    def __enter__(self):
        kind = type(os.environ)
        self._original = original = kind.__getitem__

        def watched(environment, name):
            try:
                value = original(environment, name)
            except KeyError:
                self._note(name, None)
                raise
            self._note(name, value)
            return value

        kind.__getitem__ = watched
        return self

    def __exit__(self, *unused):
        type(os.environ).__getitem__ = self._original

    def _note(self, name, value):
        if not isinstance(name, str):
            return
        if differs_between_ranks(name):
            raise Tainted(_module_being_imported(sys._getframe(2)), f"it reads {name} while it is imported")
        self.read.setdefault(name, value)


def _module_being_imported(frame):
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            return frame.f_globals.get("__name__", "?")
        frame = frame.f_back
    return "?"


def _forget_orphans(before):
    """After an import that failed halfway: drops modules whose parent is not there, so that a later one starts anew."""
    for name in sorted(set(sys.modules) - before):
        parent = name.rpartition(".")[0]
        if parent and parent not in sys.modules:
            sys.modules.pop(name, None)


def _descriptors():
    found = {}
    for entry in os.listdir("/proc/self/fd"):
        try:
            found[entry] = os.readlink("/proc/self/fd/" + entry)
        except OSError:
            pass  # the listing's own descriptor
    return found


def _threads():
    return set(os.listdir("/proc/self/task"))


def _has_children():
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return bool(file.read())
    except OSError:
        return False


def without_rank_variables():
    for name in [name for name in os.environ if differs_between_ranks(name)]:
        del os.environ[name]


def top_level_modules_loaded():
    """Top-level names that came by preloading (not with the interpreter)."""
    return frozenset(n for n in sys.modules if "." not in n) - places.modules_at_start
