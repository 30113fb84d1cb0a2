"""torch.distributed.checkpoint.async_save, for toy_training.py."""

import shutil
from pathlib import Path

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import toy_training


class Save(toy_training.Save):
    def __init__(self, future, path, rank):
        self.future, self.path, self.rank = future, path, rank

    def is_over(self):
        return self.future.done()

    def wait_stored(self):
        self.future.result()
        return True

    def end(self):
        self.future.result()
        dist.barrier()
        if self.rank == 0:
            shutil.rmtree(self.path)


class AsyncSave(toy_training.Way):
    def __init__(self, training):
        self.training = training
        self.group = dist.new_group(backend="gloo")  # its thread's collectives are apart from the training's

    def save(self, step, to_disk):
        training = self.training
        state = training.state_dict()
        if not training.shared:
            state = {f"rank {training.rank}": state}
        path = Path(training.directory) / str(step)
        return Save(dcp.async_save(state, checkpoint_id=path, process_group=self.group), path, training.rank)


if __name__ == "__main__":
    toy_training.run(AsyncSave)
