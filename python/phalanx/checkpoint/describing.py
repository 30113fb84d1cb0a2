"""The native side of describing a state, libphalanx_describe.so: src/checkpoint/describe/ has the contracts."""

import array
import ctypes
import os
from collections import OrderedDict
from ctypes import c_int, c_uint32, c_uint64, c_void_p, py_object

import torch

from phalanx import _library
from phalanx.checkpoint import native

ABI_VERSION = 1
# Data types that torch.save names by a storage class. The others stand in the pickle themselves, and take torch's own
# way.
STORAGE_NAMES = {
    torch.float64: "DoubleStorage",
    torch.float32: "FloatStorage",
    torch.float16: "HalfStorage",
    torch.bfloat16: "BFloat16Storage",
    torch.int64: "LongStorage",
    torch.int32: "IntStorage",
    torch.int16: "ShortStorage",
    torch.int8: "CharStorage",
    torch.uint8: "ByteStorage",
    torch.bool: "BoolStorage",
}
PLAIN = {
    dtype: (getattr(torch, name), torch.empty(0, dtype=dtype).element_size())
    for dtype, name in STORAGE_NAMES.items()
    if hasattr(torch, name)
}
_DLPACK = {  # code, bits
    torch.float64: (2, 64),
    torch.float32: (2, 32),
    torch.float16: (2, 16),
    torch.bfloat16: (4, 16),
    torch.int64: (0, 64),
    torch.int32: (0, 32),
    torch.int16: (0, 16),
    torch.int8: (0, 8),
    torch.uint8: (1, 8),
    torch.bool: (6, 8),
}
_CHECKED_BETWEEN = 8192  # tensors that are looked at before others may run
_FUNCTIONS = {
    "phx_describe_abi_version": (c_uint32, ()),
    "phx_describe": (py_object, (py_object, py_object, c_int, c_uint64, c_uint64)),
    "phx_describe_guards": (
        py_object,
        (py_object, py_object, py_object, c_void_p, c_void_p, c_void_p, py_object, py_object, c_uint64, c_void_p),
    ),
    "phx_describe_versions": (py_object, (py_object, py_object)),
    "phx_describe_changed": (
        py_object,
        (py_object, py_object, c_void_p, c_void_p, py_object, c_void_p, c_void_p, c_uint64, c_uint64),
    ),
}
_loaded = None


def library():
    """The loaded library. Raises LibraryMissing."""
    global _loaded
    if _loaded is None:
        folder, name = os.path.dirname(os.path.abspath(__file__)), "libphalanx_describe.so"
        _loaded = _library.load("phalanx.checkpoint", folder, name, ABI_VERSION, _FUNCTIONS, ctypes.PyDLL)
    return _loaded


def describe(state, asks, depth, pickle_bytes, records):
    """phx_describe(). `asks`: the last of its tools, which Python does."""
    return library().phx_describe(state, _tools(*asks), depth, pickle_bytes, records)


def guards(image, written, shared, above, when):
    """(numbers of records, [tensor], their version counters, what is left of `written`), the first three one by one:
    tensors that each take all of a record which is larger than `above` bytes and lies in none of the storages `shared`.
    `when`: a bytearray with a byte for each record, which becomes native.LATER for these."""
    numbers = map(native.address, (image.pointers, image.sizes, image.versions))
    given = written, shared, above, native.address(when)
    found = library().phx_describe_guards(_tools(), image.storages, image.tensors, *numbers, *given)
    records, tensors, counted, left = found
    return array.array("Q", records), tensors, array.array("Q", counted), left


def versions(tensors):
    """Their version counters, an array of u64; 0 for those that count none."""
    return array.array("Q", library().phx_describe_versions(_tools(), tensors))


def changed(image, records, tensors, counted):
    """(position of the first of `tensors` that is not as it was, whether its memory was moved), or None. They had the
    versions `counted`, and their memory is that of `records`, an array of u64."""
    tools, call = _tools(), library().phx_describe_changed
    parts = image.storages, native.address(image.pointers), native.address(image.sizes)
    pairs = tensors, native.address(records), native.address(counted)
    for first in range(0, len(tensors), _CHECKED_BETWEEN):
        found = call(tools, *parts, *pairs, first, min(first + _CHECKED_BETWEEN, len(tensors)))
        if found >= 0:
            return divmod(found, 2)
    return None


def _tools(*asks):
    tensor, storage = torch._C.TensorBase, torch._C.StorageBase
    return (
        torch.Tensor,
        torch.nn.Parameter,
        tensor.untyped_storage,
        tensor.stride,
        tensor.storage_offset,
        tensor.is_neg,
        tensor.get_device,
        storage.data_ptr,
        storage.nbytes,
        "dtype",
        "shape",
        "requires_grad",
        "is_cpu",
        "is_cuda",
        "__dict__",
        "_version",
        "_cdata",
        "nbytes",
        "data_ptr",
        torch._utils._rebuild_tensor_v2,
        "storage",
        OrderedDict,
        tuple((dtype, *plain, *_DLPACK[dtype]) for dtype, plain in PLAIN.items()),
        _exchange(),
        *(asks or (None,) * 3),
    )


def _exchange():
    """Where torch's functions for exchanging tensors with other libraries are; 0: this torch has none."""
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return 0
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return pointer(capsule, b"dlpack_exchange_api")
