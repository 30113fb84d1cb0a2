"""A DataLoader that knows what the training has taken, and takes its batch size from a file."""

import json
import os

from torch.utils.data import DataLoader

from dlrover.offered import BETTER, getter
from dlrover.python.common.constants import ConfigPath
from dlrover.trainer.torch.elastic.sampler import ElasticDistributedSampler

OFFERED = {
    "ElasticDataLoader": (
        BETTER,
        "counts for its ElasticDistributedSampler what the training has taken, worker processes or not; the file is "
        "yours to write: no service writes it",
    )
}
__getattr__ = getter(__name__, {})


class ElasticDataLoader(DataLoader):
    """As torch's DataLoader. `config_file` (default: what DLROVER_PARAL_CONFIG_PATH names) is looked at when an epoch
    begins: {"dataloader": {"version": 1, "batch_size": 32}} changes the batch size, where the version has grown."""

    def __init__(self, *arguments, config_file=None, **named):
        super().__init__(*arguments, **named)
        if self.batch_size is None:
            raise ValueError("phalanx-dlrover: batch_size is None, or a batch_sampler is given; expected a number")
        self._config_file = config_file or os.environ.get(ConfigPath.ENV_PARAL_CONFIG, "")
        self._version = 0
        self._next_size = self.batch_size
        self._begins_epoch()

    def _begins_epoch(self):
        """torch's sampler of batches looks at its size for each of them: it changes here alone."""
        self.load_config()
        self.batch_sampler.batch_size = self._next_size

    def __iter__(self):
        self._begins_epoch()
        if not isinstance(self.sampler, ElasticDistributedSampler):
            return super().__iter__()
        return self._counted(len(self.sampler), super().__iter__())

    def _counted(self, samples, batches):
        """`samples`: of this rank, in all batches."""
        size, taken = self.get_batch_size(), 0
        for batch in batches:
            taken = min(taken + size, samples)
            self.sampler.taken(taken)
            yield batch

    def get_batch_size(self):
        """Of the present epoch, as len() is."""
        return self.batch_sampler.batch_size

    def update_batch_size(self, batch_size=None):
        """From the next epoch on; None or 0: it stays."""
        if not batch_size:
            return
        if type(batch_size) is not int or batch_size < 1:
            raise ValueError(f"phalanx-dlrover: the batch size is {batch_size!r}; expected a whole number above 0")
        self._next_size = batch_size

    def load_config(self):
        """Where there is no file, or one of no newer version, nothing changes. ValueError says what is wrong in it."""
        try:
            with open(self._config_file, encoding="utf-8") as file:
                text = file.read()
        except (FileNotFoundError, IsADirectoryError):
            return
        try:
            wanted = json.loads(text).get("dataloader", {})
            version, size = wanted.get("version", 0), wanted.get("batch_size", 0)
        except (ValueError, AttributeError):
            raise ValueError(f"phalanx-dlrover: {self._config_file}: expected JSON with a 'dataloader'") from None
        if version > self._version:
            self.update_batch_size(size)
            self._version = version
