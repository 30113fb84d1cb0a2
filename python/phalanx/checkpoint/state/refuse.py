"""What no image can hold, said with the place where it stands in the state."""

import torch

_NOT_DISTRIBUTED = frozenset((torch.Tensor, torch.nn.Parameter))


class CannotSave(TypeError):
    """The state holds something that cannot be saved. The message names it by its path in the state."""


class Refused(Exception):
    """Raised where the path is not known: `what` (a tensor or a storage) cannot be saved, because of `why`."""

    def __init__(self, what, why):
        super().__init__(why)
        self.what = what
        self.why = why


def unless_savable(tensor):
    """Raises Refused for a tensor of a kind that an image cannot hold."""
    why = _why_not(tensor)
    if why:
        raise Refused(tensor, why)


def _why_not(tensor):
    if tensor.is_nested:
        return "nested tensors are not supported; save their parts"
    if tensor.layout is not torch.strided:
        name = str(tensor.layout).replace("torch.", "").lstrip("_")
        kind = "sparse" if name.startswith("sparse") else name
        return f"{kind} tensors are not supported; save its to_dense(), or its parts"
    if tensor.is_quantized:
        return "quantised tensors are not supported; save its int_repr(), scale and zero point, or its dequantize()"
    kind = tensor.device.type
    if kind == "meta":
        return "a meta tensor has no data; materialise the module (to_empty, then load or initialise it) first"
    if kind not in ("cpu", "cuda"):
        return f"tensors on {kind} are not supported; save its cpu()"
    if _is_without_memory(tensor):
        return "its memory is not there: FSDP frees it between uses, save through phalanx.checkpoint.dcp"
    return None


def _is_without_memory(tensor):
    if type(tensor) is not torch.Tensor and not isinstance(tensor, torch.nn.Parameter):
        return False  # a wrapper has none of its own
    return tensor.numel() > 0 and tensor.untyped_storage().nbytes() == 0


def named(state, refused):
    """CannotSave, naming where in `state` what was refused stands."""
    path = path_of(state, lambda value: _is_it(value, refused.what))
    return CannotSave(f"{path or 'a tensor inside an object of the state'}: {refused.why}")


def path_of(state, matches):
    """The path of the first value that matches, as state['model']['fc.weight']; None where none is found.

    Only dicts, lists and tuples are looked into."""
    open_, seen = [("state", state)], set()
    while open_:
        path, value = open_.pop()
        if id(value) in seen:
            continue
        if matches(value):
            return path
        if isinstance(value, dict):
            seen.add(id(value))
            open_.extend((f"{path}[{key!r}]", inner) for key, inner in reversed(list(value.items())))
        elif isinstance(value, (list, tuple)):
            seen.add(id(value))
            open_.extend((f"{path}[{index}]", inner) for index, inner in reversed(list(enumerate(value))))
    return None


def path_of_storage(state, identity):
    """The path of the first tensor that lies in the storage `identity`."""

    def lies_there(value):
        return isinstance(value, torch.Tensor) and storage_identity(value) == identity

    return path_of(state, lies_there)


def local_part(tensor):
    """What a DTensor has here; any other tensor itself."""
    if type(tensor) in _NOT_DISTRIBUTED:  # an attribute that is missing takes longer to find
        return tensor
    return getattr(tensor, "_local_tensor", tensor)


def storage_identity(tensor):
    """Which storage the tensor lies in; None where it has none. A DTensor's is that of its local part."""
    try:
        return local_part(tensor).untyped_storage()._cdata
    except (RuntimeError, NotImplementedError):
        return None


def _is_it(value, what):
    if value is what:
        return True
    if not isinstance(value, torch.Tensor):
        return False
    if isinstance(what, torch.Tensor):
        # A parameter is written through a tensor that is made on the way.
        return isinstance(value, torch.nn.Parameter) and value.data_ptr() == what.data_ptr() != 0
    return storage_identity(value) == what._cdata
