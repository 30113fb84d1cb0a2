"""Imports, ahead of time, what the script will import, and notices what must not be imported ahead of time."""

import gc
import importlib
import os
import sys

from phalanx._bootstrap import hidden, places

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

_DEVICE_PREFIXES = (
    *("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/infiniband", "/dev/accel", "/dev/davinci"),
    *("/dev/dxg", "/dev/vfio/"),  # WSL2; devices of virtual machines
)

# What a script does before it imports these changes nothing in them but what is looked at: the environment they read,
# their files, the names that a later entry of sys.path could take from them.
INDIFFERENT = frozenset("torch numpy functorch torchgen sympy mpmath networkx triton".split())
# Libraries that lead to torch.
_LEAD_TO_TORCH = frozenset(
    "accelerate deepspeed diffusers fairscale lightning megatron peft pytorch_lightning timm torchaudio torchvision "
    "transformers trl".split()
)
LATE = "phalanx.late"  # on the deny list: nothing is imported ahead of its turn for this script


def leads_to_torch(names):
    return any(name.partition(".")[0] in ("torch", *_LEAD_TO_TORCH) for name in names)


def is_indifferent(name):
    return name.partition(".")[0] in INDIFFERENT


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
    "random.Random": "random numbers, which every rank would draw alike",
    "numpy.random._generator.Generator": "random numbers, which every rank would draw alike",
    "numpy.random.mtrand.RandomState": "random numbers, which every rank would draw alike",
    "torch._C.Generator": "random numbers, which every rank would draw alike",
    "socket.socket": "a socket",
    "select.epoll": "an epoll descriptor",
    "sqlite3.Connection": "a connection of SQLite",
    "_io._IOBase": "an open file",
}
# Modules whose own state is renewed in each fork, by Python or by forker.py, or holds none of a process.
_RENEWED = frozenset(("random", "numpy.random", "numpy.random.mtrand", "secrets", "sys", "tempfile", "torch", "uuid"))


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
        self._seen = set(sys.modules)
        self._environment = _EnvironmentWatch()
        self._fds = _descriptors()
        self._threads = _threads()
        self._before_late = None

    @property
    def variables_read(self):
        """Names of environment variables that imported modules looked at, with what they saw (None: unset)."""
        return self._environment.read

    @property
    def late_variables_read(self):
        """Those of modules that the script has not imported yet when its first line runs."""
        return {name: value for name, value in self._environment.read.items() if name in self._environment.late}

    def begins_late(self):
        """What is loaded from now on the script imports later, or not at all."""
        self._environment.is_late = True
        self._before_late = frozenset(sys.modules), list(sys.path)

    def hide_late(self):
        """From now on those modules are in hidden.py's hands."""
        if self._before_late is not None:
            hidden.hide(*self._before_late, self.late_variables_read)

    def files(self):
        """{path: (size, mtime)} of all that has been imported here."""
        found = {}
        for module in list(sys.modules.values()):
            path = getattr(getattr(module, "__spec__", None), "origin", None)
            if isinstance(path, str) and os.path.isabs(path):
                found[path] = places.version_of(path)
        return found

    def load(self, names, check=True):
        """Imports what can be imported of `names`. Raises Tainted or Shadowed."""
        for name in names:
            self._load_one(name, check)

    def load_in_order(self, names, attributes=frozenset()):
        """Imports `names` up to the first that cannot be imported here: what comes behind that may depend on it.
        Returns that one and why, or None. `attributes`: those that Python would first look for in their package.

        Raises Shadowed; or Tainted, with one of `names`: one more zygote will do, whatever else that one imports."""
        for name in names:
            if name in attributes and self._is_attribute(name):
                continue
            if self.denies(name):
                return name, "it must not be imported ahead"
            try:
                error = self._load_one(name, True)
            except Tainted as tainted:
                inner = "" if tainted.module == name else f"it imports {tainted.module}: "
                raise Tainted(name, inner + tainted.why) from None
            if error is not None:
                return name, f"its import fails: {error}"
        return None

    def _is_attribute(self, name):
        parent, _, child = name.rpartition(".")
        with self._environment:
            return hasattr(sys.modules.get(parent), child)

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

    def _load_one(self, name, check):
        """None, or how its import failed."""
        if name in sys.modules:
            return None
        with self._environment:
            sys.meta_path.insert(0, self)
            try:
                error = self._import(name)
            finally:
                sys.meta_path.remove(self)
        if check and error is None:
            self.check(name)
        return error

    def _import(self, name):
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
            return error
        return None

    def check(self, name):
        """Raises Tainted where something has been done that a fork cannot undo; `name` is said to have done it."""
        self._check_values()
        opened = self._opened(name)
        if opened:
            gc.collect()  # it may be garbage
            opened = self._opened(name)
        if opened:
            raise Tainted(name, f"it opened {opened}")
        self._fds = _descriptors()
        if _threads() - self._threads:
            raise Tainted(name, "it started a thread")
        if _has_children():
            raise Tainted(name, "it started a process")

    def _check_values(self):
        """What new modules hold by a name of their own, and must not share."""
        for name in [name for name in sys.modules if name not in self._seen]:
            self._seen.add(name)
            module = sys.modules[name]
            if is_indifferent(name) or name in _RENEWED or not places.is_library_module(module):
                continue
            if places.is_standard(name, module):
                continue
            for key, value in list(vars(module).items()):
                why = _why_not_shared(value)
                if why is not None:
                    raise Tainted(name, f"it holds {why} ({key})")

    def _opened(self, name):
        """What is open that was not before, or None: forks would share it, with its position. Of torch and its like
        only devices and sockets count."""
        for fd, target in _descriptors().items():
            if self._fds.get(fd) == target:
                continue
            if target.startswith((*_DEVICE_PREFIXES, "socket:")) or not is_indifferent(name):
                return target
        return None


class WatchedArguments(list):
    """A sys.argv that knows whether somebody has looked at it."""

    was_read = False

    def _noting(name):
        method = getattr(list, name)

        def noting(self, *args):
            self.was_read = True
            return method(self, *args)

        return noting

    for _name in "__getitem__ __iter__ __len__ __contains__ __eq__ __add__ __repr__ copy count index".split():
        locals()[_name] = _noting(_name)
    del _name, _noting


class _EnvironmentWatch:
    """Sees which variables are read through os.environ while it is entered."""

    def __init__(self):
        self.read = {}
        self.late = set()
        self.is_late = False

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
        if self.is_late:
            self.late.add(name)


def _why_not_shared(value):
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
