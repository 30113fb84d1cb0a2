"""What was found, as a folder that a framework reads: that on disk as it lies there, if its files are in no folders of
their own, else one that is laid out of links or of what memory holds, once on each node, until the framework has read
it."""

import contextlib
import os
import shutil
import tempfile
import weakref

import torch.distributed as dist

from phalanx._bootstrap import board
from phalanx.checkpoint.adapters import captured, published
from phalanx.checkpoint.people import say
from phalanx.checkpoint.ranks import place

_RESUMING = ".resuming-"  # in the checkpoint directory, where memory has no room: docs/formats/published-folders.md


class Restorer:
    """Of one rank. All ranks call of_all(), agreed(), is_later_life(), has_stepped_before() and folder_of() together.
    `purpose` is in the name of the folder; `who` begins what is raised; `is_nested`: names of files are paths of
    published.name_of()."""

    def __init__(self, checkpointer, purpose, who, is_nested=False):
        self._is_nested = is_nested
        self._directory, self._purpose, self._who = checkpointer.directory, f"{purpose}-resume", who
        self._place = place.here()
        self._parent = self._removal = None
        if self._place.local_rank == 0:
            captured.empty_locked_by_nobody(self._purpose, self._directory)
        if self._place.rank == 0:
            self._remove_what_dead_lives_have_laid_out()

    def of_all(self, value):
        """[what each rank gives]."""
        if self._place.world_size == 1 or not place.is_together():
            return [value]
        gathered = [None] * self._place.world_size
        dist.all_gather_object(gathered, value)
        return gathered

    def agreed(self, value):
        """What rank 0 gives."""
        return self.of_all(value)[0]

    def is_later_life(self):
        """Whether any rank has died in this job before. Under torchrun only a node whose ranks have died counts that,
        and all ranks are to go the same way."""
        lives = self.of_all(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        return any(life not in ("", "0") for life in lives)

    def has_stepped_before(self):
        """Whether an earlier life has made a step, or nobody knows: one that ended while it loaded its model has saved
        nothing. For frameworks whose steps are told."""
        return any(step != -1 for step in self.of_all(board.earlier_step()))

    def folder_of(self, found, name):
        """The path of a folder with the files of the StoredFiles. Call let_go() when they were read. RuntimeError, on
        all ranks."""
        if found.source == "disk" and all(self._path(file) == file for file in found):
            return found.folder
        why = None
        if self._place.local_rank == 0:
            try:
                self._lay_out(found, name)
            except (OSError, RuntimeError) as error:
                self.let_go()
                where = "in memory" if found.source == "memory" else f"in {found.folder}"
                why = f"{self._who}: step {found.step} {where} cannot be laid out in files: {error}"
        answers = self.of_all((why, self._place.rank, self._parent))
        for failed, _, _ in answers:
            if failed is not None:
                raise RuntimeError(failed)
        parent = next(there for _, rank, there in answers if rank == self._place.first_rank_of_node)
        return os.path.join(parent, name)

    def _lay_out(self, found, name):
        """In memory, or in the checkpoint directory where that has no room."""
        self.let_go()
        try:
            self._copy(found, name, captured.scratch(self._purpose, self._directory, self._place.rank))
        except OSError as error:
            self.let_go()
            say(f"step {found.step} is laid out in {self._directory}, until it is read: {error}")
            self._copy(found, name, tempfile.mkdtemp(prefix=f"{_RESUMING}{self._place.rank}-", dir=self._directory))

    def _copy(self, found, name, parent):
        self._parent, self._removal = parent, weakref.finalize(self, captured.release, parent)
        folder = os.path.join(parent, name)
        os.mkdir(folder)
        for file in found:
            path = os.path.join(folder, self._path(file))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if found.source == "disk":
                os.symlink(os.path.abspath(os.path.join(found.folder, file)), path)
            else:
                found.copy(file, path)

    def _path(self, name):
        return published.path_of(name) if self._is_nested else name

    def _remove_what_dead_lives_have_laid_out(self):
        """On disks of several nodes locks of folders say nothing. This life lays nothing out before all are here."""
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self._directory):
                if entry.name.startswith(_RESUMING) and entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)

    def let_go(self):
        if self._removal is not None:
            self._removal()
            self._parent = self._removal = None
