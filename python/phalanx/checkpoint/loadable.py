"""Whether torch.load(weights_only=True) will read what a state names: asked at the first save, not at a restart."""

import io
import pickle

import torch

from phalanx.checkpoint import refuse


class Classes:
    """Remembers what has been asked already."""

    def __init__(self):
        self._readable = set()

    def check(self, named, state):
        """`named`: functions and classes in the pickle of `state`. Raises CannotSave for one that is not read."""
        new = [obj for obj in named if obj not in self._readable]
        if not new or _is_read(new):
            self._readable.update(new)
            return
        bad = next(obj for obj in new if not _is_read([obj]))
        path = refuse.path_of(state, lambda value: type(value) is bad)
        name = f"{bad.__module__}.{getattr(bad, '__qualname__', bad)}"
        raise refuse.CannotSave(
            f"{path or 'the state'}: {name} is nothing that torch.load(weights_only=True) reads. Save tensors and "
            "plain values, allow it by torch.serialization.add_safe_globals (torch 2.4 or newer), or make the "
            "Checkpointer with weights_only=False if all who can write the files are trusted"
        )


def _is_read(named):
    """Asked of torch itself: a file that holds nothing but these names."""
    stream = io.BytesIO()
    torch.save(list(named), stream)
    stream.seek(0)
    try:
        torch.load(stream, weights_only=True)
    except pickle.UnpicklingError:
        return False
    return True
