"""Deaths on demand: `--fault LIFE:RANK:PHASE:HOW` (repeatable): in that life that rank dies so when it comes by."""

import ctypes
import os
import signal

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


def pass_by(phase):
    how = planned(phase)
    if how:
        die(how, phase)
