"""Saves of a framework's: those to memory where there is room, those to storage always."""

import contextlib

from phalanx.checkpoint.handle import Storage

_COMMIT_WAIT_S, _STORED_WAIT_S = 60, 600


class Saver:
    """Of one Checkpointer, whose saves all go through here."""

    def __init__(self, checkpointer):
        self._checkpointer = checkpointer
        self._last = self._last_to_disk = None  # handles

    def save(self, step, contents, storage, on_stored=None):
        """A SaveHandle. What a framework asks storage for is there in the end: a save to it finds a slot free, since
        the one before it is stored by then and that to memory committed, and is waited for where that is not so: on a
        disk that is slower than the framework asks. One that hangs is waited for ten minutes."""
        if storage is Storage.DISK:
            with contextlib.suppress(TimeoutError):
                self.finish()
                if self._last is not None:
                    self._last.wait_committed(timeout=_COMMIT_WAIT_S)
        self._last = handle = self._checkpointer.save(step, contents, storage=storage, on_stored=on_stored)
        if storage is Storage.DISK:
            self._last_to_disk = handle
        return handle

    def is_on_its_way(self, step):
        """To storage; or it is there."""
        return self._last_to_disk is not None and self._last_to_disk.step == step

    def finish(self, timeout=_STORED_WAIT_S):
        """Waits until the last save to storage is stored, or will not be. TimeoutError."""
        if self._last_to_disk is not None:
            self._last_to_disk.wait_stored(timeout=timeout)
