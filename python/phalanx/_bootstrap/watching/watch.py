"""Sees what a library does while it is imported that a fork cannot inherit: it reads what differs between ranks, asks
which process it is, draws random numbers, looks at `__main__`. What it writes is kept, to be written in each rank.

Functions of `os` and methods are replaced while it watches, and put back after. A module that has taken one by name has
it exchanged in its names; who holds one elsewhere, as a default of an argument, has one that no longer watches.
"""

import _posixsubprocess  # before subprocess, which keeps its function by name
import os
import random
import sys
import types
from _weakref import ref

from phalanx._bootstrap import hidden, linux, places
from phalanx._bootstrap.watching import reads, tracked
from phalanx._bootstrap.watching.modules import kept_names

# What torch and its like do at their imports is known: it holds no process and draws nothing. What they read counts.
INDIFFERENT = frozenset("torch numpy functorch torchgen sympy mpmath networkx triton".split())

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
_RANK_NAMES = sorted(RANK_VARIABLES) + [
    _RANK_PREFIX + name
    for name in "RESTART_COUNT MAX_RESTARTS RUN_ID USE_AGENT_STORE SIGNALS_TO_HANDLE ERROR_FILE".split()
]

# Functions of `os` whose answer is another one in each process.
_ = _posixsubprocess
_PROCESS = {
    "getpid": "it asks for its process id",
    "getppid": "it asks for its parent",
    "getsid": "it asks for its session",
    "getpgid": "it asks for its process group",
    "getpgrp": "it asks for its process group",
    "umask": "it asks for the umask",
    "urandom": "it draws random numbers, which every rank would draw alike",
    "getrandom": "it draws random numbers, which every rank would draw alike",
    "isatty": "it asks whether a stream is a terminal",
    "get_terminal_size": "it asks for the size of a terminal",
    "sched_getaffinity": "it asks which processors it may use",
    "process_cpu_count": "it asks which processors it may use",
    "fork": "it starts a process",
    "forkpty": "it starts a process",
    "posix_spawn": "it starts a process",
    "posix_spawnp": "it starts a process",
    "system": "it starts a process",
    "register_at_fork": "it wants to be told of forks, and each rank is one",
}
_THREAD_ID = "it asks for the id of its thread"
# Such functions of other modules, and names that others of the standard library have for them.
_ALIASES = (
    ("random", "_urandom", _PROCESS["urandom"]),
    ("_posixsubprocess", "fork_exec", _PROCESS["fork"]),
    ("subprocess", "_fork_exec", _PROCESS["fork"]),
    ("_thread", "get_native_id", _THREAD_ID),
    ("threading", "get_native_id", _THREAD_ID),
    ("uuid", "uuid1", _PROCESS["urandom"]),
)
# A module, by the end of its name, that may have a generator of its own: setuptools brings it along.
_MAY_HAVE_A_GENERATOR = "more_itertools.recipes"
# What a library may ask C for by the interpreter's own handle, too, past Python.
_ASKED_OF_C = frozenset("getenv secure_getenv environ __environ getpid getppid gettid getrandom syscall".split())
# Of the standard library's own callers these keep the answer for their caller; logging only writes it.
_ASKS_FOR_ITSELF = frozenset(("logging", "threading"))
# Ask, as they are imported, whether /proc has certain files for this process: it has them for each.
_ASKS_WHAT_IS_ALIKE = frozenset(("psutil._pslinux",))
# What a script's `__main__` has when its first line runs, and nobody can have changed.
_MAIN_AS_EVER = frozenset("__name__ __file__ __loader__ __spec__ __package__ __builtins__ __cached__ __class__".split())
_OF_A_FUNCTION = 1  # CO_OPTIMIZED: neither of a module's code nor of a class's body
_IMPORTERS = ("<frozen importlib", "<frozen zipimport")


class Tainted(BaseException):
    """Importing `module` did something that a fork cannot undo or must not inherit."""

    def __init__(self, module, why):
        super().__init__(module, why)
        self.module = module
        self.why = why


def is_indifferent(name):
    return name.partition(".")[0] in INDIFFERENT


def differs_between_ranks(variable):
    return variable in RANK_VARIABLES or variable.startswith(_RANK_PREFIX)


