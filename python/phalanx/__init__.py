"""Phalanx keeps a distributed training job moving.

Nothing here needs to be imported for that: `phalanx-run train.py` runs the script unchanged. `phalanx.step(n)` and
`phalanx.saving()` are for who wants exact numbers in what Phalanx reports; `phalanx.on_rescale` for who wants to save
before the job changes its size; `phalanx.elastic_launch` launches functions, as torch's does.
"""

__version__ = "0.1.0"

__all__ = [
    "ChildFailedError",
    "LaunchConfig",
    "LaunchError",
    "LogsSpecs",
    "SignalException",
    "UsageError",
    "__version__",
    "elastic_launch",
    "on_rescale",
    "saving",
    "step",
]


def step(n):
    """Say that this process now stands at training step `n` (counted by the script, so also right after a resume).

    With it `phalanx ledger` knows which steps were done again after a failure. Costs about a microsecond. Outside a
    job, and in child processes of a rank, it does nothing.
    """
    from phalanx._bootstrap import board

    board.set_step(n)


class saving:
    """`with phalanx.saving():` around a checkpoint that the training waits for: `phalanx ledger` counts it as such.

    `torch.save` and `torch.distributed.checkpoint.save` need none. It may stand inside another, and exceptions pass
    through. Outside a job, in child processes of a rank and in other threads than the main one it does nothing.
    """

    def __init__(self):
        self._counted = []

    def __enter__(self):
        from phalanx._bootstrap import board

        self._counted.append(board.begin_saving())

    def __exit__(self, *error):
        from phalanx._bootstrap import board

        if self._counted.pop():
            board.end_saving()


def on_rescale(callback):
    """Have `callback()` called before nodes join a job that trains, or leave it on purpose: the moment to save.

    It runs in the thread that steps, inside `phalanx.step(n)` or, where the script calls none, inside the optimizer's
    `step()`, behind the same step on all ranks: collective saves work in it. Afterwards this process is ended, and
    starts anew in the new world; it may also end itself with exit code 0. Returns `callback`, to be a decorator, too.
    Outside a job, and in child processes of a rank, nothing is ever called.
    """
    if not callable(callback):
        raise TypeError(f"phalanx.on_rescale: expected a function, got {callback!r}")
    from phalanx._bootstrap import rescale

    rescale.add(callback)
    return callback


def __getattr__(name):
    """What only launching programs need is imported when they ask for it: ranks import this package, too."""
    if name in ("LaunchConfig", "LogsSpecs", "elastic_launch"):
        from phalanx import launcher

        return getattr(launcher, name)
    if name in ("ChildFailedError", "SignalException"):  # torch's own, where there is a torch
        from phalanx._launch import errors

        failed, _, stopped = errors.classes()
        return failed if name == "ChildFailedError" else stopped
    if name in ("LaunchError", "UsageError"):
        from phalanx._launch import errors

        return getattr(errors, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
