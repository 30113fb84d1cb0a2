"""Where Megatron-LM looks for the files of one: <dir>/latest_checkpointed_iteration.txt says the iteration, and
<dir>/iter_0001200/mp_rank_00_001/ has those of tensor rank 0 and pipeline stage 1. By names alone."""

import re

TRACKER = "latest_checkpointed_iteration.txt"
PREFIX, DIGITS = "iter_", 7
RELEASE = "release"
MODEL, OPTIMIZER = "model_optim_rng.pt", "distrib_optim.pt"
_PART = re.compile(r"(mp_rank_\d{2,}(?:_\d{3,}){0,2})/")
_SHOWN_MAX = 4


class Layout:
    """Of one rank: its place among tensor, pipeline and expert parallel ranks, and how many there are of each.
    `parts`: those of all ranks, which they tell each other before why_not(): with expert tensor parallel ranks of
    another number than tensor parallel ones not each place is somebody's."""

    def __init__(self, tensor, pipeline, expert, sizes):
        """`sizes`: of the three, in that order."""
        self._ranks, self._sizes = (tensor, pipeline, expert), sizes
        self.parts = {self.part}

    @property
    def part(self):
        return self._part(*self._ranks)

    def path(self, name):
        """Of this rank's file of that name, below the iteration's folder."""
        return f"{self.part}/{name}"

    def first(self, name):
        return f"{self._part(0, 0, 0)}/{name}"

    def _part(self, tensor, pipeline, expert):
        stage = f"_{pipeline:03d}" if self._sizes[1] > 1 else ""
        experts = f"_{expert:03d}" if self._sizes[2] > 1 else ""
        return f"mp_rank_{tensor:02d}{stage}{experts}"

    def __str__(self):
        tensor, pipeline, expert = self._sizes
        experts = f" x {expert} expert" if expert > 1 else ""
        return f"{tensor} tensor x {pipeline} pipeline{experts} parallel ranks"


def why_not(paths, layout, is_distributed):
    """Why ranks of that layout cannot load files of those paths below an iteration's folder, in a sentence, or None.
    `is_distributed`: with the distributed optimizer."""
    paths = set(paths)
    saved = {found[1] for found in map(_PART.match, paths) if found}
    wanted = set(layout.parts)
    if not saved:
        return f"it has no mp_rank_*/{MODEL}, so it is no checkpoint in Megatron's torch format, or not all of one"
    if saved - wanted:
        return (
            f"it was saved as {_listed(saved)}, and this job has {layout}, {_listed(wanted)}. Use the same sizes; "
            "what is saved with ckpt_format torch_dist can be loaded with others"
        )
    missing = sorted(part for part in wanted if f"{part}/{MODEL}" not in paths)
    if missing:
        return (
            f"{missing[0]}/{MODEL} is missing: it is half a checkpoint, or one of fewer ranks than this job's {layout}"
        )
    if is_distributed and not any(path.endswith(f"/{OPTIMIZER}") for path in paths):
        return (
            f"it has no {OPTIMIZER}: it was saved without the distributed optimizer, this job has it. Use the same, "
            "or load the weights alone"
        )
    return None


def is_sharded(paths):
    """Whether a folder with those files is in the torch_dist format."""
    return "metadata.json" in paths


def is_checkpoint(paths):
    """Whether those files are of a checkpoint in any of Megatron's formats, or of a part of one. It writes states of
    data loaders into mp_rank_* as well, which are none."""
    states = (path.partition("/")[2] for path in paths if _PART.match(path))
    return not {"metadata.json", ".metadata"}.isdisjoint(paths) or not {MODEL, OPTIMIZER}.isdisjoint(states)


def _listed(parts):
    parts = sorted(parts)
    shown = ", ".join(parts[:_SHOWN_MAX])
    return shown if len(parts) <= _SHOWN_MAX else f"{shown} and {len(parts) - _SHOWN_MAX} more"


def read_tracker(text):
    """The iteration, or RELEASE. ValueError."""
    word = text.strip()
    if word == RELEASE:
        return RELEASE
    if not (word.isascii() and word.isdecimal()):
        raise ValueError(f"{TRACKER} says {word[:80]!r}; expected the number of an iteration, or {RELEASE}")
    return int(word)


def folder_of(iteration):
    return RELEASE if iteration == RELEASE else f"{PREFIX}{iteration:0{DIGITS}d}"


def why_another_model(saved, here):
    """Why a model with the shapes `here`, {name: shape}, cannot load weights of the shapes `saved`; None: it can."""
    differs = sorted(name for name in {*saved, *here} if saved.get(name) != here.get(name))
    if not differs:
        return None
    name = differs[0]
    there, own = (list(each[name]) if name in each else "not there" for each in (saved, here))
    return f"it is of another model: {name!r} is {there}, and {own} in this one"
