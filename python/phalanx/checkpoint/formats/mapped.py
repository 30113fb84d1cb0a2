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

from phalanx.checkpoint import describing, native
from phalanx.checkpoint.formats import plan

try:
    import numpy

    torch.from_numpy(numpy.empty(0))
except (ImportError, RuntimeError):  # torch runs without it, and beside one that is too new for it
    numpy = None

_ELEMENT_BYTES = {dtype: torch.empty(0, dtype=dtype).element_size() for dtype in describing.STORAGE_NAMES}
# Data type -> that of an array, bytes of an element. An array of the right shape becomes a tensor in half the time that
# a row of elements takes to become one and to be given its shape.
_ARRAYS = {
    dtype: (numpy.dtype(str(dtype)[len("torch.") :]), count)
    for dtype, count in _ELEMENT_BYTES.items()
    if numpy is not None and dtype is not torch.bfloat16
}
# Whatever the number of elements, of 1 or more, these two never agree with each other or with what is there.
_NO_ARRAY = (None, -2)
_NO_RECORD = (None, -1)


class NotPlain(Exception):
    """The image holds something that is not read here."""


def load(path, begin=0, length=0):
    """The state in the image at `path`, or in that part of it: its tensors' memory is the file's until it is written.
    NotPlain."""
    before = begin % mmap.ALLOCATIONGRANULARITY
    with open(path, "rb") as file:
        whole = mmap.mmap(
            file.fileno(), before + length if length else 0, access=mmap.ACCESS_COPY, offset=begin - before
        )
    memory = memoryview(whole)[before:] if before else whole
    try:
        at, lengths = native.parts(memory)
    except native.Failure as failure:
        raise NotPlain(str(failure)) from None
    data = memory[at[0] : at[0] + lengths[0]]
    with plan.without_collector():
        return _Unpickler(data, _Tensors(memory, at[1:], lengths[1:])).state()


class _Unpickler(pickle.Unpickler):
    """A storage that is named is put aside for the tensor in it, which comes next."""

    def __init__(self, data, tensors):
        # A stream without peek() is asked for each operand of the pickle by a call of its own.
        super().__init__(io.BufferedReader(io.BytesIO(data), max(1, len(data))))
        self._named = []
        self._rebuild = tensors.maker(self._named)

    def state(self):
        try:
            state = self.load()
        except (LookupError, TypeError, ValueError) as error:
            raise NotPlain(f"{type(error).__name__}: {error}") from None
        if self._named:
            raise NotPlain("a storage that stands by itself")
        return state

    def find_class(self, module, name):
        if name == "_rebuild_tensor_v2" and module == "torch._utils":
            return self._rebuild
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise NotPlain(f"{module}.{name}") from None

    def persistent_load(self, identity):
        self._named.append(identity)


class _Tensors:
    """Each storage is memory of its own for whoever asks it, so that it lives as long as its tensors."""

    def __init__(self, memory, storages_at, storages_bytes):
        self._memory, self._at, self._bytes = memory, storages_at, storages_bytes
        self._found = {}  # key -> the first tensor in that storage
        self._places = {"cpu"}

    def maker(self, named):
        """What does as torch._utils._rebuild_tensor_v2, with the storage that was named last. A state may have many
        thousands of tensors: what nearly all of them are, the only one in a storage that it fills, is made first, and
        with as few look-ups as can be."""
        memory, found, places = self._memory, self._found, self._places
        unused = dict(zip(map(str, range(len(self._at))), zip(self._at, self._bytes)))
        elements = {}  # (shape, stride) -> how many, None where they do not lie in a row

        def rebuild(_, offset, size, stride, requires_grad, hooks, *rest):
            what, dtype, key, location, numel = identity = named.pop()
            if hooks or rest:
                raise NotPlain("a tensor with hooks or marks")
            if what != "storage" or location not in places:
                self._check_place(identity)
            at, record_bytes = unused.pop(key, _NO_RECORD)
            of_array, element_bytes = _ARRAYS.get(dtype, _NO_ARRAY)
            try:
                in_a_row = elements[size, stride]
            except KeyError:
                in_a_row = elements[size, stride] = _elements_in_a_row(size, stride)
            if numel * element_bytes == record_bytes and in_a_row == numel and type(numel) is int and offset == 0:
                tensor = found[key] = torch.from_numpy(numpy.ndarray(size, of_array, memory, at))
            else:
                tensor = self._whole(dtype, key, numel).as_strided_(size, stride, offset)
            return tensor.requires_grad_() if requires_grad else tensor

        return rebuild

    def _check_place(self, identity):
        what, dtype, _, location, _ = identity
        if what != "storage" or not str(location).startswith(("cpu", "cuda")):
            raise NotPlain(f"a storage of {dtype} on {location}")
        self._places.add(location)

    def _whole(self, dtype, key, numel):
        """A new tensor, of all of the storage."""
        number = int(key) if str(key).isdecimal() else -1
        is_there = 0 <= number < len(self._at) and type(numel) is int
        if not is_there or self._bytes[number] != numel * _ELEMENT_BYTES.get(dtype, 0):
            raise NotPlain(f"storage {key}, named as {numel} elements of {dtype}")
        first = self._found.get(key)
        if first is not None:
            return torch.empty(0, dtype=dtype).set_(first.untyped_storage())
        tensor = self._found[key] = self._tensor_at(self._at[number], dtype, numel)
        return tensor

    def _tensor_at(self, at, dtype, numel):
        if numel == 0:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(self._memory, dtype=dtype, count=numel, offset=at)


def _elements_in_a_row(size, stride):
    """How many a tensor has whose elements lie one behind the other in the order of their indices; None for others."""
    count, expected = 1, []
    for length in reversed(size):
        expected.append(count)
        count *= length
    return count if count > 0 and stride == tuple(reversed(expected)) else None


_ALLOWED = {("torch", name): dtype for dtype, name in describing.STORAGE_NAMES.items()}
_ALLOWED["collections", "OrderedDict"] = OrderedDict
