"""Shares a dataset out among ranks, and keeps the position in an epoch when their number changes."""

import math

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from dlrover.offered import BETTER, getter

OFFERED = {
    "ElasticDistributedSampler": (
        BETTER,
        "no sample of an epoch is left out or given twice when the world changes, also within an epoch that was "
        "resumed; the position is counted by ElasticDataLoader, or by iter_step",
    )
}
REFUSED = {"ElasticBatchSampler": "use ElasticDistributedSampler in an ElasticDataLoader"}
__getattr__ = getter(__name__, REFUSED)


class ElasticDistributedSampler(DistributedSampler):
    """The order of an epoch is that of `seed` and epoch alone, whatever the world. A position in it is a number of
    samples, over all ranks, so that ranks of another world go on from there.

    As of torch's DistributedSampler: call set_epoch() before each epoch for another order. At the end the ranks are
    given the same number of samples: by samples from the epoch's beginning, or with `drop_last` without the last ones.

    It is one for isinstance(), too: frameworks put a sampler that is none into one of their own, which shares out a
    second time what each rank is given. Methods and numbers are this class's.
    """

    def __init__(self, dataset, num_replicas=None, rank=None, shuffle=True, seed=0, drop_last=False):
        # Not that of torch, whose numbers are those of a whole epoch alone.
        is_together = dist.is_available() and dist.is_initialized()
        if (num_replicas is None or rank is None) and not is_together:
            raise RuntimeError(
                "phalanx-dlrover: num_replicas and rank are not given; expected both, or a process group: call "
                "init_process_group() first"
            )
        self.dataset = dataset
        self.num_replicas = dist.get_world_size() if num_replicas is None else num_replicas
        self.rank = dist.get_rank() if rank is None else rank
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(
                f"phalanx-dlrover: rank is {self.rank}; expected 0 to {self.num_replicas - 1}, as there are "
                f"{self.num_replicas} replicas"
            )
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch = 0
        self._begins_at = 0  # samples of the epoch, of all ranks, that lie behind the next iteration
        self._steps_before = None  # what iter_step was there, where a state says it
        self._ahead = 0  # batches that a loader without a count of its own asks for before the training takes them
        self._iteration = _Iteration(0, None)

    # --- sampling

    def set_epoch(self, epoch):
        """Another epoch begins at its beginning; the same one goes on where it is."""
        if epoch != self.epoch:
            self._begins_at, self._steps_before = 0, None
            self._iteration = _Iteration(0, None)  # the position of the one before is none in this epoch
        self.epoch = epoch

    def __len__(self):
        """Samples that each rank is given in the next iteration."""
        left = len(self.dataset) - self._begins_at
        return left // self.num_replicas if self.drop_last else math.ceil(left / self.num_replicas)

    @property
    def num_samples(self):
        """As len()."""
        return len(self)

    @property
    def total_size(self):
        """Of all ranks in the next iteration."""
        return len(self) * self.num_replicas

    def __iter__(self):
        count = len(self)
        order = self._order()
        left = order[self._begins_at :]
        wanted = count * self.num_replicas
        more = wanted - len(left)
        if more > 0:
            left += (order * math.ceil(more / len(order)))[:more]
        self._iteration = _Iteration(self._begins_at, self._steps_before)
        return self._given(self._iteration, left[self.rank : wanted : self.num_replicas])

    def _given(self, iteration, indices):
        for index in indices:
            iteration.given += 1
            iteration.has_given_all = iteration.given == len(indices)
            yield index
        if iteration is self._iteration:  # what comes behind this one begins at the epoch's beginning
            self._begins_at, self._steps_before = 0, None

    def _order(self):
        if not self.shuffle:
            return list(range(len(self.dataset)))
        generator = torch.Generator()
        generator.manual_seed(self.seed + self.epoch)
        return torch.randperm(len(self.dataset), generator=generator).tolist()

    # --- the position

    def taken(self, samples):
        """For ElasticDataLoader: what of this rank's samples the training has been given, of those handed out."""
        self._iteration.taken = samples

    def state_dict(self, iter_step, micro_batch_size):
        """{"completed_num": samples of the epoch that all ranks have behind them, "epoch", "iter_step", "ahead": how
        many batches the loader was ahead of the training}.

        `iter_step`: batches of `micro_batch_size` that each rank has taken since the loop over the loader began; in the
        first loop behind load_state_dict() it may go on from what it was then. An ElasticDataLoader counts itself, and
        whatever is given here does not count; nor does it before a loop has begun. ValueError where iter_step is none
        of both, or may be both: the same on all ranks."""
        at = self._iteration
        samples = at.taken if at.taken is not None else self._samples(int(iter_step), micro_batch_size)
        completed = min(at.begun_at + samples * self.num_replicas, len(self.dataset))
        return {
            "completed_num": int(completed),
            "epoch": self.epoch,
            "iter_step": int(iter_step),
            "ahead": self._ahead,
        }

    def _samples(self, iter_step, micro_batch_size):
        """Of this rank, in the present iteration."""
        at = self._iteration
        if at.given == 0:
            return 0
        batches_given = math.ceil(at.given / micro_batch_size)
        whole_given = at.given // micro_batch_size  # a loader may drop the last one
        fitting = [before for before in {0, at.steps_before} - {None} if 0 <= iter_step - before <= batches_given]
        if len(fitting) == 2:
            fitting = [before for before in fitting if self._is_meant(before, whole_given - (iter_step - before))]
        if len(fitting) != 1:
            raise self._wrong(iter_step, batches_given, micro_batch_size)
        at.counts_from = fitting[0]
        batches = iter_step - at.counts_from
        ahead = whole_given - batches
        self._ahead = max(self._ahead, ahead) if at.has_given_all else ahead
        return batches * micro_batch_size

    def _is_meant(self, before, ahead):
        """Whether iter_step was `before` where this iteration began; the loader is `ahead` batches ahead if so. It was
        seen before, or a loader is always as far ahead as it was when the state was made, but for an epoch's end."""
        at = self._iteration
        if at.counts_from is not None:
            return before == at.counts_from
        return ahead == self._ahead or (at.has_given_all and ahead < self._ahead)

    def _wrong(self, iter_step, batches_given, micro_batch_size):
        before = self._iteration.steps_before
        or_on = f", or those and the {before} before it, and only one of both is possible" if before else ""
        return ValueError(
            f"phalanx-dlrover: iter_step is {iter_step}, and each rank was given {batches_given} batches of "
            f"{micro_batch_size} in this loop; expected the batches of this loop, from 0{or_on}: or put the sampler "
            "into an ElasticDataLoader, which counts them"
        )

    def load_state_dict(self, state):
        """The next iteration begins there, in a world of any size. {} is the beginning."""
        completed, epoch = int(state.get("completed_num", 0)), int(state.get("epoch", 0))
        if completed < 0 or epoch < 0:
            raise ValueError(f"phalanx-dlrover: the sampler's state is {state!r}; expected numbers of 0 or more")
        if completed > len(self.dataset):
            raise ValueError(
                f"phalanx-dlrover: completed_num is {completed} and the dataset has {len(self.dataset)} samples: the "
                "state is one of another dataset"
            )
        self.epoch, self._begins_at = epoch, completed
        self._steps_before, self._ahead = state.get("iter_step"), int(state.get("ahead", 0))
        self._iteration = _Iteration(completed, self._steps_before)


class _Iteration:
    """One way through the rest of an epoch. `begun_at`: samples of all ranks before it; `steps_before`: iter_step
    there, or None; `given`: to this rank; `taken`: by the training, where an ElasticDataLoader says it; `counts_from`:
    which of 0 and `steps_before` iter_step goes on from, once that is known."""

    def __init__(self, begun_at, steps_before):
        self.begun_at, self.steps_before = begun_at, steps_before
        self.given, self.taken, self.counts_from = 0, None, None
        self.has_given_all = False
