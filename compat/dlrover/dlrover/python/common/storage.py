"""Which steps stay on disk, and files: storage is what phalanx-run's agent writes to, a file system that all nodes see.

Files are written beside their name, synced, and renamed: whoever reads finds all of one or the one before.
"""

import abc
import contextlib
import os
import shutil

from dlrover.offered import BETTER, DIFFERS, SAME, getter

OFFERED = {
    "CheckpointStorage": (DIFFERS, "to derive from; a checkpointer takes those of this module alone"),
    "PosixDiskStorage": (BETTER, "files in a file system; a write is synced, and replaces the file in one moment"),
    "PosixStorageWithDeletion": (BETTER, "the same, with a deletion strategy, which a checkpointer takes from it"),
    "CheckpointDeletionStrategy": (
        SAME,
        "to derive from: clean_up(step, delete) is called on rank 0 when a step behind that one is stored",
    ),
    "KeepStepIntervalStrategy": (BETTER, "keep_every of phalanx.checkpoint: the newest and each keep_interval-th stay"),
    "KeepLatestStepStrategy": (BETTER, "keep_last of phalanx.checkpoint, which a restart does not forget"),
    "get_checkpoint_storage": (SAME, "one of the two storages, by the strategy"),
}
REFUSED = {"ClassMeta": "no process makes a storage by its name: give a checkpointer the storage itself"}
__getattr__ = getter(__name__, REFUSED)


class CheckpointDeletionStrategy(abc.ABC):
    @abc.abstractmethod
    def clean_up(self, step, delete_func):
        """`delete_func(path)` removes the folder of a step, or a file, of the checkpoint directory."""


class KeepStepIntervalStrategy(CheckpointDeletionStrategy):
    """The newest step stays, and each that `keep_interval` divides."""

    def __init__(self, keep_interval, checkpoint_dir):
        self.keep_interval = _above_0("keep_interval", keep_interval)
        self.checkpoint_dir = checkpoint_dir

    def clean_up(self, step, delete_func):
        if step % self.keep_interval != 0:
            delete_func(os.path.join(self.checkpoint_dir, str(step)))


class KeepLatestStepStrategy(CheckpointDeletionStrategy):
    """The newest `max_to_keep` steps stay."""

    def __init__(self, max_to_keep, checkpoint_dir):
        self.max_to_keep = _above_0("max_to_keep", max_to_keep)
        self.checkpoint_dir = checkpoint_dir
        self._steps = []

    def clean_up(self, step, delete_func):
        """`step` is not the newest: that one comes beside those that are kept here."""
        self._steps.append(step)
        while len(self._steps) >= self.max_to_keep:
            delete_func(os.path.join(self.checkpoint_dir, str(self._steps.pop(0))))


class CheckpointStorage(abc.ABC):
    @abc.abstractmethod
    def write(self, content, path):
        """Text or bytes."""

    @abc.abstractmethod
    def write_state_dict(self, state_dict, path, write_func=None):
        """By torch.save, or by write_func(state_dict, path)."""

    @abc.abstractmethod
    def read(self, path, mode="r"):
        """Its content; text, or bytes with mode "rb"."""

    @abc.abstractmethod
    def read_state_dict(self, path, read_func=None):
        """By torch.load, with weights_only, or by read_func(path); {} where there is no such file."""

    @abc.abstractmethod
    def safe_rmtree(self, dir):
        """The folder goes, if it is there."""

    @abc.abstractmethod
    def safe_remove(self, path):
        """The file goes, if it is there."""

    @abc.abstractmethod
    def safe_makedirs(self, dir):
        """The folder is there, with its parents."""

    @abc.abstractmethod
    def safe_move(self, src_path, dst_path):
        """Where there is a source, and nothing at the target."""

    @abc.abstractmethod
    def exists(self, path): ...

    @abc.abstractmethod
    def listdir(self, path): ...

    def commit(self, step, success):  # noqa: B027 - who wants to hear of it overrides it
        """Called by nobody here: on_stored of phalanx.checkpoint tells what became of a save."""


class PosixDiskStorage(CheckpointStorage):
    def write(self, content, path):
        is_text = isinstance(content, str)
        mode, encoding = ("w", "utf-8") if is_text else ("wb", None)
        with _replacing(path) as draft, open(draft, mode, encoding=encoding) as file:
            file.write(content)

    def write_state_dict(self, state_dict, path, write_func=None):
        if write_func is None:
            import torch

            write_func = torch.save
        with _replacing(path) as draft:
            write_func(state_dict, draft)

    def read(self, path, mode="r"):
        with open(path, mode, encoding=None if "b" in mode else "utf-8") as file:
            return file.read()

    def read_state_dict(self, path, read_func=None):
        if not os.path.exists(path):
            return {}
        if read_func is not None:
            return read_func(path)
        import torch

        return torch.load(path, map_location="cpu", weights_only=True)

    def safe_rmtree(self, dir):
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(dir)

    def safe_remove(self, path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def safe_makedirs(self, dir):
        os.makedirs(dir, exist_ok=True)

    def safe_move(self, src_path, dst_path):
        if os.path.exists(src_path) and not os.path.exists(dst_path):
            shutil.move(src_path, dst_path)

    def exists(self, path):
        return os.path.exists(path)

    def listdir(self, path):
        return os.listdir(path)


class PosixStorageWithDeletion(PosixDiskStorage):
    def __init__(self, tracker_file, deletion_strategy):
        """`tracker_file` is written by the agent, under the name dlrover_latest.txt."""
        self.tracker_file, self.deletion_strategy = tracker_file, deletion_strategy


def get_checkpoint_storage(deletion_strategy=None):
    if deletion_strategy is None:
        return PosixDiskStorage()
    return PosixStorageWithDeletion("dlrover_latest.txt", deletion_strategy)


@contextlib.contextmanager
def _replacing(path):
    """The file that is written under the name given takes the place of `path` in one moment."""
    draft = f"{os.fspath(path)}.{os.getpid()}.new"
    try:
        yield draft
        fd = os.open(draft, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(draft, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)


def _above_0(name, value):
    if type(value) is not int or value < 1:
        raise ValueError(f"phalanx-dlrover: {name} is {value!r}; expected a whole number above 0")
    return value
