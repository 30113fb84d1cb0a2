"""Reports everything about itself that a user's script could notice, to be compared between ways of starting it."""

import atexit
import ctypes
import faulthandler
import gc
import inspect
import locale
import logging
import os
import random
import resource
import signal
import socket
import sys
import threading

import numpy
import torch
from report import report

libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p


class Example:
    """A class of __main__."""

    value = 7


def signal_facts():
    names = {number.name: number for number in signal.Signals}
    glibcs_own = 0x180000000  # signals 32 and 33: whether libc has met a reason to set them up
    lines = [line.split() for line in open("/proc/self/status") if line.startswith("Sig")]
    status = {name.rstrip(":"): f"{int(mask, 16) & ~glibcs_own:016x}" for name, mask in lines if "/" not in mask}
    return {
        "handlers": {name: str(getattr(signal.getsignal(number), "name", "python")) for name, number in names.items()},
        "masks": {name: status[name] for name in ("SigBlk", "SigIgn", "SigCgt")},
        "wakeup_fd": signal.set_wakeup_fd(-1),
    }


def main_facts():
    module = sys.modules["__main__"]
    return {
        "name": __name__,
        "file": __file__,
        "same_file": os.path.samefile(__file__, module.__file__),
        "spec": repr(module.__spec__) if module.__spec__ is None else module.__spec__.name,
        "package": module.__package__,
        "loader": type(module.__loader__).__name__,
        "builtins": type(module.__builtins__).__name__,
        "is_this": module.__dict__ is globals(),
        "names": sorted(name for name in vars(module) if name.startswith("__")),
        "source": inspect.getsource(Example).splitlines()[0],
        "pickled_as": Example.__module__ + "." + Example.__qualname__,
    }


def interpreter_facts():
    return {
        "argv": sys.argv,
        "orig_argv": getattr(sys, "orig_argv", [])[-len(sys.argv) :],
        "path": sys.path,
        "flags": str(sys.flags),
        "executable": sys.executable,
        "prefix": sys.prefix,
        "recursion": sys.getrecursionlimit(),
        "hooks": [sys.excepthook is sys.__excepthook__, sys.gettrace() is None, sys.getprofile() is None],
        "gc": [gc.isenabled(), gc.get_threshold()],
        "warn_options": sys.warnoptions,
        "locale": locale.setlocale(locale.LC_ALL),
        "log_handlers": len(logging.getLogger().handlers),
        "threads": [threading.current_thread().name, threading.active_count(), threading.Thread().name],
        "main_thread": threading.main_thread().native_id == os.getpid(),
        "faulthandler": faulthandler.is_enabled(),
        "hash": hash("phalanx") if os.environ.get("PYTHONHASHSEED") else None,
        "atexit_count_grows": atexit._ncallbacks() < 60,
    }


def stream_facts():
    return {
        stream.name: [stream.encoding, stream.errors, stream.line_buffering, stream.write_through, stream.isatty()]
        for stream in (sys.stdin, sys.stdout, sys.stderr)
    }


def kind_of(target):
    return target.split(":")[0] if ":" in target else target


def process_facts():
    fields = open("/proc/self/stat").read().rsplit(")", 1)[1].split()
    descriptors = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) < 3}
    mask = os.umask(0)
    os.umask(mask)
    return {
        "cwd": os.getcwd(),
        "umask": oct(mask),
        "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
        "nice": os.nice(0),
        "policy": os.sched_getscheduler(0),
        "cpus": sorted(os.sched_getaffinity(0)),
        "timer_slack": open("/proc/self/timerslack_ns").read().strip(),
        "oom": open("/proc/self/oom_score_adj").read().strip(),
        "dumpable": libc.prctl(3),
        "core_filter": open("/proc/self/coredump_filter").read().strip(),
        "limits": {
            name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")
        },
        "tty": int(fields[4]),
        "std": {fd: kind_of(target) for fd, target in sorted(descriptors.items())},
        "cmdline": open("/proc/self/cmdline").read().split("\0"),
        "children": open(f"/proc/self/task/{os.getpid()}/children").read(),
    }


def open_descriptors():
    """What is open beyond the standard streams, and inheritable."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2 and os.get_inheritable(int(name)):
                found[name] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # that of the listing itself
    return found


def torch_facts():
    return {
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "cuda": [torch.cuda.is_initialized(), torch.cuda.device_count()],
        "group": torch.distributed.is_initialized(),
        "launched": torch.distributed.is_torchelastic_launched(),
        "grad": torch.is_grad_enabled(),
        "dtype": str(torch.get_default_dtype()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def environment_facts():
    own = {"TORCHELASTIC_ERROR_FILE", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "RANK", "LOCAL_RANK", "ROLE_RANK"}
    same = {name: value for name, value in os.environ.items() if name not in own and not name.startswith("PHALANX_")}
    in_c = {name: (libc.getenv(name.encode()) or b"").decode(errors="surrogateescape") for name in same}
    return {"python": same, "c_agrees": in_c == same}


def main():
    report(
        "facts",
        facts={
            "signals": signal_facts(),
            "main": main_facts(),
            "interpreter": interpreter_facts(),
            "streams": stream_facts(),
            "process": process_facts(),
            "descriptors": open_descriptors(),
            "torch": torch_facts(),
            "environment": environment_facts(),
        },
        draws=[
            random.random(),
            float(numpy.random.rand()),
            torch.rand(1).item(),
            int.from_bytes(os.urandom(4), "little"),
        ],
        hostname=socket.gethostname(),
    )
    atexit.register(report, "atexit")


if __name__ == "__main__":
    main()
