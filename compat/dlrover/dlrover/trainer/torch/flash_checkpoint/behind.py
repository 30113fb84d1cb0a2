"""What happens behind a save, for the checkpointers of one directory: names for its file, and deletion strategies."""

import os
import sys

from phalanx.checkpoint import Storage
from phalanx.checkpoint.adapters import saver
from phalanx.checkpoint.ranks import place

from dlrover.trainer.torch.flash_checkpoint import checkpointer, paths, retention
from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType

OFFERED = {}


class Behind(checkpointer.Checkpointer):
    """Of a phalanx.checkpoint Checkpointer, and the thread that trains."""

    def __init__(self, made, strategy, file=None):
        """`strategy`: a deletion strategy or None; `file`: that in a step's folder which a save's path names."""
        self._checkpointer = made
        made.waits_at_exit = True  # what is stored last has its name before the script ends
        self._saver = saver.Saver(made)  # one to disk waits until the one before is stored: none takes its place
        self._own = retention.Own(strategy, made)
        self._paths = None if file is None else paths.Paths(made, file, thins_out=strategy is None)
        self._last = self._last_to_disk = None  # the newest handles
        if file is not None and _is_first() and os.path.isdir(made.directory):
            self._behind_store(None)

    def wait_latest_checkpoint(self, timeout=1800):
        """Until the last save to disk is there, under its path, or will not be, also where saves to memory came behind
        it. TimeoutError."""
        if self._last_to_disk is not None:
            self._last_to_disk.wait_stored(timeout)
            self._checkpointer.finish_telling(timeout)

    def close(self):
        """Waits for what is to be stored. Nothing is saved any more."""
        self._checkpointer.close()

    def _save(self, step, state, path, storage_type):
        is_to_disk = storage_type is StorageType.DISK
        if path and self._paths is not None and _is_first():
            self._paths.will_be(int(step), path)
        self._last = self._saver.save(
            step,
            state,
            Storage.DISK if is_to_disk else Storage.MEMORY,
            self._on_stored if is_to_disk and _is_first() else None,
        )
        if self._last.storage is Storage.DISK:
            self._last_to_disk = self._last

    def _on_stored(self, result):
        if result.stored:
            self._behind_store(result.step)
        else:
            yet = " yet" if result.may_come else ""  # the next life gives it its name
            _say(f"step {result.step} of {self._checkpointer.directory} is not stored{yet}: {result.why}")

    def _behind_store(self, step):
        try:
            if self._paths is not None:
                self._paths.publish()
            if step is not None:
                self._own.on_stored(step)
        except (OSError, RuntimeError) as error:
            _say(f"{self._checkpointer.directory}: {error}")


def _is_first():
    return place.here().rank == 0


def _say(text):
    sys.stderr.write(f"phalanx-dlrover: {text}\n")
