"""Which steps stay, by DLRover's strategies, of a phalanx.checkpoint Checkpointer."""

import os
import sys
import threading

from dlrover.python.common import storage

OFFERED = {}


def settings(strategy):
    """What a phalanx.checkpoint Checkpointer is to know of the strategy. One of the user's own it is not told of."""
    if type(strategy) is storage.KeepLatestStepStrategy:
        return {"keep_last": strategy.max_to_keep}
    if type(strategy) is storage.KeepStepIntervalStrategy:
        return {"keep_every": strategy.keep_interval}
    if strategy is None or callable(getattr(strategy, "clean_up", None)):
        return {}
    raise TypeError(
        f"phalanx-dlrover: deletion_strategy is {strategy!r}; expected one of dlrover.python.common.storage, or one "
        "that has clean_up(step, delete_func)"
    )


class Own:
    """A strategy of the user's own, asked on rank 0 when a step is stored: of the step before it, as DLRover asks."""

    def __init__(self, strategy, checkpointer):
        is_known = type(strategy) in (storage.KeepLatestStepStrategy, storage.KeepStepIntervalStrategy)
        self._strategy = None if is_known else strategy
        self._checkpointer = checkpointer
        self._lock = threading.Lock()
        self._newest = None

    def on_stored(self, step):
        """In the thread that tells what became of saves."""
        if self._strategy is None:
            return
        with self._lock:
            before, self._newest = self._before(step), step
            if before is not None:
                self._strategy.clean_up(before, self._delete)

    def _before(self, step):
        if self._newest is not None:
            return self._newest
        return next((each.step for each in self._checkpointer.steps() if each.step != step), None)

    def _delete(self, path):
        """The folder of a step goes as a step, so that nobody takes a half of it for one."""
        directory, name = os.path.split(os.path.abspath(path))
        if directory == self._checkpointer.directory and name.isdecimal():
            self._checkpointer.delete(int(name))
        elif os.path.isfile(path):
            os.unlink(path)
        elif os.path.exists(path):
            sys.stderr.write(
                f"phalanx-dlrover: {path} is not deleted: expected the folder of a step in "
                f"{self._checkpointer.directory}, or a file\n"
            )
