"""Flash checkpoints: saves that nobody feels, restores in milliseconds, nothing ever torn. docs/checkpoint.md.

    from phalanx.checkpoint import Checkpointer, Storage
    ckpt = Checkpointer("/data/run7", keep_last=3)
    state, step = ckpt.load(default=None)
    handle = ckpt.save(step, {"model": model, "optimizer": optimizer, "rng": True}, storage=Storage.MEMORY)

`phalanx.checkpoint.ddp.Checkpointer` is the same for DistributedDataParallel.
"""

from phalanx.checkpoint.checkpointer import Checkpointer
from phalanx.checkpoint.handle import SaveHandle, Storage
from phalanx.checkpoint.link.telling import StoreResult
from phalanx.checkpoint.state.per_rank import PerRank
from phalanx.checkpoint.state.position import DataPosition
from phalanx.checkpoint.state.refuse import CannotSave
from phalanx.checkpoint.stored import StoredStep

__all__ = [
    "CannotSave",
    "Checkpointer",
    "DataPosition",
    "PerRank",
    "SaveHandle",
    "Storage",
    "StoreResult",
    "StoredStep",
]
