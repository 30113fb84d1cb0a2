"""For trainers that write a folder checkpoint-N file by file, through a save function in the place of torch.save:
ms-swift's --use_flash_ckpt.

    flash = Checkpointer("out/v0")
    flash.save(state, "out/v0/checkpoint-10/optimizer.pt")  # in the place of torch.save(state, ..)
    flash.save_to_storage(10)

What was given since the last save becomes one step, copied while the training goes on. In checkpoint-10 stand links to
the step's folder from the beginning on, and `dlrover_latest.txt` says 10 when all of it is stored, also where the
process was killed meanwhile: the agent stores it. Behind that the links become the files themselves.
"""

import contextlib
import functools
import os
import sys
import threading
import urllib.parse

import torch.distributed as dist
from torch import serialization

from phalanx.checkpoint.adapters import exact
from phalanx.checkpoint.handle import Storage
from phalanx.checkpoint.ranks import place

TRACKER = "dlrover_latest.txt"


class Checkpointer:
    """All ranks make one for the same directory, which holds the folders checkpoint-N, and call save_to_storage() and
    save_to_memory() together; save() as often as each likes."""

    def __init__(self, directory, make_files=exact.Files):
        """`make_files(directory, **settings)`: an exact.Files that knows more of what is saved."""
        self.directory = os.path.abspath(directory)
        # Each save is to be on disk: none takes the place of one before it.
        self._files = make_files(self.directory, trackers=(TRACKER,), keep_every=1)
        self._given = {}  # path -> state, since the last save
        self._newest = None  # step of the last save to disk
        self._settled = threading.Condition()
        self._unsettled = set()  # steps of which nobody has told what became
        if self._files.rank == 0 and os.path.isdir(self.directory):
            try:
                self._lead_all()  # of what the agent has stored behind the last life
            except (OSError, RuntimeError) as error:
                self._say(f"it is not known whether links lead to where steps are stored: {error}")

    def save(self, state, path, *more, **how):
        """As torch.save(state, path), but that the file is written with the step; at once where `path` is a file."""
        if not isinstance(path, (str, os.PathLike)):
            return serialization.save(state, path, *more, **how)  # torch.save is ours by now
        self._given[os.path.abspath(path)] = state
        return None

    def save_to_storage(self, step, blocking=False):
        """Whether the save is made. `blocking`: returns when it is on disk."""
        folder, step = self._folder_of(step), int(step)
        content = {_name_of(path, folder): state for path, state in self._taken(folder).items()}
        source = self._place_of(step)
        links = {os.path.join(folder, urllib.parse.unquote(name)): os.path.join(source, name) for name in content}
        before, self._newest = self._newest, step
        with self._settled:
            self._unsettled.add(step)
        # The save may be all that this process still does.
        try:
            for path, target in links.items():
                _link(target, path)
            handle = self._files.save(step, content, storage=Storage.DISK, on_stored=self._on_stored)
        except Exception:
            self._take_back(links, before)
            self._has_settled(step)
            raise
        if handle.is_over and not handle.is_sealed:
            self._take_back(links, before)
            return self._say(f"step {step} is not saved: {handle.why}")
        return not blocking or (handle.wait_stored() and self.wait())

    def save_to_memory(self, step, blocking=False):
        """Whether the save is made; nothing of it is in checkpoint-N. `blocking`: returns when all ranks have it."""
        folder = self._folder_of(step)
        content = {_name_of(path, folder): state for path, state in self._taken(folder).items()}
        handle = self._files.save(step, content, storage=Storage.MEMORY)
        return handle.wait_committed() if blocking else not handle.is_over or handle.is_sealed

    def wait(self, timeout=None):
        """Waits until it is known what became of all saves, and their folders are as they stay. False behind `timeout`
        seconds."""
        with self._settled:
            return self._settled.wait_for(lambda: not self._unsettled, timeout)

    def close(self):
        self._files.close()

    def _say(self, text):
        sys.stderr.write(f"phalanx.checkpoint: rank {self._files.rank}: {self.directory}: {text}\n")
        return False

    def _folder_of(self, step):
        return os.path.join(self.directory, f"checkpoint-{int(step)}")

    def _taken(self, folder):
        """What was given since the last save: all of it in `folder`, or nothing is saved."""
        given, self._given = self._given, {}
        for path in given:
            if os.path.commonpath([path, folder]) != folder:
                raise ValueError(f"phalanx.checkpoint: {path} is to be saved with {folder}; expected a file in there")
        return given

    # --- where a step lies

    def _place_of(self, step):
        """The folder that the step will have, on all ranks. What another past has stored of it goes."""
        if self._files.rank == 0 and _names_of(self.directory, step):
            self._files.delete(step)
        # Only rank 0 knows that this is done.
        return _of_rank_0(os.path.join(self.directory, _free_name(self.directory, step, self._files.epoch)))

    def _lead_all(self):
        """{step: its folder} of what is stored. Links to another folder of a step lead to that one from here on: the
        name may have been taken meanwhile."""
        found = {}
        for stored in self._files.steps():
            found.setdefault(stored.step, stored.path)  # the newest first
        for step, source in found.items():
            for path in self._links_in(step):
                with contextlib.suppress(FileNotFoundError):  # the trainer may remove a folder at any time
                    _lead(path, source)
        return found

    def _links_in(self, step):
        """The paths of links to a folder of that step in checkpoint-N."""
        folder = self._folder_of(step)
        paths = [os.path.join(inner, name) for inner, _, names in os.walk(folder) for name in names]
        return [path for path in paths if os.path.islink(path) and self._leads_to(path, step)]

    def _leads_to(self, path, step):
        with contextlib.suppress(FileNotFoundError):
            parent, name = os.path.split(os.path.dirname(_target_of(path)))
            return parent == self.directory and _number_of(name, step) is not None
        return False

    def _take_back(self, links, newest):
        """Of a save that was not made."""
        self._newest = newest
        for path in links:
            with contextlib.suppress(FileNotFoundError):
                if os.path.islink(path):
                    os.unlink(path)

    # --- behind the save, in a thread of its own

    def _on_stored(self, result):
        try:
            if not result.stored:
                self._say(f"step {result.step} is not stored: {result.why}")
            elif self._files.rank == 0:
                self._settle(result.step)
        finally:
            self._has_settled(result.step)

    def _has_settled(self, step):
        with self._settled:
            self._unsettled.discard(step)
            self._settled.notify_all()

    def _settle(self, step):
        """The folder has its files for itself, where the file system can do that; then what lies in older steps goes.
        The trainer may remove a folder at any time."""
        try:
            found = self._lead_all()
        except OSError as error:
            return self._say(f"links in {error.filename} do not lead to where a step is stored: {error.strerror}")
        for path in self._links_in(step):
            with contextlib.suppress(OSError):
                _replace(path, functools.partial(os.link, _target_of(path)))
        for older in found:
            if older < step and not self._links_in(older):
                self._files.delete(older)
        return True


