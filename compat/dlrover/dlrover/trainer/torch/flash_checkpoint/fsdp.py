"""Sharded checkpoints by DLRover's names, on phalanx.checkpoint.dcp: FSDP, FSDP2 and DTensor."""

import io
import os

import torch
from phalanx.checkpoint import dcp

from dlrover.offered import BETTER, SAME, getter
from dlrover.trainer.torch.flash_checkpoint import behind, retention
from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType

OFFERED = {
    "FsdpShardCheckpointer": (
        BETTER,
        "a save is whole on all ranks or none; memory and disk are read by a world of any size, disk by stock "
        "dcp.load. `path` is <checkpoint_dir>/<step> or none",
    ),
    "StorageType": (SAME, "MEMORY or DISK"),
}
REFUSED = {
    "FsdpFullCheckpointer": "use FsdpShardCheckpointer, whose steps a world of any size loads, and torch's "
    "dcp_to_torch_save where one file is wanted"
}
__getattr__ = getter(__name__, REFUSED)
__all__ = ["FsdpShardCheckpointer", "StorageType"]

_EXTRA = "dlrover.extra"
_LENGTH_BYTES, _ROOM = 8, 64 << 10


class FsdpShardCheckpointer(behind.Behind):
    """A step is the folder <checkpoint_dir>/<step>, a checkpoint of torch.distributed.checkpoint. All ranks call each
    method together."""

    def __init__(self, checkpoint_dir, comm_backend="", deletion_strategy=None, save_timeout=600):
        """`comm_backend` and `save_timeout` are not needed."""
        kept = retention.settings(deletion_strategy)
        super().__init__(dcp.Checkpointer(checkpoint_dir, **kept), deletion_strategy)

    def save_checkpoint(self, step, model, optimizer=None, extra_sd=None, path="", storage_type=StorageType.DISK):
        """save_checkpoint(step, model, optimizer, {"epoch": 3}), or save_checkpoint(step, state_dict, path) with what
        FSDP.state_dict() gives."""
        if isinstance(model, dict):
            state, path = model, path or optimizer or extra_sd or ""
        else:
            state = {"model": model, "optimizer": optimizer}
            if extra_sd:
                state[_EXTRA] = _packed(extra_sd)
        self._must_be_the_steps(path, step)
        self._save(step, state, "", storage_type)

    def load_checkpoint(self, model, optimizer, resume_path=""):
        """Model and optimizer have the newest step then. Returns its `extra_sd`; {} where there is no step."""
        if resume_path:
            raise ValueError(
                f"phalanx-dlrover: resume_path is {resume_path}; expected none: the newest step of "
                f"{self._checkpointer.directory} is loaded, and phalanx.checkpoint.dcp.Checkpointer.load() has `step`"
            )
        reader = self._checkpointer.get_storage_reader()
        if reader is None:
            return {}
        state = {"model": model, "optimizer": optimizer}
        extra = reader.read_metadata().state_dict_metadata.get(_EXTRA)
        if extra is not None:
            state[_EXTRA] = torch.empty(extra.size, dtype=torch.uint8)
        self._checkpointer.load(state)
        return {} if extra is None else _unpacked(state[_EXTRA])

    def get_storage_reader(self):
        """For torch.distributed.checkpoint's load functions, of the newest step; None where there is none."""
        return self._checkpointer.get_storage_reader()

    def _must_be_the_steps(self, path, step):
        expected = os.path.join(self._checkpointer.directory, str(int(step)))
        if path and os.path.abspath(path) != expected:
            raise ValueError(f"phalanx-dlrover: path is {path}; expected {expected}, or none: a step is that folder")


def _packed(values):
    """As bytes of a size that seldom changes: the ranks agree upon sizes once."""
    data = io.BytesIO()
    torch.save(values, data)
    data = data.getvalue()
    room = -(-(_LENGTH_BYTES + len(data)) // _ROOM) * _ROOM
    return torch.frombuffer(
        bytearray(len(data).to_bytes(_LENGTH_BYTES, "little") + data).ljust(room, b"\0"), dtype=torch.uint8
    )


def _unpacked(packed):
    data = packed.numpy().tobytes()
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    return torch.load(io.BytesIO(data[_LENGTH_BYTES : _LENGTH_BYTES + length]), weights_only=True)
