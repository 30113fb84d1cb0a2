"""What an exec passes on and a script may have changed: a life that begins anew has it as the first had."""

import _signal  # whose numbers need no enumeration
import os
import resource
import signal

from phalanx._bootstrap import linux

_LIMITS = sorted({value for name, value in vars(resource).items() if name.startswith("RLIMIT_")})
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_IGNORED, _DEFAULT = int(signal.SIG_IGN), int(signal.SIG_DFL)


class Inherited:
    """What this process has now. To be made before the script's first line; it takes 50 us."""

    def __init__(self):
        self._cpus = os.sched_getaffinity(0)
        self._niceness = os.getpriority(os.PRIO_PROCESS, 0)
        self._ignored = _ignored()
        self._limits = [(limit, resource.getrlimit(limit)) for limit in _LIMITS]

    def put_back(self):
        """As far as this process may: a limit for good and a higher niceness stay to who has no privilege. In any
        thread, for that is what may import."""
        for timer in _TIMERS:
            signal.setitimer(timer, 0)
        ignored = _ignored()
        for number in ignored ^ self._ignored:
            linux.set_disposition(number, _IGNORED if number in self._ignored else _DEFAULT)
        for limit, (soft, hard) in self._limits:
            if resource.getrlimit(limit) != (soft, hard):
                _set_limit(limit, soft, hard)
        _as_far_as_it_may(os.sched_setaffinity, 0, self._cpus)
        _as_far_as_it_may(os.setpriority, os.PRIO_PROCESS, 0, self._niceness)


def _as_far_as_it_may(function, *args):
    try:
        function(*args)
    except OSError:
        pass


def _ignored():
    """Numbers of the signals that are ignored."""
    return {number for number in range(1, _signal.NSIG) if _signal.getsignal(number) == _IGNORED}


def _set_limit(limit, soft, hard):
    try:
        resource.setrlimit(limit, (soft, hard))
    except (ValueError, OSError):
        below = resource.getrlimit(limit)[1]
        both = [value for value in (soft, below) if value != resource.RLIM_INFINITY]
        resource.setrlimit(limit, (min(both, default=resource.RLIM_INFINITY), below))
