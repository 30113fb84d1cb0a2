"""DDP's checkpoints by DLRover's names, on phalanx.checkpoint.ddp."""

from phalanx.checkpoint import Storage, ddp

from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType

__all__ = ["DdpCheckpointer", "StorageType"]


class DdpCheckpointer:
    """A step is the folder <checkpoint_dir>/<step>, with main.pt and rank_N.pt."""

    def __init__(
        self,
        checkpoint_dir,
        local_shard_num=1,
        global_shard_num=1,
        comm_backend="",
        deletion_strategy=None,
        save_timeout=600,
        replica_count=0,
    ):
        if (local_shard_num, global_shard_num, replica_count) != (1, 1, 0) or deletion_strategy is not None:
            raise TypeError(
                "phalanx-dlrover: only checkpoint_dir, comm_backend and save_timeout may be given; "
                "phalanx.checkpoint.ddp.Checkpointer has keep_last and keep_every"
            )
        self._checkpointer = ddp.Checkpointer(checkpoint_dir)
        self._last = None

    def save_checkpoint(self, step, state_dict, path="", storage_type=StorageType.DISK):
        _must_be_empty("path", path)
        storage = Storage.DISK if storage_type is StorageType.DISK else Storage.MEMORY
        self._last = self._checkpointer.save(step, state_dict, storage=storage)

    def load_checkpoint(self, resume_path=""):
        """The state, or {} where there is none."""
        _must_be_empty("resume_path", resume_path)
        return self._checkpointer.load(default={})[0]

    def wait_latest_checkpoint(self, timeout=1800):
        """Until the last save is on disk, or will not be."""
        if self._last is not None and self._last.storage is Storage.DISK:
            self._last.wait_stored(timeout)


def _must_be_empty(name, path):
    if path:
        raise ValueError(f"phalanx-dlrover: {name} is {path}; expected none: a step's folder lies in checkpoint_dir")