class Statement(dict):
    """The names of a statement that stands for one of the script's own."""


class MainModule(types.ModuleType):
    """A `__main__` that sees who looks at it."""

    on_look = None

    def __getattribute__(self, name):
        look = MainModule.on_look
        if look is not None and name not in _MAIN_AS_EVER:
            look(name)
        return super().__getattribute__(name)


class Watch:
    """`read`: names of environment variables that were looked at, with what they were (None: unset); `late`: those
    looked at since `is_late` was set. `walked`: whether somebody has looked through all of them. `said`: [(stream's
    name, text)]. `taint`: the first thing seen that must not be, as Tainted; it is raised where it happens, too, but
    whoever imports may catch that. `watches_files`: whether `reads` sees anything, set between imports. `nobody`: who
    has done what no library at work has."""

    def __init__(self, nobody=""):
        self.read = {}
        self.late = {}
        self.is_late = False
        self.walked = False
        self.said = []
        self.taint = None
        self._nobody = nobody
        self._is_watching = False
        self._undo = []
        self._replaced = {}
        self._changed = set()  # variables that imports have set or removed: what they read of those is their own
        self._changed_late = set()  # of these, since `is_late` was set
        self._generators = {}  # id: weak reference, of those that were seeded from the system
        self._walker = None  # the library that looks through the environment
        self._tracked = tracked.Tracked(self._used)
        self.reads = reads.Reads(self._counts, self._asked)
        self.watches_files = True

    def __enter__(self):
        self._watch_environment(type(os.environ))
        for name, why in _PROCESS.items():
            if hasattr(os, name):
                self._replace(os, name, self._asking(getattr(os, name), why))
        self._replace(os, "write", self._writing(os.write))
        for holder in dict.fromkeys(holder for holder, _, _ in _ALIASES):
            if holder in sys.modules:
                self.module_is_there(sys.modules[holder])
        self._replace(random.Random, "seed", self._seeding(random.Random.seed))
        for holder, name, watched in self.reads.watched() if self.watches_files else ():
            self._replace(holder, name, watched)
        self.reads.is_on = True
        if linux.ctypes is not None:
            self._watch_c(linux.ctypes.CDLL)
        MainModule.on_look = self._main_looked_at
        self._is_watching = True
        for name in ("stdout", "stderr"):
            self._watch_stream(getattr(sys, name), name)
        return self

    def __exit__(self, *unused):
        MainModule.on_look = None
        self._is_watching = self.reads.is_on = False
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def module_is_there(self, module):
        """To be called for those of `awaited` that are loaded meanwhile."""
        for holder, name, why in _ALIASES:
            if holder == module.__name__ and hasattr(module, name):
                self._replace(module, name, self._asking(getattr(module, name), why))
        thread = getattr(module, "Thread", None) if module.__name__ == "threading" else None
        if hasattr(thread, "native_id"):
            self._replace(thread, "native_id", property(self._asking(thread.native_id.fget, _THREAD_ID)))

    awaited = ("threading", "uuid")

    def put_back(self, module):
        """Exchanges our functions in a module's names, and in those of its classes, for those that they stand for."""
        names = kept_names(module)
        for key, value in list(names.items()):
            if self._is_ours(value):
                names[key] = self._replaced[value]
            elif type(value) is type and value.__module__ == module.__name__:
                for name, member in list(vars(value).items()):
                    if self._is_ours(member):
                        setattr(value, name, self._replaced[member])
                    elif type(member) is staticmethod and self._is_ours(member.__func__):
                        setattr(value, name, staticmethod(self._replaced[member.__func__]))

    def _is_ours(self, value):
        kind = type(value)  # compared by `is`: this is asked of all names of all modules
        return (kind is types.FunctionType or kind is reads.Watched or kind is reads.WatchedClass) and (
            value in self._replaced
        )

    def _replace(self, holder, name, function):
        original = getattr(holder, name)
        self._replaced[function] = original
        setattr(holder, name, function)

        def undo():
            if getattr(holder, name, None) is function:
                setattr(holder, name, original)
            else:  # a library has put its own there, which stays, and may call ours
                self.taint = self.taint or Tainted("?", f"it replaces {name} of {getattr(holder, '__name__', holder)}")

        self._undo.append(undo)

    def _watch_environment(self, kind):
        get, walk, put, remove = kind.__getitem__, kind.__iter__, kind.__setitem__, kind.__delitem__

        def get_item(environment, name):
            if self._tracked.is_one(name):
                return self._tracked.value()
            try:
                value = get(environment, name)
            except KeyError:
                self._note(name, None)
                raise
            self._note(name, value)
            return value

        def iterate(environment):
            yield from walk(environment)
            if self._is_watching:
                yield from self._rank_names(environment, _library_at_work(sys._getframe(1)))

        def set_item(environment, name, value):
            put(environment, name, value)
            if self._is_watching:
                self._note_change(name)
            if self._is_watching and isinstance(name, str) and differs_between_ranks(name):
                self._taint(_library_at_work(sys._getframe(1)), f"it sets {name}")

        def delete_item(environment, name):
            remove(environment, name)
            if self._is_watching:
                self._note_change(name)

        def represent(environment):
            if self._is_watching:
                self._walker = _library_at_work(sys._getframe(1))
                if not is_indifferent(self._walker):
                    self._used()
            return show(environment)

        show = kind.__repr__
        self._replace(kind, "__repr__", represent)
        self._replace(kind, "__getitem__", get_item)
        self._replace(kind, "__iter__", iterate)
        self._replace(kind, "__setitem__", set_item)
        self._replace(kind, "__delitem__", delete_item)

    def _rank_names(self, environment, library):
        """For who looks through all names: those that are not here, but will be in a rank."""
        if is_indifferent(library):
            return ()
        self._walker = library
        if environment is not os.environ:
            self._used()
        self.walked = True
        return self._tracked.names(_RANK_NAMES)

    def _used(self):
        if self._is_watching:
            self._taint(self._walker, "it looks through all of the environment, which differs between ranks")

    def forget_names(self, new_modules):
        """Raises Tainted where a library has kept the name of a variable that is another one in each rank, or where one
        of `new_modules` holds a text with such names, or their values, in it."""
        texts = self._tracked.are_in_hands() and any(map(self._has_names, new_modules))
        if self._tracked.forget() or texts:
            self._taint(self._walker, "it keeps what it finds in the environment, which differs between ranks")

    def _has_names(self, module):
        found = [value for value in kept_names(module).values() if issubclass(type(value), (str, bytes))]
        return any(self._tracked.is_in(value, _RANK_NAMES) for value in found)

    def _note_change(self, name):
        self._changed.add(_text(name))
        if self.is_late:
            self._changed_late.add(_text(name))

    def _note(self, name, value):
        name, value = _text(name), _text(value)
        if not isinstance(name, str) or not self._is_watching:
            return
        # The script may set it otherwise between what has set it first and what reads it late.
        is_late = self.is_late and name not in self._changed_late
        if name in self._changed and not is_late:
            return
        library = _library_at_work(sys._getframe(2))
        if differs_between_ranks(name):
            self._taint(library, f"it reads {name} while it is imported")
        if name in hidden.COUNTED_ANEW and is_indifferent(library):
            return
        if name not in self._changed:
            self.read.setdefault(name, value)
        if is_late:
            self.late.setdefault(name, value)

    def _asking(self, original, why):
        def asking(*args, **named):
            if self._is_watching:
                self._asked(sys._getframe(1), why)
            return original(*args, **named)

        return asking

    def _seeding(self, original):
        def seeding(generator, a=None, *args, **named):
            if self._is_watching and a is None and not _is_reseeded(sys._getframe(1)):
                self._asked(sys._getframe(1), _PROCESS["urandom"])
            if self._is_watching:
                self._note_generator(generator, a)
            return original(generator, a, *args, **named)

        return seeding

    def _note_generator(self, generator, seed):
        if seed is None:
            self._generators[id(generator)] = ref(generator)
        else:
            self._generators.pop(id(generator), None)

    def generators(self):
        """Those of Python that imports have made and seeded from the system, and that are still there."""
        return [found for found in (reference() for reference in self._generators.values()) if found is not None]

    def _writing(self, original):
        def writing(fd, data):
            if self._is_watching and fd in (1, 2):
                self._asked(sys._getframe(1), "it writes past sys.stdout and sys.stderr")
            return original(fd, data)

        return writing

    def _asked(self, frame, why):
        caller = frame.f_globals.get("__name__", "")
        if caller.partition(".")[0] in _ASKS_FOR_ITSELF:
            return
        if _asks_what_is_alike(frame):
            return
        if caller == "tempfile":
            why = "it makes a temporary file, or a lock of multiprocessing"
        library = _library_at_work(frame) or self._nobody
        if library and not is_indifferent(library) and not _is_for_a_parser(frame, why):
            self._taint(library, why)

    def _counts(self, frame):
        """The library at work, where what it does counts; else empty."""
        library = (_library_at_work(frame) or self._nobody) if self._is_watching else ""
        return "" if library == "?" or is_indifferent(library) else library

    def _watch_c(self, kind):
        look_up = kind.__getitem__

        def get_item(library, name):
            is_c = library._name is None or "libc.so" in str(library._name)
            if self._is_watching and is_c and (type(library) is kind or name in _ASKED_OF_C):
                importing = _library_at_work(sys._getframe(1))
                if importing and not is_indifferent(importing):
                    self._taint(importing, f"it calls {name} of the C library, past Python")
            return look_up(library, name)

        self._replace(kind, "__getitem__", get_item)

    def _watch_stream(self, stream, name):
        if stream is None:
            return

        def write(text):
            if not self._is_watching:
                return usual(text)
            self.said.append((name, str(text)))
            return len(text)

        isatty, usual = stream.isatty, stream.write

        def ask():
            if self._is_watching:
                self._asked(sys._getframe(1), f"it asks whether {name} is a terminal")
            return isatty()

        try:
            stream.write, stream.isatty = write, ask
        except AttributeError:
            return  # not a stream of Python's own
        self._replaced[write], self._replaced[ask] = usual, isatty
        self._undo.append(lambda: [vars(stream).pop(method, None) for method in ("write", "isatty")])

    def _main_looked_at(self, name):
        frame = sys._getframe(2)
        library = _library_at_work(frame)
        if library and not is_indifferent(library) and not frame.f_code.co_filename.startswith(places.OUR_FOLDER):
            self._taint(library, f"it looks at {name} of __main__, where the script's names are")

    def _taint(self, library, why):
        tainted = Tainted(library or "?", why)
        self.taint = self.taint or tainted
        raise tainted


