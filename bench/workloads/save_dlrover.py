"""DLRover's flash checkpoint for DDP, for toy_training.py. A state of each rank's own is a shard of its."""

import os
import select
import time
from pathlib import Path

import toy_training
from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer, StorageType

LOST_AFTER_S = 60.0
LOOK_EACH_S = 0.01  # at the tracker: its own wait looks each 3 s


class Save(toy_training.Save):
    def __init__(self, way, step, taken):
        self.way, self.step, self.taken = way, step, taken
        self.why = None if taken else "skipped; its log says that it is saving to storage"

    def was_taken(self):
        return self.taken

    def wait_committed(self):
        return self.taken

    def wait_stored(self):
        """The tracker names the step; the shard is synced here, which DLRover does not do."""
        training = self.way.training
        limit = time.monotonic() + LOST_AFTER_S
        while self.taken and self.way.tracked_step() != self.step:
            if time.monotonic() > limit:
                self.why = f"its tracker did not name the step within {LOST_AFTER_S:g} s"
                return False
            select.select([], [], [], LOOK_EACH_S)
        if self.taken and training.saves_here():
            with open(Path(training.directory) / str(self.step) / f"rank_{training.rank}.pt", "rb") as file:
                os.fsync(file.fileno())
        return self.taken


class DLRover(toy_training.Way):
    keeps_memory = True

    def __init__(self, training):
        self.training = training
        shards = 1 if training.shared else training.world
        self.checkpointer = DdpCheckpointer(training.directory, local_shard_num=shards, global_shard_num=shards)

    def save(self, step, to_disk):
        to = StorageType.DISK if to_disk else StorageType.MEMORY
        self.checkpointer.save_checkpoint(step, self.training.state_dict(), storage_type=to)
        # Nothing of its interface says whether it has saved.
        return Save(self, step, not self.training.saves_here() or self.checkpointer._engine._cached_step == step)

    def tracked_step(self):
        try:
            text = (Path(self.training.directory) / "dlrover_latest.txt").read_text()
        except FileNotFoundError:
            return None
        return int(text) if text else None

    def load(self):
        return self.checkpointer.load_checkpoint(), "memory", None


if __name__ == "__main__":
    toy_training.run(DLRover)
