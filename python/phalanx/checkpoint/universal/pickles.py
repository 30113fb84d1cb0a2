"""Pickles as torch.save writes them of tensors whose memory is nowhere in one piece. Pure."""

import functools
import io
import pickle
from collections import OrderedDict

import torch

from phalanx.checkpoint import describing

_rebuild_tensor = torch._utils._rebuild_tensor_v2


class Whole:
    """Stands in a state for a tensor of that type and shape, alone in its storage, its elements in their order."""

    __slots__ = ("dtype", "shape")

    def __init__(self, dtype, shape):
        self.dtype, self.shape = dtype, tuple(shape)


def can_hold(dtype):
    """Whether there is such a tensor in a file."""
    return dtype in describing.STORAGE_NAMES


def of_whole(dtype, shape, keys=None):
    """Of a Whole; or of a dict with it under "param", and `keys`, (key, value) each, before it."""
    return _of_whole(dtype, tuple(shape), keys)


@functools.lru_cache(maxsize=4096)
def _of_whole(dtype, shape, keys):
    whole = Whole(dtype, shape)
    file = io.BytesIO()
    _Pickler(file).dump(whole if keys is None else {**dict(keys), "param": whole})
    return file.getvalue()


class _StorageId:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


class _Pickler(pickle.Pickler):
    """Of a state with one Whole."""

    def __init__(self, file):
        super().__init__(file, protocol=2)

    def persistent_id(self, obj):
        return obj.value if type(obj) is _StorageId else None

    def reducer_override(self, obj):
        if type(obj) is not Whole:
            return NotImplemented
        stride, numel = [], 1
        for length in reversed(obj.shape):
            stride.append(numel)
            numel *= length
        storage = _StorageId(("storage", getattr(torch, describing.STORAGE_NAMES[obj.dtype]), "0", "cpu", numel))
        return _rebuild_tensor, (storage, 0, obj.shape, tuple(reversed(stride)), False, OrderedDict())
