"""Maps an image of memory as torch.load(mmap=True) does, several times faster: for states of plain tensors and plain
values, which is what nearly all are; on the CPU, wherever they were saved. Anything else is left to torch.load.

torch.load(weights_only=True) reads a pickle in Python, one operation after another. The pickle module's own reader may
do it where nothing can be named but what is allowed here: of that nothing does more than to make a tensor or a dict.
"""

import io
import mmap
import pickle
from collections import OrderedDict

import torch

from phalanx.checkpoint import native, plan

_ELEMENT_BYTES = {dtype: torch.empty(0, dtype=dtype).element_size() for dtype in plan.STORAGE_NAMES}


class NotPlain(Exception):
    """The image holds something that is not read here."""


def load(path):
    """The state in the image at `path`: its tensors' memory is the file's until it is written. NotPlain."""
    with open(path, "rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    try:
        at, lengths = native.parts(memory)
    except native.Failure as failure:
        raise NotPlain(str(failure)) from None
    data = memory[at[0] : at[0] + lengths[0]]
    with plan.without_collector():
        return _Unpickler(data, memory, at[1:], lengths[1:]).load()


class _Unpickler(pickle.Unpickler):
    """Each storage is memory of its own for whoever asks it, so that it lives as long as its tensors."""

    def __init__(self, data, memory, storages_at, storages_bytes):
        super().__init__(io.BytesIO(data))
        self._memory, self._at, self._bytes = memory, storages_at, storages_bytes
        self._found = {}  # number -> the first tensor in that storage

    def find_class(self, module, name):
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise NotPlain(f"{module}.{name}") from None

    def persistent_load(self, identity):
        """A new tensor, of all of the storage, for _rebuild."""
        try:
            what, dtype, key, location, numel = identity
            number = int(key)
        except (TypeError, ValueError):
            raise NotPlain("a storage of another kind") from None
        if what != "storage" or type(dtype) is not torch.dtype or not str(location).startswith(("cpu", "cuda")):
            raise NotPlain(f"a storage of {dtype} on {location}")
        is_there = 0 <= number < len(self._at) and type(numel) is int
        if not is_there or self._bytes[number] != numel * _ELEMENT_BYTES[dtype]:
            raise NotPlain(f"storage {key}, named as {numel} elements of {dtype}")
        first = self._found.get(number)
        if first is not None:
            return torch.empty(0, dtype=dtype).set_(first.untyped_storage())
        tensor = self._found[number] = self._tensor_at(self._at[number], dtype, numel)
        return tensor

    def _tensor_at(self, at, dtype, numel):
        if numel == 0:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(self._memory, dtype=dtype, count=numel, offset=at)


def _rebuild(tensor, offset, size, stride, requires_grad, hooks, *rest):
    """As torch._utils._rebuild_tensor_v2 does."""
    if hooks or rest:
        raise NotPlain("a tensor with hooks or marks")
    tensor.as_strided_(size, stride, offset)
    if requires_grad:
        tensor.requires_grad_()
    return tensor


_ALLOWED = {("torch", name): dtype for dtype, name in plan.STORAGE_NAMES.items()}
_ALLOWED["torch._utils", "_rebuild_tensor_v2"] = _rebuild
_ALLOWED["collections", "OrderedDict"] = OrderedDict
