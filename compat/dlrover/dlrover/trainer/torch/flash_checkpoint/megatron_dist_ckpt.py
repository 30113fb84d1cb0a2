"""The same for the distributed optimizer, of which each rank has a part."""

from phalanx.checkpoint.adapters import megatron

from dlrover.offered import BETTER, DIFFERS, SAME, getter
from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType

__all__ = ["StorageType", "load_checkpoint", "save_checkpoint", "wait_latest_checkpoint"]

OFFERED = {
    "save_checkpoint": (DIFFERS, "as dlrover.trainer.torch.flash_checkpoint.megatron; deletion_strategy is refused"),
    "load_checkpoint": (BETTER, "as dlrover.trainer.torch.flash_checkpoint.megatron"),
    "wait_latest_checkpoint": (SAME, "until what is saved is on storage"),
    "StorageType": (SAME, "MEMORY and DISK"),
}
__getattr__ = getter(__name__, {})


def save_checkpoint(*arguments, deletion_strategy=None, **named):
    """As that of dlrover.trainer.torch.flash_checkpoint.megatron."""
    _refuse(deletion_strategy)
    return megatron.save_checkpoint(*arguments, **named)


def load_checkpoint(*arguments, deletion_strategy=None, **named):
    """As that of dlrover.trainer.torch.flash_checkpoint.megatron."""
    _refuse(deletion_strategy)
    return megatron.load_checkpoint(*arguments, **named)


def wait_latest_checkpoint(timeout=600):
    """As that of dlrover.trainer.torch.flash_checkpoint.megatron."""
    return megatron.wait_latest_checkpoint(timeout)


def _refuse(deletion_strategy):
    if deletion_strategy is not None:
        raise TypeError(
            "phalanx-dlrover: deletion_strategy is given; phalanx.checkpoint.adapters.megatron has "
            "use(Checkpointer(directory, keep_last=3))"
        )
