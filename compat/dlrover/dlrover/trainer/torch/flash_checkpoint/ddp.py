"""DDP's checkpoints by DLRover's names, on phalanx.checkpoint.ddp."""

import os

from phalanx.checkpoint import ddp

from dlrover.offered import BETTER, SAME, getter
from dlrover.trainer.torch.flash_checkpoint import behind, paths, retention
from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType

OFFERED = {
    "DdpCheckpointer": (
        BETTER,
        "never torn, also by a kill in the middle of a copy; local_shard_num and global_shard_num are 1, and a save to "
        "disk is never passed over unsaid",
    ),
    "StorageType": (SAME, "MEMORY or DISK"),
}
__getattr__ = getter(__name__, {})
__all__ = ["DdpCheckpointer", "StorageType"]

_TRACKER = "dlrover_latest.txt"


class DdpCheckpointer(behind.Behind):
    """A step is the folder <checkpoint_dir>/<step>, with main.pt and rank_N.pt; with a `path` it is that file as well,
    a hard link."""

    def __init__(
        self,
        checkpoint_dir,
        local_shard_num=1,
        global_shard_num=1,
        comm_backend="",
        deletion_strategy=None,
        save_timeout=600,
        replica_count=0,
        *,
        weights_only=True,
    ):
        """`replica_count` is not needed: each node's memory has the state. Nor are `comm_backend` and `save_timeout`.
        `weights_only=False` lets objects of any class be saved, and loaded, as by pickle."""
        if (local_shard_num, global_shard_num) != (1, 1):
            raise TypeError(
                f"phalanx-dlrover: local_shard_num is {local_shard_num} and global_shard_num {global_shard_num}; "
                "expected 1: a state that all ranks share. For sharded state use FsdpShardCheckpointer, or "
                "phalanx.checkpoint.files.Checkpointer"
            )
        kept = retention.settings(deletion_strategy)
        super().__init__(
            ddp.Checkpointer(checkpoint_dir, weights_only=weights_only, **kept), deletion_strategy, file=paths.MAIN
        )

    def save_checkpoint(self, step, state_dict, path="", storage_type=StorageType.DISK):
        """Returns when the save has begun. With DISK and a `path` that file appears when the step is stored."""
        self._save(step, state_dict, path, storage_type)

    def load_checkpoint(self, resume_path=""):
        """The newest state in memory, else that of `resume_path`, else the newest on disk, also where DLRover itself
        has stored it; {} where there is none. <checkpoint_dir>/<step>/rank_N.pt is DLRover's name for the whole state,
        and means that of the step."""
        state, _ = self._checkpointer.load(default=None)
        if state is not None and (self._checkpointer.source == "memory" or not resume_path):
            return state
        found = paths.whole_of(resume_path) if resume_path else _stored_by_dlrover(self._checkpointer.directory)
        if not found:
            return {}
        import torch

        return torch.load(found, map_location="cpu", weights_only=self._checkpointer.weights_only)


def _stored_by_dlrover(directory):
    """The path of a step's file; None where there is none."""
    try:
        with open(os.path.join(directory, _TRACKER)) as file:
            step = file.read().strip()
    except FileNotFoundError:
        return None
    path = os.path.join(directory, step, "rank_0.pt")
    is_ours = paths.is_stored_here(os.path.dirname(path))  # then it was passed over, and this is a part of it
    return path if step.isdecimal() and os.path.isfile(path) and not is_ours else None
