"""Where a save goes."""

import enum


class StorageType(enum.Enum):
    MEMORY = 0
    DISK = 1
