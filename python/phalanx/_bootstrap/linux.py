"""The few things of Linux that Python's os module does not offer. Without ctypes they are left out, silently."""

import mmap
import os
import signal
import sys
from _thread import get_native_id

try:
    import ctypes
except ImportError:  # a Python built without libffi
    ctypes = None

# Signals that schedulers, terminals and people send to whole groups of processes.
FOR_RANKS = frozenset(
    (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2),
)

_FUTEX_WAITERS = 0x80000000
_MADV_DONTFORK = 10
_MADV_POPULATE_WRITE = 23

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SIGNAL_SET_BYTES = 128  # sigset_t, of glibc and musl
SIGNAL_BYTES = 16 * 128  # 16 of struct signalfd_siginfo
_STATFS_BYTES = 256  # more than any has; it begins with the magic number
_PR_SET_MM = 35
_PR_SET_MM_MAP = 14

# Positions in /proc/self/stat behind the name's closing parenthesis, where the state is 0.
_STAT_START_CODE, _STAT_END_CODE, _STAT_START_STACK = 23, 24, 25
_STAT_START_DATA, _STAT_END_DATA, _STAT_START_BRK = 42, 43, 44
_STAT_ARG_START, _STAT_ARG_END, _STAT_ENV_START, _STAT_ENV_END = 45, 46, 47, 48

_OPENBLAS_SETTERS = tuple(
    prefix + "openblas_set_num_threads" + suffix for prefix in ("scipy_", "") for suffix in ("64_", "")
)

_libc = ctypes.CDLL(None, use_errno=True) if ctypes else None
_kept_mappings = []  # what the kernel now reads as this process's command line must stay mapped


def die_with_parent(parent_pid):
    """This process is killed when its parent (the agent's main thread) ends. False where that has happened already."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    return os.getppid() == parent_pid


def adopt_orphans():
    """Processes below this one become its children when their parents end, whatever sessions they have made."""
    if _libc is not None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def hold_until_death(path, at):
    """Makes of 64 bytes of zeros at `at` in a file a robust mutex that this thread never lets go of. When the thread
    ends the kernel does, before anything else, and wakes who waits for the first word to change: a death is known
    before the memory of the dead has been taken apart. Without such locks the word stays 0."""
    address = _map_for_good(path, at) if _libc is not None else None
    if address is None:
        return
    mutex, attributes = ctypes.c_void_p(address), ctypes.create_string_buffer(64)
    try:
        made = (
            _libc.pthread_mutexattr_init(attributes) == 0
            and _libc.pthread_mutexattr_setpshared(attributes, 1) == 0
            and _libc.pthread_mutexattr_setrobust(attributes, 1) == 0
            and _libc.pthread_mutex_init(mutex, attributes) == 0
        )
    except AttributeError:  # another C library
        return
    word = ctypes.c_uint32.from_address(address)
    if made and _libc.pthread_mutex_lock(mutex) == 0 and word.value == get_native_id():
        word.value |= _FUTEX_WAITERS  # else the kernel wakes nobody


def _map_for_good(path, at):
    """The address of that byte of the file, mapped until the process ends, without a descriptor, and not in forks of
    it; None where it cannot be."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    _libc.mmap.restype, page = ctypes.c_void_p, mmap.PAGESIZE
    size, start = ctypes.c_size_t(page), ctypes.c_long(at // page * page)
    mapped = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, start)
    os.close(fd)
    if mapped == ctypes.c_void_p(-1).value:
        return None
    _libc.madvise(ctypes.c_void_p(mapped), size, _MADV_DONTFORK)
    return mapped + at % page


def populate(address, size):
    """Has the kernel give this process pages of its own there, as writing them would (Linux 5.14). What is not mapped
    there stays so. Returns whether all of it was done."""
    return _libc is not None and not _libc.madvise(
        ctypes.c_void_p(address), ctypes.c_size_t(size), _MADV_POPULATE_WRITE
    )


def can_populate():
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        return ctypes is not None and populate(ctypes.addressof(ctypes.c_char.from_buffer(page)), mmap.PAGESIZE)


def coerced_locale():
    """What the interpreter itself has put into the environment where no locale was set (PEP 538), as a dict.

    Only before set_command_line, which shows another environment to the kernel."""
    value = os.environ.get("LC_CTYPE")
    if value is None:
        return {}
    return {} if "LC_CTYPE" in environment_at_start() else {"LC_CTYPE": value}


def environment_at_start():
    """What this process was started with, before any Python code has changed it: {name: value}.

    Only before set_command_line. Where the kernel does not show it: what there is now."""
    try:
        with open("/proc/self/environ", "rb") as file:
            pairs = [entry.partition(b"=") for entry in file.read().split(b"\0")]
    except OSError:  # not ours to read, where the interpreter has capabilities of its own
        return dict(os.environ)
    return {os.fsdecode(name): os.fsdecode(value) for name, equals, value in pairs if equals}


def changes_at_start(given):
    """What a wrapper of the interpreter has exported and removed, of the environment that it was given: {name: value,
    None: it is not there}. Only before set_command_line."""
    start = environment_at_start()
    return {name: start.get(name) for name in {*start, *given} if start.get(name) != given.get(name)}


