"""Where ms-swift goes on from, in a job that was restarted: it asks for the folder of the life before, and then for a
step in it that has a universal checkpoint. Where that life ended before there was one, ms-swift would train from the
first step on, and say nothing. So the folder is made ready before it is named."""

import functools
import importlib
import os
import sys

from phalanx.checkpoint.adapters import flash

_TELLS, _ASKS = "swift.trainers.utils", "swift.trainers.mixin"
_NAME = "get_resume_dir"


def install():
    """In a process of ms-swift, before it makes its trainer; elsewhere nothing."""
    if "swift.trainers" not in sys.modules:
        return
    found = getattr(importlib.import_module(_TELLS), _NAME, None)
    if found is None or hasattr(found, "__wrapped__"):
        return

    @functools.wraps(found)
    def get_resume_dir(output_dir):
        directory = _with_a_step(found, output_dir)
        if directory is not None and "deepspeed" in sys.modules:
            from phalanx.checkpoint.adapters import flash_deepspeed  # which imports DeepSpeed

            flash_deepspeed.make_ready(directory, _stage())
        return directory

    for name in (_TELLS, _ASKS):  # of which the second is loaded later, or has taken it from the first
        if hasattr(sys.modules.get(name), _NAME):
            setattr(sys.modules[name], _NAME, get_resume_dir)


def _stage():
    """Of ZeRO, as the engine will have it that ms-swift makes next: 3, or 1 for all others."""
    from transformers.integrations import is_deepspeed_zero3_enabled

    return 3 if is_deepspeed_zero3_enabled() else 1


def _with_a_step(previous, output_dir):
    """The newest folder before `output_dir` in which a step is stored: a life that ended before its first save leaves
    one without. None, where there is no folder at all."""
    first = directory = previous(output_dir)
    while directory is not None and not os.path.exists(os.path.join(directory, flash.TRACKER)):
        directory = previous(directory)
    return first if directory is None else directory
