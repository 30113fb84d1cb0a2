"""Counts the time that checkpoints hold up the training, without a change of the script and without importing torch."""

import functools
import sys

from phalanx._bootstrap import board


def _hook(package, *names):
    """A call that puts counting functions in the place of a module's own, also where its package has them already."""

    def replace(module):
        for name in names:
            save = getattr(module, name, None)
            if not callable(save):
                continue  # a torch that has no such function
            counting = _counting(save)
            for place in (module, sys.modules.get(package)):
                if getattr(place, name, None) is save:
                    setattr(place, name, counting)

    return replace


# The modules that define the functions, so that the packages import them with the counting in place.
HOOKS = {
    "torch.serialization": _hook("torch", "save"),
    "torch.distributed.checkpoint.state_dict_saver": _hook("torch.distributed.checkpoint", "save", "async_save"),
}


def _counting(save):
    @functools.wraps(save)
    def counting(*args, **kwargs):
        counted = board.begin_saving()
        try:
            return save(*args, **kwargs)
        except BaseException as error:
            # The traceback is that of the script and torch. From Python 3.11 on a bare raise takes the one set here;
            # in older ones our line stays, but for exceptions that end the script (runner.py takes it out there).
            error.__traceback__ = error.__traceback__.tb_next
            raise
        finally:
            if counted:
                board.end_saving()

    return counting
