"""phalanx.checkpoint.adapters.flash for trainers that save a DeepSpeed engine.

Where the engine's config has checkpoint.load_universal, as that of ms-swift's deepspeed_elastic, a step can be gone on
from only when it is converted. That is done behind the save, for the newest step, and once more where a life begins:
the last one may have ended in between. checkpoint-N/latest_universal then names the result, and ucp.txt the newest N
that has one.
"""

import functools
import os
import re
import sys

import torch.distributed as dist

from phalanx.checkpoint import universal
from phalanx.checkpoint.adapters import deepspeed, flash
from phalanx.checkpoint.ranks import place

TRACKER = "ucp.txt"
_CONVERTED = "ucp"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


class Checkpointer(flash.Checkpointer):
    """As flash.Checkpointer; what only the engine's steps write is copied while the training goes on."""

    def __init__(self, engine, directory):
        super().__init__(directory, functools.partial(deepspeed.Files, engine))
        self._is_universal = engine.load_universal_checkpoint()

    def _settle(self, step):
        super()._settle(step)
        if self._is_universal and step == self._newest:  # else a newer one is on its way
            why_not = convert(self.directory, step)
            if why_not is not None:
                self._say(why_not)


def convert(directory, step, stage=None):
    """None, when checkpoint-<step> in `directory` has a universal checkpoint and ucp.txt names it; else why not.
    `stage`: of ZeRO that is to load it, where it is not that which saved it."""
    folder = os.path.join(directory, f"checkpoint-{step}")
    try:
        universal.convert(_stored_in(folder), os.path.join(folder, _CONVERTED), stage=stage)
        if _number_in(directory, TRACKER) != step:
            universal.write_text(os.path.join(directory, TRACKER), str(step))
    except (universal.Refused, OSError) as error:
        return f"step {step} has no universal checkpoint: {error}"
    return None


def make_ready(directory, stage):
    """Before a life goes on from what lies in `directory`: the newest step that is stored gets its universal
    checkpoint, where its engine loads nothing else; where it cannot be made, the newest before it that has one or can
    get one is what ucp.txt names. What could not be is told on stderr. `stage`: of ZeRO that is to load it. All ranks
    call it together."""
    if not place.is_together() or dist.get_rank() == 0:
        for text in _make_ready(directory, stage):
            sys.stderr.write(f"phalanx.checkpoint: {directory}: {text}\n")
    if place.is_together():
        dist.barrier()


def _make_ready(directory, stage):
    """What is to be told."""
    newest = _number_in(directory, flash.TRACKER)
    if newest is None:
        return []
    found = map(_CHECKPOINT.fullmatch, os.listdir(directory))
    steps = sorted((step for step in (int(each[1]) for each in found if each) if step <= newest), reverse=True)
    told = []
    for step in steps:
        if not told and not _wants(directory, step):
            return []
        why_not = convert(directory, step, stage)
        if why_not is None:
            return told
        told.append(why_not)
    return told


def _wants(directory, step):
    try:
        folder = _stored_in(os.path.join(directory, f"checkpoint-{step}"))
    except FileNotFoundError:
        return False  # of another engine than DeepSpeed's
    try:
        return universal.wants_universal(folder)
    except (universal.Refused, OSError):
        return True  # what cannot be read is told when it is to be converted


def _number_in(directory, name):
    try:
        with open(os.path.join(directory, name)) as file:
            text = file.read().strip()
    except FileNotFoundError:
        return None
    return int(text) if text.isdecimal() else None


def _stored_in(folder):
    """The folder global_stepN in it."""
    with open(os.path.join(folder, "latest")) as file:
        return os.path.join(folder, file.read().strip())
