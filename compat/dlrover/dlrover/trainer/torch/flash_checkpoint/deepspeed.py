"""DeepSpeed's checkpoints by DLRover's names, on phalanx.checkpoint.adapters.deepspeed."""

import os

from phalanx.checkpoint import Storage
from phalanx.checkpoint.adapters import deepspeed as adapter
from phalanx.checkpoint.ranks import place

from dlrover.offered import BETTER, SAME, getter
from dlrover.trainer.torch.flash_checkpoint import checkpointer, retention
from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType

OFFERED = {
    "DeepSpeedCheckpointer": (BETTER, "a save is whole on all ranks or none; `tag` is None or a number"),
    "StorageType": (SAME, "MEMORY or DISK"),
}
REFUSED = {
    "AsyncCheckpointAgent": "HfDeepSpeedCheckpointer(engine, directory).ckpt_agent saves in the place of torch.save, "
    "and phalanx.checkpoint.adapters.deepspeed.PhalanxCheckpointEngine is a checkpoint engine of DeepSpeed's"
}
__getattr__ = getter(__name__, REFUSED)
__all__ = ["DeepSpeedCheckpointer", "StorageType"]


class DeepSpeedCheckpointer(checkpointer.Checkpointer):
    """A step is the folder <checkpoint_dir>/<global step>, which `latest` names."""

    def __init__(self, engine, checkpoint_dir, comm_backend="", deletion_strategy=None, save_timeout=600):
        """`comm_backend` and `save_timeout` are not needed."""
        self._checkpointer = adapter.Checkpointer(engine, checkpoint_dir, **retention.settings(deletion_strategy))
        self._own = retention.Own(deletion_strategy, self._checkpointer)
        self._last_to_disk = None  # handle

    def save_checkpoint(self, save_dir, tag=None, client_state=None, save_latest=True, storage_type=StorageType.DISK):
        """`tag`: None or a number; `latest` is written with every step on disk."""
        self._must_be_ours("save_dir", save_dir)
        if not save_latest or not (tag is None or str(tag).isdecimal()):
            raise ValueError(
                f"phalanx-dlrover: save_latest is {save_latest} and tag {tag!r}; expected True, and None or the number "
                "of a step: its folder has that name, and `latest` names it"
            )
        step = None if tag is None else int(tag)
        storage = Storage.DISK if storage_type is StorageType.DISK else Storage.MEMORY
        told = self._on_stored if storage is Storage.DISK and place.here().rank == 0 else None
        handle = self._checkpointer.save(client_state, storage=storage, step=step, on_stored=told)
        if handle.storage is Storage.DISK:
            self._last_to_disk = handle

    def load_checkpoint(
        self,
        load_dir,
        tag=None,
        load_module_strict=True,
        load_optimizer_states=True,
        load_lr_scheduler_states=True,
        load_module_only=False,
        custom_load_fn=None,
    ):
        """(path, client_state), or (None, None) where there is nothing."""
        self._must_be_ours("load_dir", load_dir)
        if load_module_only or not load_optimizer_states:
            raise ValueError("phalanx-dlrover: all of a checkpoint is loaded; engine.load_checkpoint() loads parts")
        client_state, step = self._checkpointer.load(
            None if tag is None else int(tag),
            load_module_strict=load_module_strict,
            load_lr_scheduler_states=load_lr_scheduler_states,
            custom_load_fn=custom_load_fn,
        )
        return (os.path.join(load_dir, str(step)), client_state) if self._checkpointer.source else (None, None)

    def wait_latest_checkpoint(self, timeout=1800):
        """Until the last save to disk is there, or will not be, also where saves to memory came behind it.
        TimeoutError."""
        if self._last_to_disk is not None:
            self._last_to_disk.wait_stored(timeout)

    def _on_stored(self, result):
        if result.stored:
            self._own.on_stored(result.step)

    def _must_be_ours(self, name, directory):
        if os.path.abspath(directory) != self._checkpointer.directory:
            raise ValueError(f"phalanx-dlrover: {name} is {directory}; expected {self._checkpointer.directory}")
