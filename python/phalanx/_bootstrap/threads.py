"""How many threads libraries use: what they would have counted, had they been imported by this rank.

Torch and OpenBLAS count when they are imported, which was before this rank's environment and CPUs were known.
"""

import os

from phalanx._bootstrap import hidden, linux

# With these, OpenMP binds its threads to places that it chooses among the CPUs it finds when it is loaded.
_PLACES = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


class Counted:
    """What has been counted here, with which CPUs."""

    def __init__(self):
        self._cpus = os.sched_getaffinity(0)
        self._torch = _torch_threads()

    def why_not(self, request):
        """A reason why a fork of this process cannot count anew, or None."""
        if not request.get("bound"):
            return None
        for name in _PLACES:
            if request["env"].get(name):
                return f"{name} is applied when a process starts, and this rank has CPUs of its own"
        if _counts_cores(request["env"]) and self._torch != _cores(self._cpus):
            return "torch counts its threads otherwise than by the cores, and this rank has CPUs of its own"
        return None


def apply(environment, bound):
    apply_to_torch(environment, bound)
    apply_to_openblas(environment)


def apply_to_torch(environment, bound):
    torch = hidden.find("torch")
    count = _first_number(environment, "OMP_NUM_THREADS")
    if count is None and bound and _counts_cores(environment):
        count = _cores(os.sched_getaffinity(0))
    if torch is not None and count is not None and torch.get_num_threads() != count:
        torch.set_num_threads(count)


def apply_to_openblas(environment):
    count = _first_number(environment, "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
    count = count or len(os.sched_getaffinity(0))
    if hidden.find("numpy") is not None and count > 1:  # one thread is what it was imported with
        linux.set_openblas_threads(count)


def _torch_threads():
    torch = hidden.find("torch")
    return None if torch is None else torch.get_num_threads()


def _counts_cores(environment):
    """Whether torch asks MKL, which counts the cores that the process may use. Without MKL it counts the machine's."""
    torch = hidden.find("torch")
    if torch is None or not torch.backends.mkl.is_available():
        return False
    return _first_number(environment, "OMP_NUM_THREADS") is None and not environment.get("MKL_NUM_THREADS")


def _cores(cpus):
    """How many physical cores these CPUs are of. One that tells of no siblings is a core."""
    cores = set()
    for cpu in cpus:
        try:
            with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") as file:
                cores.add(file.read().strip())
        except OSError:
            cores.add(cpu)
    return len(cores)


def _first_number(environment, *names):
    for name in names:
        first = environment.get(name, "").split(",")[0].strip()
        if first.isdigit() and int(first) > 0:
            return int(first)
    return None
