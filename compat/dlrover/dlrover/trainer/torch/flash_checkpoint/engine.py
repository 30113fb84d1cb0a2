"""What stores: the part of DLRover's CheckpointEngine that programs call."""

import math


class CheckpointEngine:
    """Waits for saves of a phalanx.checkpoint.adapters.flash.Checkpointer."""

    def __init__(self, flash):
        self._flash = flash

    def wait_latest_checkpoint(self, timeout=1800, max_steps=None):
        """Until it is known what became of all saves: on disk, or why not. At most `timeout` seconds. `max_steps` is
        not needed: the saves are known."""
        self._flash.wait(None if timeout in (None, math.inf) else timeout)

    def close(self):
        self._flash.close()
