"""Where a save goes, and what all checkpointers have."""

import abc
import enum

from dlrover.offered import SAME, getter

OFFERED = {
    "StorageType": (SAME, "MEMORY or DISK"),
    "Checkpointer": (SAME, "the base of the checkpointers, for isinstance and annotations"),
}
__getattr__ = getter(__name__, {})


class StorageType(enum.Enum):
    MEMORY = 0
    DISK = 1


class Checkpointer(abc.ABC):
    @abc.abstractmethod
    def save_checkpoint(self, *arguments, **named): ...

    @abc.abstractmethod
    def load_checkpoint(self, *arguments, **named): ...

    @abc.abstractmethod
    def wait_latest_checkpoint(self, timeout=1800): ...
