"""Whether torch.load(weights_only=True) will read what a state names, asked at the first save, not at a restart; and
to which devices it is loaded."""

import io
import pickle

import torch

from phalanx.checkpoint.state import refuse

# What reading the pickle of a file raises that is damaged, or names what is not as it was; but for ImportError, which
# not all take for that.
NOT_LOADED = (
    OSError,
    RuntimeError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    EOFError,
    pickle.UnpicklingError,
)


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


def location(given):
    """A map_location as torch.load takes it, "cpu" for all that mean it. What names no device here is refused before
    anything is read: not by one rank alone behind the others' agreement."""
    if isinstance(given, (str, torch.device)):
        try:
            device = torch.device(given)
        except RuntimeError:
            device = None
        if device is None or device.type == "meta" or not _is_here(device):
            raise ValueError(f"phalanx.checkpoint: map_location is {str(given)!r}; expected {_DEVICES}")
        return "cpu" if device.type == "cpu" else given
    if given is not None and not isinstance(given, dict) and not callable(given):
        raise TypeError(
            f"phalanx.checkpoint: map_location is {given!r}; expected None, a device, a dict of devices or a function, "
            "as of torch.load"
        )
    return given


_DEVICES = "a device that torch sees here and that holds data, as 'cpu' or 'cuda:0'"


def _is_here(device):
    return device.type != "cuda" or (torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count())


def device_of_all(path, map_location):
    """That of all tensors of a safetensors file, which does not say where they were."""
    if map_location is None:
        return "cpu"
    if isinstance(map_location, (str, torch.device)):
        return map_location
    raise TypeError(
        f"phalanx.checkpoint: map_location is {map_location!r}, and {path} does not say on which device a tensor was: "
        "expected one device for all"
    )
