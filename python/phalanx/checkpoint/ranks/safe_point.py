"""Before nodes join a job that trains, or leave it on purpose, ranks that save often go on to their next save, and end
behind it: the next life goes on exactly there. docs/protocol.md has what the master and the agents do for that.

The step that the master has chosen is not that of a save. All ranks save the same steps, and so they all take the same
save behind it.
"""

from _thread import get_native_id
from os import getpid

from phalanx._bootstrap import board, rescale

# Saves that are further apart are not waited for: nodes that want in, or have to go, would stand about.
APART_MAX_S = 10
# Where nobody says any more whether all ranks have it: the master is away. As long as a job's own grace is.
PATIENCE_S = 30
_NS_PER_S = 1_000_000_000


class SafePoints:
    """Of one Checkpointer. Times are those of time.monotonic_ns()."""

    def __init__(self):
        self._step = self._saved_at_ns = None
        self._given_up = 0  # the step that was chosen, and behind which this rank has waited in vain

    @property
    def has_saved(self):
        return self._step is not None

    def saves(self, step, now_ns):
        """A save begins. It is heard for as long as the next one may take, from the second step on that is saved: by
        then it is known how far they are apart."""
        if step == self._step:
            return
        is_soon = self._saved_at_ns is not None and now_ns - self._saved_at_ns <= APART_MAX_S * _NS_PER_S
        self._step, self._saved_at_ns = step, now_ns
        hear(now_ns + APART_MAX_S * _NS_PER_S if is_soon else 0)

    def is_due(self):
        """Whether the save that begins is to be the last one of this life: the same on all ranks. It is not where only
        this one comes to the chosen step: a script may tell its steps by saves alone, and then some ranks begin it
        before they hear of that step, and some behind. Where functions were given to phalanx.on_rescale those decide.
        """
        at_step = board.rescale_at()
        is_behind = 0 < at_step <= board.told_step() and at_step != self._given_up
        return is_behind and rescale.is_heard() and not rescale.has_callbacks()

    def give_up(self):
        """Nobody says whether all ranks have that save: the training goes on."""
        self._given_up = board.rescale_at()


def hear(until_ns):
    """Until when the agent may ask for a safe point; 0: no more. Functions that the script has given to
    phalanx.on_rescale are asked at all times."""
    if not rescale.has_callbacks():
        board.hear_rescale(until_ns)


def is_here():
    """Only where the training itself saves is a save the end of a step."""
    return get_native_id() == getpid()
