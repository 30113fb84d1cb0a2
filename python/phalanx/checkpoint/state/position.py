"""Where in its data a rank stands, so that a resumed run sees the batches that the one before would have seen next."""

from phalanx.checkpoint.state import rng

MARK = "phalanx_data_position"


class DataPosition:
    """The epoch, and how many of its batches have been handed out. Put it into the state that is saved.

    `for batch in position.batches(loader):` counts by itself; a loop of another kind sets `epoch` and `batch`.
    """

    def __init__(self):
        self.epoch = 0
        self.batch = 0
        self._rng_at_start = None

    def batches(self, loader):
        """The batches of this epoch that are still to come. Behind the last one the next epoch begins.

        After a resume the loader is read from the epoch's start, with the random numbers of that time, and what had
        been handed out is passed over: shuffles and what workers draw come out as they would have. A sampler with
        `set_epoch` is told the epoch.
        """
        set_epoch = getattr(getattr(loader, "sampler", None), "set_epoch", None)
        if set_epoch is not None:
            set_epoch(self.epoch)
        iterator = self._resumed(loader) if self.batch > 0 else self._fresh(loader)
        for batch in iterator:
            self.batch += 1
            yield batch
        self.epoch += 1
        self.batch = 0
        self._rng_at_start = None

    def state_dict(self):
        return {MARK: 1, "epoch": self.epoch, "batch": self.batch, "rng_at_start": self._rng_at_start}

    def load_state_dict(self, saved):
        """Takes over what state_dict() gave, or another DataPosition, as Checkpointer.load() returns them."""
        if isinstance(saved, DataPosition):
            saved = saved.state_dict()
        self.epoch, self.batch = saved["epoch"], saved["batch"]
        self._rng_at_start = saved["rng_at_start"]

    def __repr__(self):
        return f"DataPosition(epoch={self.epoch}, batch={self.batch})"

    def _fresh(self, loader):
        self._rng_at_start = rng.capture(cuda=False)
        return iter(loader)

    def _resumed(self, loader):
        now = rng.capture(cuda=False)
        if self._rng_at_start is not None:
            rng.restore(self._rng_at_start)
        iterator = iter(loader)
        for _ in range(self.batch):
            next(iterator, None)
        rng.restore(now)
        return iterator


def is_saved(value):
    return isinstance(value, dict) and MARK in value


def loaded(saved):
    position = DataPosition()
    position.load_state_dict(saved)
    return position
