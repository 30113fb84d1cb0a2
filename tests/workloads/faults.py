"""Deaths on demand: `--fault LIFE:RANK:PHASE:HOW` (repeatable): in that life that rank dies so when it comes by."""

import ctypes
import os
import signal
import time

from report import report

faults = []


def add_argument(parser):
    parser.add_argument("--fault", action="append", default=[], metavar="LIFE:RANK:PHASE:HOW")


def use(specifications):
    faults[:] = [specification.split(":") for specification in specifications]


def planned(phase):
    """How this rank dies in this phase of this life, or None."""
    here = [os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"], phase]
    return next((fault[3] for fault in faults if fault[:3] == here), None)


def planned_for_anybody(phase):
    return any(fault[0] == os.environ["TORCHELASTIC_RESTART_COUNT"] and fault[2] == phase for fault in faults)


def die(how, phase):
    report("dying", phase=phase, how=how)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "exception":
        raise RuntimeError(f"planned exception in {phase}")
    elif how == "exit3":
        os._exit(3)
    elif how == "segv":
        ctypes.string_at(0)
    else:
        raise ValueError(f"no such way to die: {how}")


class _Expiry(ctypes.Structure):
    """A timer's struct sigevent."""

    _fields_ = [
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_byte * 48),
    ]


def die_in(delay_us):
    """SIGKILL after that time, by the kernel: whatever this process does then, and whoever holds Python's lock."""
    libc = ctypes.CDLL(None, use_errno=True)
    expiry, timer = _Expiry(signal=signal.SIGKILL), ctypes.c_void_p()
    span = (ctypes.c_long * 4)(0, 0, delay_us // 1_000_000, max(1, delay_us % 1_000_000 * 1_000))
    if libc.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(expiry), ctypes.byref(timer)) != 0:
        raise OSError(ctypes.get_errno(), "timer_create")
    report("dying", phase="timer", how="kill")
    if libc.timer_settime(timer, 0, span, None) != 0:
        raise OSError(ctypes.get_errno(), "timer_settime")


def pass_by(phase):
    how = planned(phase)
    if how:
        die(how, phase)
