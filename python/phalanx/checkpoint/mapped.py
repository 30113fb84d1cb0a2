"""Maps an image of memory as torch.load(mmap=True) does, several times faster: for states of plain tensors and plain
values, which is what nearly all are; on the CPU, wherever they were saved. Anything else is left to torch.load.

torch.load(weights_only=True) reads a pickle in Python, one operation after another. The pickle module's own reader may
do it where nothing can be named but what is allowed here: of that nothing does more than to make a tensor or a dict.
"""

import io
import pickle
from collections import OrderedDict

import torch

_DTYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
_ELEMENT_BYTES = {dtype: torch.empty(0, dtype=dtype).element_size() for dtype in _DTYPES.values()}


class NotPlain(Exception):
    """The image holds something that is not read here."""


def load(path):
    """The state in the image at `path`: its tensors' memory is the file's until it is written. NotPlain."""
    reader = torch._C.PyTorchFileReader(path)
    data = reader.get_record("data.pkl")
    return _Unpickler(data, _Storages(path, reader)).load()


class _Storages:
    """The records of an image, each as a storage of its own, so that each lives as long as its tensors."""

    def __init__(self, path, reader):
        with open(path, "rb") as file:
            length = file.seek(0, 2)
        self._whole = torch.UntypedStorage.from_file(path, False, length)
        self._offset_of = reader.get_record_offset
        self._found = {}

    def get(self, key, nbytes):
        storage = self._found.get(key)
        if storage is None:
            at = self._offset_of(f"data/{key}")
            storage = self._found[key] = self._whole[at : at + nbytes]
        elif storage.nbytes() != nbytes:
            raise NotPlain(f"record {key} is named as {storage.nbytes()} and as {nbytes} bytes")
        return storage


class _Unpickler(pickle.Unpickler):
    def __init__(self, data, storages):
        super().__init__(io.BytesIO(data))
        self._storages = storages

    def find_class(self, module, name):
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise NotPlain(f"{module}.{name}") from None

    def persistent_load(self, identity):
        """(storage, data type) for _rebuild."""
        try:
            what, dtype, key, location, numel = identity
        except (TypeError, ValueError):
            raise NotPlain("a storage of another kind") from None
        if what != "storage" or type(dtype) is not torch.dtype or not str(location).startswith(("cpu", "cuda")):
            raise NotPlain(f"a storage of {dtype} on {location}")
        return self._storages.get(key, numel * _ELEMENT_BYTES[dtype]), dtype


def _rebuild(typed, offset, size, stride, requires_grad, hooks, *rest):
    """As torch._utils._rebuild_tensor_v2 does."""
    if hooks or rest:
        raise NotPlain("a tensor with hooks or marks")
    storage, dtype = typed
    tensor = torch.empty((0,), dtype=dtype, device="cpu").set_(storage, offset, size, stride)
    if requires_grad:
        tensor.requires_grad_()
    return tensor


_ALLOWED = {("torch", name): dtype for name, dtype in _DTYPES.items()}
_ALLOWED["torch._utils", "_rebuild_tensor_v2"] = _rebuild
_ALLOWED["collections", "OrderedDict"] = OrderedDict
