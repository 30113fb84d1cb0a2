"""What a state is as an image: the pickle that torch.save would write, and the memory of each storage, uncopied.

The pickle is byte for byte that of torch.save (selftest.py compares them). Plain tensors take a short way, whose
results are kept from save to save; everything else takes torch's own.

A pickler that has persistent_id asks it for every number and every name of a state, which takes more time than all the
rest. In the pickle a storage is a tuple with one more opcode behind it, so a first pickler writes the tuple alone, with
a marked number in it, and the opcode is put behind those. A state with storages that stand in it by themselves, or in
tensors that torch reduces in its own way, is left to a second pickler, which asks.
"""

import array
import contextlib
import gc
import io
import os
import pickle
import re
import types
from collections import OrderedDict

import torch
from torch.serialization import location_tag, normalize_storage_type

from phalanx.checkpoint import native, refuse

_Tensor = torch.Tensor
_rebuild_tensor = torch._utils._rebuild_tensor_v2

# Data types that torch.save names by a storage class, with bytes of an element. The others stand in the pickle
# themselves, and take torch's own way.
_NAMES = {
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
_PLAIN = {
    dtype: (getattr(torch, name), torch.empty(0, dtype=dtype).element_size())
    for dtype, name in _NAMES.items()
    if hasattr(torch, name)
}
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType)
_STORAGES = frozenset((*torch._storage_classes, torch.storage.TypedStorage))


class Image:
    """A state, pickled, with its storages in the order of their records. Holding it keeps their memory alive."""

    __slots__ = ("classes", "pickle", "pointers", "sizes", "storages")

    def __init__(self, pickled, storages, pointers, sizes, classes):
        self.pickle = pickled
        self.storages = storages
        self.pointers = array.array("Q", pointers)
        self.sizes = array.array("Q", sizes)
        self.classes = classes  # functions and classes that the pickle names

    def key(self):
        """Images with the same have their records at the same places."""
        return self.sizes.tobytes()

    def file_bytes(self):
        """The length of the file, with room to grow."""
        return native.layout(self.sizes, len(self.pickle))[0]

    def fits(self, slot_bytes):
        """Whether slots of that size do: not too small, and not so large that much of them is wasted."""
        return fits(self.file_bytes(), slot_bytes)

    def offsets(self, file_bytes):
        """Where the records lie in a file of that length."""
        return native.layout(self.sizes, len(self.pickle))[1]

    def native_frame(self, file_bytes, info):
        """None: the native side lays it out."""
        return None

    def identities(self):
        """Which storage each record is; two tensors that share memory share it."""
        return [storage._cdata for storage in self.storages]


def fits(wanted, slot_bytes):
    return wanted <= slot_bytes <= wanted + wanted // 4


@contextlib.contextmanager
def without_collector():
    """For thousands of small objects that all stay: looking through them costs as much as making them."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class Describer:
    """Makes images. Keep it from save to save: it remembers how each tensor is written."""

    def __init__(self):
        self._known = {}  # storage -> _Known, of one way
        self._marks = _Marks()
        self._asks = False  # a state was seen that only the second way can write

    def describe(self, state):
        """The image of `state`. CannotSave names the tensor that no image can hold."""
        with without_collector():
            try:
                if not self._asks:
                    with contextlib.suppress(_NotPlain):
                        return self._describe(state, _MarkingPickler)
                    self._asks, self._known = True, {}
                return self._describe(state, _AskingPickler)
            except refuse.Refused as refused:
                raise refuse.named(state, refused) from None

    def _describe(self, state, kind):
        data = io.BytesIO()
        pickler = kind(data, self._known, self._marks)
        pickler.dump(state)
        self._known = pickler.used
        return Image(pickler.finish(data), pickler.storages, pickler.pointers, pickler.sizes, pickler.classes)


class _NotPlain(Exception):
    """A storage that is not that of a plain tensor."""


class _Marks:
    """Numbers that stand for others in a pickle: nothing else in it looks like them."""

    def __init__(self):
        tail = os.urandom(11) + b"\1"  # whose last byte makes it a number of 16 bytes above 0
        self._tail = tail
        # LONG1, TUPLE, and BINPUT or LONG_BINPUT: the end of the tuple and its place in the memo.
        self._pattern = re.compile(b"\x8a\x10(....)" + re.escape(tail) + b"(tq.|tr....)", re.DOTALL)

    def mark(self, number):
        """The mark with that number."""
        return int.from_bytes(number.to_bytes(4, "little") + self._tail, "little")

    def resolve(self, pickled, codes):
        """With `codes[n]` where mark n stood, and BINPERSID behind its tuple."""

        def resolved(found):
            return codes[int.from_bytes(found[1], "little")] + found[2] + b"Q"

        return self._pattern.sub(resolved, pickled)


class _StorageId:
    """Stands for a storage in what a tensor reduces to; persistent_id gives what it holds."""

    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


class _NoHooks:
    """Stands for the empty OrderedDict of a tensor's hooks. Each tensor has its own, as in torch.save."""

    __slots__ = ()


class _Known:
    """A tensor as it was written, and all that this depends on."""

    __slots__ = ("code", "dtype", "index", "key", "nbytes", "offset", "reduced", "requires_grad", "shape", "stride")

    def is_still(self, tensor, nbytes):
        """`nbytes`: of its storage."""
        return (
            tensor.dtype is self.dtype
            and nbytes == self.nbytes
            and tensor.shape == self.shape
            and tensor.stride() == self.stride
            and tensor.storage_offset() == self.offset
            and tensor.requires_grad == self.requires_grad
            and not tensor.__dict__
            and not tensor.is_neg()
        )


