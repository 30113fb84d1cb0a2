"""How many threads libraries use: what they would have counted, had they been imported by this rank.

Torch and OpenBLAS count when they are imported, which was before this rank's environment and CPUs were known.
"""

import functools
import os
import re
import sys

from phalanx._bootstrap import hidden, linux

_NUMBER = re.compile(r"\+?[0-9]+\Z")  # as strtoul has them
_CONFIG_OF_COMPILERS = "torch._inductor.config"
# With these, OpenMP binds its threads to places that it chooses among the CPUs it finds when it is loaded.
PLACES = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


_openblas_threads = 1  # with one it is imported
_cpus_of_imports = None  # how many the zygote may use


class Uncounted:
    """In the place of a Late: whoever imports torch forks, and must start no thread. `count_anew` follows in a fork."""

    def why_not(self, names):
        return None

    def count(self, names):
        pass


def count_anew():
    """In a fork that is no rank: torch uses as many threads as if this process had imported it."""
    torch = hidden.find("torch")
    count = _number_for_torch(os.environ, _asks_mkl(torch))
    if count is None:
        count = _cores(os.sched_getaffinity(0)) if _asks_mkl(torch) else os.cpu_count()
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


class Counted:
    """What has been counted here, with which CPUs. `environment`: the zygote's before any import; `numbers`: {"torch"
    or "numpy": numbers() as its import began}."""

    def __init__(self, environment, numbers):
        global _cpus_of_imports
        self._cpus = os.sched_getaffinity(0)
        _cpus_of_imports = len(self._cpus)
        _cores(range(os.cpu_count() or 0))  # asked once for all forks
        self._torch = _torch_threads()
        self._changes = {
            module: {name: value for name, value in found.items() if environment.get(name) != value}
            for module, found in numbers.items()
        }

    def why_not(self, request):
        """A reason why a fork of this process cannot count anew, or None."""
        if not request.get("bound"):
            return None
        for name in PLACES:
            if request["env"].get(name):
                return f"{name} is applied when a process starts, and this rank has CPUs of its own"
        if _counts_cores(self._environment_of("torch", request)) and self._torch != _cores(self._cpus):
            return "torch counts its threads otherwise than by the cores, and this rank has CPUs of its own"
        return None

    def apply(self, request):
        """To what is imported and not hidden, as it would have been in this rank."""
        if "torch" in sys.modules:
            _apply_to_torch(self._environment_of("torch", request), bool(request.get("bound")))
        if "numpy" in sys.modules:
            _apply_to_openblas(self._environment_of("numpy", request))
        if _CONFIG_OF_COMPILERS in sys.modules:
            _apply_to_compilers()

    def _environment_of(self, module, request):
        """With what libraries had set before that one was imported, and without what they set later."""
        changed = {**request["env"], **self._changes.get(module, {})}
        return {name: value for name, value in changed.items() if value is not None}


class Late:
    """Counts for hidden modules when the script imports them. Made before its first line."""

    def __init__(self, bound):
        self._bound = bound
        self._cpus = os.sched_getaffinity(0)
        self._has_number = _first_number(os.environ, "OMP_NUM_THREADS") is not None

    def why_not(self, names):
        """Why what these have counted cannot be counted anew, or None."""
        if os.sched_getaffinity(0) != self._cpus:
            return "the script has changed which processors it may use"
        if "torch" in names and self._has_number and _first_number(os.environ, "OMP_NUM_THREADS") is None:
            return "it has read OMP_NUM_THREADS, which the script has removed since"
        return None

    def count(self, names):
        """Only torch and NumPy themselves count: what the script has told torch since stays."""
        if "torch" in names:
            _apply_to_torch(os.environ, self._bound)
        if "numpy" in names:
            _apply_to_openblas(os.environ)
        if _CONFIG_OF_COMPILERS in names:
            _apply_to_compilers()


def numbers():
    """The variables now, past whoever watches os.environ: {name: value or None}."""
    return {name: _text(os.environ._data.get(os.fsencode(name))) for name in hidden.COUNTED_ANEW}


def _text(value):
    return None if value is None else os.fsdecode(value)


def _apply_to_torch(environment, bound):
    torch = hidden.find("torch")
    if torch is None:
        return
    count = _number_for_torch(environment, _asks_mkl(torch))
    if count is None and bound and _counts_cores(environment):
        count = _cores(os.sched_getaffinity(0))
    if count is not None and torch.get_num_threads() != count:
        torch.set_num_threads(count)


def _number_for_torch(environment, asks_mkl):
    """What the environment says, or None. MKL has a variable of its own, and takes no more than the machine has cores,
    unless it is told to; those that this process may use count only where nobody names a number."""
    if not asks_mkl:
        return _first_number(environment, "OMP_NUM_THREADS")
    count = _first_number(environment, "MKL_NUM_THREADS", "OMP_NUM_THREADS")
    if count is None or environment.get("MKL_DYNAMIC") == "FALSE":
        return count
    return min(count, _cores(range(os.sysconf("SC_NPROCESSORS_ONLN"))))


def _apply_to_openblas(environment):
    global _openblas_threads
    count = _first_number(environment, "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
    count = count or len(os.sched_getaffinity(0))
    if count != _openblas_threads:
        _openblas_threads = count
        linux.set_openblas_threads(count)


def _apply_to_compilers():
    """torch.compile starts as many as the process may use processors, which it counts when it is imported."""
    config = hidden.find(_CONFIG_OF_COMPILERS)
    decide = getattr(config, "decide_compile_threads", None)
    if decide is None or len(os.sched_getaffinity(0)) == _cpus_of_imports:
        return
    count = decide()
    entry = getattr(config, "_config", {}).get("compile_threads")
    if getattr(entry, "default", None) is not None:
        entry.default = count  # no override: those are of a thread, and count for what is compiled


def _torch_threads():
    torch = hidden.find("torch")
    return None if torch is None else torch.get_num_threads()


def _counts_cores(environment):
    """Whether torch asks MKL, which counts the cores that the process may use. Without MKL it counts the machine's."""
    torch = hidden.find("torch")
    if torch is None or not _asks_mkl(torch):
        return False
    return _first_number(environment, "OMP_NUM_THREADS") is None and not environment.get("MKL_NUM_THREADS")


def _asks_mkl(torch):
    """Not where its own threads are OpenMP's alone."""
    backends = getattr(torch, "backends", None)
    return hasattr(backends, "mkl") and backends.mkl.is_available()


def _cores(cpus):
    """How many physical cores these CPUs are of."""
    return len(set(map(_core_of, cpus)))


@functools.lru_cache(maxsize=None)
def _core_of(cpu):
    """What the CPUs of its core have in common. One that tells of no siblings is a core."""
    try:
        with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") as file:
            return file.read().strip()
    except OSError:
        return cpu


def _first_number(environment, *names):
    for name in names:
        first = environment.get(name, "").split(",")[0].strip()
        if _NUMBER.match(first) and int(first) > 0:
            return int(first)
    return None
