"""phalanx.checkpoint.adapters.flash for trainers that save a DeepSpeed engine.

Where the engine's config has checkpoint.load_universal, as that of ms-swift's deepspeed_elastic, a step can be gone on
from only when it is converted. That is done behind the save, for the newest step: checkpoint-N/latest_universal then
names the result, and ucp.txt the newest N that has one.
"""

import functools
import os

from phalanx.checkpoint.adapters import deepspeed, flash, universal

_CONVERTED = "ucp"
_TRACKER = "ucp.txt"


class Checkpointer(flash.Checkpointer):
    """As flash.Checkpointer; what only the engine's steps write is copied while the training goes on."""

    def __init__(self, engine, directory):
        super().__init__(directory, functools.partial(deepspeed.Files, engine))
        self._is_universal = engine.load_universal_checkpoint()

    def _settle(self, step):
        super()._settle(step)
        if self._is_universal and step == self._newest:  # else a newer one is on its way
            self._convert(step)

    def _convert(self, step):
        folder = self._folder_of(step)
        try:
            universal.convert(_stored_in(folder), os.path.join(folder, _CONVERTED))
        except (universal.Refused, OSError) as error:
            return self._say(f"step {step} has no universal checkpoint: {error}")
        return universal.write_text(os.path.join(self.directory, _TRACKER), str(step))


def _stored_in(folder):
    """The folder global_stepN in it."""
    with open(os.path.join(folder, "latest")) as file:
        return os.path.join(folder, file.read().strip())
