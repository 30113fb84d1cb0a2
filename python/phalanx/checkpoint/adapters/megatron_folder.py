"""The directory in which Megatron-LM looks for checkpoints, of which some are ours and some its own: iter_0001200 and
the tracker that names it. Rank 0 alone works here."""

import contextlib
import os
import re
import zipfile

from phalanx.checkpoint.adapters import megatron_layout, published
from phalanx.checkpoint.people import say

_NAME = re.compile(re.escape(megatron_layout.PREFIX) + r"\d+\Z")
_STATES, _ZIP = (".pt",), b"PK"


class Folders(published.Folders):
    """Of checkpoints in each of Megatron's formats and sizes: what one has left beside another's files would be loaded
    in their place."""

    def _is_checkpoint(self, folder):
        return megatron_layout.is_checkpoint(paths_below(folder))


class Directory:
    """`checkpointer`: one of a directory below `path`; `mark`: as of published.Folders; `make_folders`: Folders,
    or a class derived from it; `keep_last`: so many iterations stay, None: all."""

    def __init__(self, path, checkpointer, mark, keep_last, archive_every, make_folders=Folders):
        self.path, self._keep_last = path, keep_last
        self._checkpointer = checkpointer
        self.folders = make_folders(
            checkpointer,
            path,
            megatron_layout.PREFIX,
            mark,
            archive_every,
            digits=megatron_layout.DIGITS,
            is_nested=True,
        )

    def settle(self, result):
        """What became of a save, told in a thread of the Checkpointer's."""
        folder = self.folders.path(result.step)
        if not result.stored:
            return say(f"{folder} is not stored: {result.why}")
        try:
            self.folders.publish(result.step)
            self._write_tracker(result.step)
            self.folders.rotate(self._keep_last, result.step)
        except (OSError, LookupError, RuntimeError) as error:
            say(f"{folder} is in {self._checkpointer.directory}, and not where it belongs: {error}")
        return None

    def repair(self):
        """What a killed process began is ended: iterations that are stored have their folders, and the tracker names
        the newest, unless Megatron has written it since."""
        try:
            self.folders.repair()
            stored = self.folders.stored()
            is_ours = self._ownership(stored)
            newest = next((each for each in stored if is_ours(each.step)), None)
            if newest is not None and self._is_older(newest, is_ours):
                self._write_tracker(newest.step)
        except (OSError, RuntimeError) as error:
            say(f"what a killed process has left in {self.path} stays: {error}")

    def begin(self):
        """In the first life of a job, as of published.Folders."""
        try:
            self.folders.begin()
        except (OSError, RuntimeError) as error:
            say(f"what is in {self.path} cannot be told from what this job saves: {error}")

    def is_of_this_job(self, folder):
        return self.folders.is_of_this_job(folder)

    def _is_older(self, newest, is_ours):
        """The tracker, than a step of ours."""
        try:
            named = self.named()
        except ValueError:
            return True
        if named == newest.step:
            return False
        if named is None or is_ours(named) or not os.path.isdir(self.folder_of(named)):
            return True
        return os.stat(self._tracker).st_mtime < newest.written

    @property
    def _tracker(self):
        return os.path.join(self.path, megatron_layout.TRACKER)

    def _write_tracker(self, iteration):
        published.replace_text(self._tracker, str(iteration))

    def named(self):
        """What the tracker says; None: there is none. ValueError."""
        with contextlib.suppress(FileNotFoundError), open(self._tracker, errors="replace") as file:
            return megatron_layout.read_tracker(file.read(1024))
        return None

    def folder_of(self, iteration):
        return os.path.join(self.path, megatron_layout.folder_of(iteration))

    def _ownership(self, stored=None):
        """is_ours(iteration), as of published.Folders; a release is none."""
        return self.folders.ownership(stored)

    # --- what Megatron has written

    def theirs(self):
        """The iterations that may be gone on from instead of ours, the best first: that which the tracker names where
        Megatron has written it, then others of its own, the newest first. None of these where the tracker names
        ours."""
        named, is_ours = self.named(), self._ownership()
        if named is None or is_ours(named):
            return []
        others = [each for each in self._iterations() if each != named and not is_ours(each)]
        return [named, *others]

    def _iterations(self):
        names = os.listdir(self.path) if os.path.isdir(self.path) else []
        return sorted((int(name[len(megatron_layout.PREFIX) :]) for name in names if _NAME.match(name)), reverse=True)

    def paths_in(self, iteration):
        """Of the files below its folder."""
        return paths_below(self.folder_of(iteration))


def paths_below(folder):
    found = []
    for inner, _, names in os.walk(folder):
        found += [os.path.relpath(os.path.join(inner, name), folder) for name in names]
    return sorted(found)


def take_others(folder):
    """{path: bytes} of files that lie below it."""
    found = {}
    for path in paths_below(folder):
        with open(os.path.join(folder, path), "rb") as file:
            found[path] = file.read()
    return {path: data for path, data in found.items() if data}


def why_damaged(folder, paths):
    """The first file of torch.save() that is cut off, in a sentence, or None."""
    for path in paths:
        if path.endswith(_STATES) and _is_cut_off(os.path.join(folder, path)):
            return f"{path} is cut off"
    return None


def _is_cut_off(path):
    """Files of torch 1.5 and older are no zip files, and cannot be told so."""
    with open(path, "rb") as file:
        beginning = file.read(len(_ZIP))
    return not beginning or (beginning == _ZIP and not zipfile.is_zipfile(path))
