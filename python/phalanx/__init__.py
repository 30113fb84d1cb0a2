"""Phalanx keeps a distributed training job moving.

Nothing here needs to be imported for that: `phalanx-run train.py` runs the script unchanged. `phalanx.step(n)` is for
who wants exact step numbers in what Phalanx reports.
"""

__version__ = "0.1.0"

__all__ = ["__version__", "step"]


def step(n):
    """Say that this process now stands at training step `n` (counted by the script, so also right after a resume).

    Costs about a microsecond. Outside a job, and in child processes of a rank, it does nothing.
    """
    from phalanx._bootstrap import board

    board.set_step(n)
