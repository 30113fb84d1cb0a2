"""What stores: the part of DLRover's CheckpointEngine that programs call."""

import math

from dlrover.offered import DIFFERS, getter

OFFERED = {
    "CheckpointEngine": (
        DIFFERS,
        "async_save_engine of a HfFlashCheckpointer: wait_latest_checkpoint(timeout, max_steps) and close()",
    )
}
_WHY = "the checkpointers of ddp, fsdp, deepspeed and hf_trainer save, without an engine between"
REFUSED = dict.fromkeys(
    ("FullCheckpointEngine", "DeepSpeedCheckpointEngine", "FsdpCheckpointEngine", "MegatronCheckpointEngine"), _WHY
)
__getattr__ = getter(__name__, REFUSED)


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