class _Pickler(pickle.Pickler):
    """What both ways have in common."""

    def __init__(self, file, known, marks):
        super().__init__(file, protocol=2)
        self._marks = marks
        self.storages, self.pointers, self.sizes, self.classes = [], [], [], []
        self.used = {}
        self._known = known
        self._index = {}  # storage -> number of its record
        self._keys = []
        self._dtypes = {}  # address -> data type

    def reducer_override(self, obj):
        kind = type(obj)
        if kind is _NoHooks:
            return _EMPTY
        if kind is _Tensor:
            return self._reduce_tensor(obj)
        if isinstance(obj, _Tensor):
            refuse.unless_savable(obj)
        elif isinstance(obj, _NAMED):
            self.classes.append(obj)
        elif kind in _STORAGES:
            raise _NotPlain
        return NotImplemented

    def _reduce_tensor(self, tensor):
        try:
            storage = tensor.untyped_storage()
        except (RuntimeError, NotImplementedError):  # a sparse or opaque one
            refuse.unless_savable(tensor)
            return NotImplemented
        identity = storage._cdata
        known = self._known.get(identity)
        if known is not None:
            nbytes = storage.nbytes()
            if known.is_still(tensor, nbytes) and self._again(storage, identity, known, nbytes):
                return known.reduced
        refuse.unless_savable(tensor)
        plain = _PLAIN.get(tensor.dtype)
        if plain is None or tensor.__dict__ or tensor.is_neg():
            return NotImplemented
        return self._reduce_plain(tensor, storage, *plain)

    def _again(self, storage, identity, known, nbytes):
        """Whether the tensor is written as it was: nothing else has that place, or its storage, in this state."""
        if identity in self._index:
            return self.used.get(identity) is known
        if known.index != len(self.storages):
            return False
        self._add(storage, identity, known.dtype, known.key, nbytes)
        self.used[identity] = known
        self._name(known)
        return True

    def _reduce_plain(self, tensor, storage, storage_class, element_bytes):
        known = _Known()
        known.dtype, known.shape, known.stride = tensor.dtype, tensor.shape, tensor.stride()
        known.offset, known.requires_grad = tensor.storage_offset(), tensor.requires_grad
        known.nbytes = storage.nbytes()
        known.index = index = self._record(storage, known.dtype)
        known.key = self._keys[index]
        numel = known.nbytes // element_bytes
        storage_id = self._plain_id(known, storage_class, location_tag(storage), numel)
        args = (storage_id, known.offset, tuple(known.shape), known.stride, known.requires_grad, _NoHooks())
        known.reduced = (_rebuild_tensor, args)
        self.used[storage._cdata] = known
        return known.reduced

    def _record(self, storage, dtype):
        """The number of the storage's record."""
        identity = storage._cdata
        index = self._index.get(identity)
        if index is None:
            return self._add(storage, identity, dtype, str(len(self.storages)), storage.nbytes())
        self._check_type(storage, storage.data_ptr(), dtype)
        return index

    def _add(self, storage, identity, dtype, key, nbytes):
        """`key`: the very object that all tensors in this storage name, since a pickle says what is the same."""
        pointer = storage.data_ptr()
        self._check_type(storage, pointer, dtype)
        index = self._index[identity] = len(self.storages)
        self._keys.append(key)
        self.storages.append(storage)
        self.pointers.append(pointer)
        self.sizes.append(nbytes)
        return index

    def _check_type(self, storage, pointer, dtype):
        """As torch.save does: what it writes names one data type for each address."""
        if pointer != 0 and self._dtypes.setdefault(pointer, dtype) is not dtype:
            raise refuse.Refused(
                storage, f"{dtype} and {self._dtypes[pointer]} tensors over the same memory are not supported"
            )


class _MarkingPickler(_Pickler):
    """The short way. NotPlain: it is not for this state."""

    def __init__(self, file, known, marks):
        super().__init__(file, known, marks)
        self._codes = {}

    def _plain_id(self, known, storage_class, location, numel):
        known.code = pickle.dumps(numel, 2)[2:-1]  # without the protocol's version and STOP
        self._name(known)
        return ("storage", storage_class, known.key, location, self._marks.mark(known.index))

    def _name(self, known):
        self._codes[known.index] = known.code

    def finish(self, data):
        return self._marks.resolve(data.getvalue(), self._codes)


class _AskingPickler(_Pickler):
    """The way of torch.save."""

    def persistent_id(self, obj):
        kind = type(obj)  # asked for every number and every name of the state, so the short ways come first
        if kind is _StorageId:
            return obj.value
        if kind in _STORAGES:
            return self._storage_id(obj)
        return None

    def _plain_id(self, known, storage_class, location, numel):
        return _StorageId(("storage", storage_class, known.key, location, numel))

    def _name(self, known):
        pass

    def finish(self, data):
        return data.getvalue()

    def _storage_id(self, obj):
        if not isinstance(obj, torch.storage.TypedStorage):
            index = self._record(obj, torch.uint8)
            return ("storage", normalize_storage_type(type(obj)), self._keys[index], location_tag(obj), obj.nbytes())
        return self._typed_id(obj)

    def _typed_id(self, typed):
        storage = typed._untyped_storage
        try:
            storage_class = getattr(torch, typed._pickle_storage_type())
        except KeyError:
            raise refuse.Refused(storage, f"torch {torch.__version__} cannot save {typed.dtype}") from None
        index = self._record(storage, typed.dtype)
        return ("storage", storage_class, self._keys[index], location_tag(storage), typed._size())


_EMPTY = (OrderedDict, ())
