"""Before nodes join a job that trains, or leave it on purpose, ranks that save often go on to their next save, and end
behind it: the next life goes on exactly there. docs/protocol.md has what the master and the agents do for that.

The step that the master has chosen is not that of a save. All ranks save the same steps, and so they all take the first
save behind it.
"""

import time
from _thread import get_native_id
from os import getpid

from phalanx._bootstrap import board, rescale

# Saves that are further apart are not waited for: nodes that want in, or have to go, would stand about.
APART_MAX_S = 10


class SafePoints:
    """Of one Checkpointer. Times are those of time.monotonic()."""

    def __init__(self):
        self._saved_at = None

    @property
    def has_saved(self):
        return self._saved_at is not None

    def saves(self, now_s):
        """A save begins. From the second one on it is known how far they are apart."""
        if self._saved_at is not None and not rescale.has_callbacks():
            board.hear_rescale(now_s - self._saved_at <= APART_MAX_S)
        self._saved_at = now_s


def is_due(step):
    """Whether the save of that step is to be the last one of this life: the same on all ranks. Where the script has
    given functions to phalanx.on_rescale those decide. Another thread than the one that trains would end nothing."""
    at_step = board.rescale_at()
    return 0 < at_step < step and rescale.is_heard() and not rescale.has_callbacks() and get_native_id() == getpid()


def now_s():
    return time.monotonic()