def _is_for_a_parser(frame, why):
    """argparse asks how wide a help would be, at each argument that it is given."""
    while why == _PROCESS["get_terminal_size"] and frame is not None:
        if frame.f_globals.get("__name__") == "argparse":
            return True
        frame = frame.f_back
    return False


def _asks_what_is_alike(frame):
    while frame is not None and frame.f_globals.get("__name__") in ("genericpath", "posixpath"):
        frame = frame.f_back
    if frame is None or frame.f_code.co_flags & _OF_A_FUNCTION:
        return False
    return frame.f_globals.get("__name__") in _ASKS_WHAT_IS_ALIKE


def _is_reseeded(frame):
    """Whether that is the generator of which each fork makes another: forker.py."""
    while frame is not None and frame.f_globals.get("__name__") == "random":
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__", "").endswith(_MAY_HAVE_A_GENERATOR)


def _text(name):
    return os.fsdecode(name) if isinstance(name, bytes) else name


def _library_at_work(frame):
    """The library whose import this is a part of: torch or its like, where these import it, else the nearest module
    that is being imported. Empty for one of the standard library, which keeps nothing of a process that is not
    renewed, unless somebody's code has called it."""
    caller, importing = None, None
    while frame is not None:
        filename = frame.f_code.co_filename
        if not filename.startswith((places.OUR_FOLDER, *_IMPORTERS)) and type(frame.f_globals) is not Statement:
            name = frame.f_globals.get("__name__", "?")
            if frame.f_code.co_name == "<module>":
                if is_indifferent(name):
                    return name
                if importing is None:
                    importing = (caller or "") if places.is_standard_name(name) else name
            elif caller is None and not places.is_standard_name(name):
                caller = name
        frame = frame.f_back
    return importing if importing is not None else caller or "?"
