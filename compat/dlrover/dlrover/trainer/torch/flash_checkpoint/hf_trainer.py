"""What ms-swift's --use_flash_ckpt imports."""

from phalanx.checkpoint.adapters import flash, swift_resume

from dlrover.offered import BETTER, getter
from dlrover.python.common import storage as storages
from dlrover.trainer.torch.flash_checkpoint.engine import CheckpointEngine

_BETTER = (BETTER, "as ms-swift calls it: its folder appears whole, and a universal checkpoint behind each save")
OFFERED = {
    "HfFlashCheckpointer": _BETTER,
    "HfDeepSpeedCheckpointer": _BETTER,
    "HfDdpCheckpointer": (BETTER, "the same, of DDP; needs no deepspeed"),
    "FlashCkptTrainer": (
        BETTER,
        "transformers' Trainer with phalanx.checkpoint.adapters.huggingface.FlashCheckpointMixin; transformers 4.51 "
        "and later",
    ),
}


class HfFlashCheckpointer:
    """`ckpt_agent.save` takes the place of torch.save while the trainer writes checkpoint-N, and
    save_checkpoint_to_storage() saves what it was given. All ranks call it together. Returns whether the save is made:
    False on a rank that has no memory free for it."""

    def __init__(self, checkpoint_dir, storage=None):
        if storage is not None and type(storage) is not storages.PosixDiskStorage:
            raise TypeError(
                f"phalanx-dlrover: storage is {storage!r}; expected None or a PosixDiskStorage: checkpoint_dir is a "
                "path in a file system that all nodes see, and the trainer's save_total_limit says what stays"
            )
        self.checkpoint_dir, self.storage = checkpoint_dir, storage
        self.ckpt_agent = self._make()
        self.async_save_engine = CheckpointEngine(self.ckpt_agent)

    def _make(self):
        return flash.Checkpointer(self.checkpoint_dir)

    def save_checkpoint_to_memory(self, step, blocking=False):
        return self.ckpt_agent.save_to_memory(step, blocking)

    def save_checkpoint_to_storage(self, step, blocking=False):
        return self.ckpt_agent.save_to_storage(step, blocking)


class HfDeepSpeedCheckpointer(HfFlashCheckpointer):
    """`engine`: of deepspeed.initialize(); `comm_backend` is not needed."""

    def __init__(self, engine, checkpoint_dir, storage=None, comm_backend=""):
        self._engine = engine
        super().__init__(checkpoint_dir, storage)

    def _make(self):
        from phalanx.checkpoint.adapters import flash_deepspeed

        return flash_deepspeed.Checkpointer(self._engine, self.checkpoint_dir)


class HfDdpCheckpointer(HfFlashCheckpointer):
    """`comm_backend` is not needed."""

    def __init__(self, checkpoint_dir, storage=None, comm_backend=""):
        super().__init__(checkpoint_dir, storage)


def _flash_ckpt_trainer():
    from dlrover.trainer.torch.flash_checkpoint import hf_flash_trainer

    return hf_flash_trainer.FlashCkptTrainer


__getattr__ = getter(__name__, {}, made={"FlashCkptTrainer": _flash_ckpt_trainer})
swift_resume.install()
