"""phalanx.checkpoint, for toy_training.py."""

import toy_training
from phalanx.checkpoint import Checkpointer, Storage, ddp


class Save(toy_training.Save):
    def __init__(self, handle):
        self.handle = handle
        self.held_at_return_ns = handle.held_ns

    @property
    def why(self):
        return self.handle.why

    def is_over(self):
        return self.handle.is_over

    def held_later_s(self):
        return (self.handle.held_ns - self.held_at_return_ns) / 1e9

    def was_taken(self):
        return self.handle.wait_staged()

    def wait_committed(self):
        return self.handle.wait_committed()

    def wait_stored(self):
        return self.handle.wait_stored()

    def end(self):
        self.handle.wait_staged()


class Phalanx(toy_training.Way):
    keeps_memory = True
    first_on_disk = 2  # from the third on there is the file of a deleted step to be written over

    def __init__(self, training):
        self.training = training
        kind = ddp.Checkpointer if training.shared else Checkpointer
        self.checkpointer = kind(training.directory, keep_last=1)

    def prepare(self):
        return self.checkpointer.prepare(self.training.state())

    def save(self, step, to_disk):
        to = Storage.DISK if to_disk else Storage.MEMORY
        return Save(self.checkpointer.save(step, self.training.state(), storage=to))

    def load(self):
        state, _ = self.checkpointer.load()
        return state, self.checkpointer.source, self.checkpointer.why


if __name__ == "__main__":
    toy_training.run(Phalanx)
