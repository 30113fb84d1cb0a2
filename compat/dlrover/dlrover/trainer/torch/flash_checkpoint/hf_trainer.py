"""What ms-swift's --use_flash_ckpt imports."""

from phalanx.checkpoint.adapters import flash

from dlrover.trainer.torch.flash_checkpoint import missing
from dlrover.trainer.torch.flash_checkpoint.engine import CheckpointEngine


class HfFlashCheckpointer:
    """`ckpt_agent.save` takes the place of torch.save while the trainer writes checkpoint-N, and
    save_checkpoint_to_storage() saves what it was given. All ranks call it together. Returns whether the save is made:
    False on a rank that has no memory free for it."""

    def __init__(self, checkpoint_dir, storage=None):
        if storage is not None:
            raise TypeError(
                "phalanx-dlrover: storage is given; checkpoint_dir is a path in a file system all nodes see"
            )
        self.checkpoint_dir, self.storage = checkpoint_dir, None
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


def __getattr__(name):
    raise missing(__name__, name)
