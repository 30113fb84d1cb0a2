"""Megatron-LM's checkpoints by DLRover's names, on phalanx.checkpoint.adapters.megatron."""

from phalanx.checkpoint.adapters.megatron import load_checkpoint, save_checkpoint, wait_latest_checkpoint

from dlrover.offered import BETTER, SAME, getter
from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType

__all__ = ["StorageType", "load_checkpoint", "save_checkpoint", "wait_latest_checkpoint"]

OFFERED = {
    "save_checkpoint": (BETTER, "Megatron's own files, iter_%07d, which appears whole; replica_count has no effect"),
    "load_checkpoint": (BETTER, "from memory behind a death, else from the newest whole iter_%07d"),
    "wait_latest_checkpoint": (SAME, "until what is saved is on storage"),
    "StorageType": (SAME, "MEMORY and DISK"),
}
REFUSED = {
    "MegatronCheckpointer": "save_checkpoint and load_checkpoint of this module",
}
__getattr__ = getter(__name__, REFUSED)
