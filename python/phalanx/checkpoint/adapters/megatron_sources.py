"""What can be gone on from: an iteration of ours in memory or on disk, or one that Megatron has written."""

import os

import torch

from phalanx.checkpoint.adapters import megatron_dist, megatron_folder, megatron_layout
from phalanx.checkpoint.adapters.published import path_of
from phalanx.checkpoint.people import say


class Ours:
    """An iteration of ours, in memory or on disk."""

    is_resumed, is_sharded, reader = True, False, None

    def __init__(self, found, files):
        self.kind, self.iteration = found.source, found.step
        self._files = files
        self._name_of = {path_of(name): name for name in files}
        self.paths = sorted(self._name_of)
        where = "in memory" if self.kind == "memory" else f"in {found.directory}"
        self.where = f"iteration {found.step} {where}"

    def load(self, path):
        return self._files[self._name_of[path]]

    def put_names(self, folder):
        """Empty files, for who looks which there are."""
        for path in self.paths:
            own = os.path.join(folder, megatron_layout.folder_of(self.iteration), path)
            os.makedirs(os.path.dirname(own), exist_ok=True)
            with open(own, "xb"):
                pass


class Theirs:
    """One that Megatron has written."""

    kind, is_resumed, reader = "disk", False, None

    def __init__(self, folder, iteration, paths):
        self.where, self.iteration, self.paths = folder, iteration, paths
        self.is_sharded = megatron_layout.is_sharded(paths)

    def load(self, path):
        return torch.load(os.path.join(self.where, path), map_location="cpu", weights_only=False)

    def put_names(self, folder):
        os.symlink(self.where, os.path.join(folder, megatron_layout.folder_of(self.iteration)))


class Elsewhere(megatron_folder.Directory):
    """A directory in which nothing is ours: args.load, where that is not args.save."""

    def __init__(self, path):
        self.path = path

    def _ownership(self, stored=None):
        return lambda iteration: False


def choose_theirs(directory, layout, is_distributed, wanted):
    """(Theirs or None, why none fits or None). What cannot be read is passed over: other ranks wait for the answer."""
    try:
        iterations = directory.theirs() if wanted is None else [wanted]
    except (OSError, RuntimeError, ValueError) as error:
        say(f"{directory.path} is passed over: {error}")
        return None, f"{directory.path}: {error}"
    failed = None
    for iteration in iterations:
        folder = directory.folder_of(iteration)
        paths = directory.paths_in(iteration)
        is_release = iteration == megatron_layout.RELEASE
        why = _why_not(folder, paths, layout, is_distributed and not is_release)
        if why is None:
            return Theirs(folder, iteration, paths), None
        failed = failed or f"{folder}: {why}"
        say(f"{folder} is passed over: {why}")
    return None, failed


def _why_not(folder, paths, layout, is_distributed):
    """Why ranks of that layout cannot go on from that folder of Megatron's, in a sentence, or None."""
    try:
        if megatron_layout.is_sharded(paths):
            why = megatron_dist.why_not_whole(folder, paths)
        else:
            why = megatron_layout.why_not(paths, layout, is_distributed)
        return why or megatron_folder.why_damaged(folder, paths)
    except OSError as error:
        return f"it cannot be read: {error}"