def _of_rank_0(value):
    """What rank 0 gives."""
    if not place.is_together() or dist.get_world_size() == 1:
        return value
    given = [value]
    dist.broadcast_object_list(given, src=0)
    return given[0]


def _number_of(name, step):
    """Of a folder of that step, <step> or <step>.<number>; None of any other."""
    found, _, number = name.partition(".")
    if found != str(step) or not (number.isdecimal() or name == found):
        return None
    return int(number or 0)


def _names_of(directory, step):
    names = os.listdir(directory) if os.path.isdir(directory) else []
    return [name for name in names if _number_of(name, step) is not None]


def _free_name(directory, step, epoch):
    """As storage takes it (docs/formats/checkpoint-manifest.md): one that is not finished keeps its name."""
    taken = [_number_of(name, step) for name in _names_of(directory, step)]
    return f"{step}.{max(epoch, max(taken) + 1)}" if taken else str(step)


def _name_of(path, folder):
    """Of a file in a folder below it: one that has no '/'."""
    return urllib.parse.quote(os.path.relpath(path, folder), safe=" ")


def _link(target, path):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    _symlink(target, path)


def _symlink(target, path):
    relative = os.path.relpath(target, os.path.dirname(path))
    _replace(path, lambda new: os.symlink(relative, new))


def _target_of(path):
    return os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))


def _lead(path, source):
    """The link leads to the file of the same name in the folder `source`."""
    before = _target_of(path)
    target = os.path.join(source, os.path.basename(before))
    if before != target:
        _symlink(target, path)


def _replace(path, make):
    """`path` is, from one moment to the next, what make(new path) has made."""
    new = f"{path}.{os.getpid()}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)
    make(new)
    os.replace(new, path)