def signals_as_reads(numbers):
    """A descriptor that gives, in reads of up to SIGNAL_BYTES, those of these blocked signals that have come to this
    process (signalfd); -1: there is none to be had."""
    if not hasattr(_libc, "signalfd"):
        return -1
    of_libc = ctypes.create_string_buffer(_SIGNAL_SET_BYTES)
    _libc.sigemptyset(of_libc)
    for number in numbers:
        _libc.sigaddset(of_libc, ctypes.c_int(number))
    return _libc.signalfd(-1, of_libc, os.O_CLOEXEC)


def set_disposition(number, what):
    """Ignores a signal (1) or has it do what it does (0), in any thread."""
    if _libc is not None:
        _libc.signal.restype = ctypes.c_void_p
        _libc.signal(ctypes.c_int(number), ctypes.c_void_p(what))


def thread_name():
    with open("/proc/self/comm", "rb") as file:
        return file.read().rstrip(b"\n")


def _command_line():
    """The words of this process as the kernel shows them."""
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return [os.fsdecode(word) for word in file.read().split(b"\0")]
    except OSError:
        return []


def set_command_line(args, environment):
    """Makes /proc/self/cmdline and /proc/self/environ those of a process started with `args` and `environment`."""
    if _libc is None:
        return
    try:
        numbers = _memory_map_numbers()
    except (OSError, ValueError, IndexError):
        return
    args_text = b"".join(os.fsencode(arg) + b"\0" for arg in args)
    env_text = b"".join(os.fsencode(k) + b"=" + os.fsencode(v) + b"\0" for k, v in environment.items())
    # In place first: it needs nothing of the kernel, and libraries that set a title later write to that place.
    start, end = numbers[_STAT_ARG_START], numbers[_STAT_ARG_END]
    room = end - start if start else 0
    if room > 0:
        fitting = args_text if len(args_text) <= room else args_text[: room - 1]
        ctypes.memmove(start, fitting + b"\0" * (room - len(fitting)), room)
    if len(args_text) > room:
        start = 0
    _point_kernel_at(numbers, start, args_text, env_text)


def _memory_map_numbers():
    """The words of /proc/self/stat behind the name; the state, a letter, is 0."""
    with open("/proc/self/stat", "rb") as file:
        return [0] + [int(word) for word in file.read().rpartition(b")")[2].split()[1:]]


class _MemoryMap(ctypes.Structure if ctypes else object):
    """struct prctl_mm_map"""

    if ctypes:
        _fields_ = [("addresses", ctypes.c_uint64 * 12), ("auxv_size", ctypes.c_uint32), ("exe_fd", ctypes.c_uint32)]


def _point_kernel_at(numbers, args_start, args_text, env_text):
    """Tells the kernel where the texts are: the arguments at `args_start`, or if 0 in memory of their own, as the
    environment is. Needs a kernel with checkpoint support, no privilege; else the arguments end in a row of NULs."""
    if not args_start:
        env_text = args_text + env_text
    text = ctypes.create_string_buffer(env_text, len(env_text) or 1)
    env_start = ctypes.addressof(text)
    env_end = env_start + len(env_text)
    if not args_start:
        args_start = env_start
        env_start += len(args_text)
    _libc.sbrk.restype = ctypes.c_void_p
    _libc.sbrk.argtypes = [ctypes.c_long]
    memory_map = _MemoryMap(auxv_size=0, exe_fd=0xFFFFFFFF)
    memory_map.addresses[:] = [
        numbers[_STAT_START_CODE],
        numbers[_STAT_END_CODE],
        numbers[_STAT_START_DATA],
        numbers[_STAT_END_DATA],
        numbers[_STAT_START_BRK],
        _libc.sbrk(0),
        numbers[_STAT_START_STACK],
        args_start,
        args_start + len(args_text),
        env_start,
        env_end,
        0,  # the auxiliary vector stays
    ]
    size = ctypes.c_ulong(ctypes.sizeof(memory_map))
    if _libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, ctypes.byref(memory_map), size, ctypes.c_ulong(0)) == 0:
        _kept_mappings.append(text)


def inotify(flags):
    """A descriptor that tells of changes, or -1: there is none to be had."""
    return _libc.inotify_init1(flags) if hasattr(_libc, "inotify_init1") else -1


def inotify_add_watch(fd, path, mask):
    """Whether `fd` tells of changes of that path now."""
    return _libc.inotify_add_watch(fd, os.fsencode(path), ctypes.c_uint32(mask)) >= 0


def file_system(path):
    """The magic number of the one that a path is on (statfs); None where nobody says."""
    answer = ctypes.create_string_buffer(_STATFS_BYTES) if ctypes else None
    if not hasattr(_libc, "statfs") or _libc.statfs(os.fsencode(path), answer) != 0:
        return None
    return ctypes.c_ulong.from_buffer(answer).value


def set_openblas_threads(count):
    """In each OpenBLAS of this process, whatever its wheel has called it."""
    if _libc is None:
        return
    with open("/proc/self/maps") as file:
        paths = {line.split(None, 5)[5].rstrip("\n") for line in file if "openblas" in line}
    for path in paths:
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for name in _OPENBLAS_SETTERS:
            if hasattr(library, name):
                getattr(library, name)(ctypes.c_int(count))
                break


def interpreter_options():
    """The name this interpreter was started by, and its own options (those of a wrapper, say), with -u the last."""
    words = list(getattr(sys, "orig_argv", None) or _command_line())  # the former since Python 3.10
    return words[: words.index("-u") + 1] if "-u" in words else [sys.executable, "-u"]
