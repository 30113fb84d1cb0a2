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
import types
from collections import OrderedDict

import torch
from torch.serialization import location_tag, normalize_storage_type

from phalanx.checkpoint import native
from phalanx.checkpoint.state import refuse

_Tensor = torch.Tensor
_rebuild_tensor = torch._utils._rebuild_tensor_v2

# Data types that torch.save names by a storage class, with bytes of an element. The others stand in the pickle
# themselves, and take torch's own way.
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
_PLAIN = {
    dtype: (getattr(torch, name), torch.empty(0, dtype=dtype).element_size())
    for dtype, name in STORAGE_NAMES.items()
    if hasattr(torch, name)
}
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType)
_TAIL_BYTES = 12  # of a mark's 16
_BINPUT = pickle.BINPUT[0]
_LONGEST_END = pickle.TUPLE + pickle.LONG_BINPUT + bytes(4)  # of a storage's tuple
_STORAGES = frozenset((*torch._storage_classes, torch.storage.TypedStorage))


class Image:
    """A state, pickled, with its storages in the order of their records. Holding it keeps their memory alive."""

    __slots__ = ("classes", "pickle", "pointers", "sizes", "storages")
    copies = ()  # torch.save writes a tensor's storage as it is

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
        self._before = _Written()  # the last state, of one way
        self._marks = _Marks()
        self._asks = False  # a state was seen that only the second way can write

    def describe(self, state):
        """The image of `state`. CannotSave names the tensor that no image can hold."""
        with without_collector():
            try:
                if not self._asks:
                    with contextlib.suppress(_NotPlain):
                        return self._describe(state, _MarkingPickler)
                    self._asks, self._before = True, _Written()
                return self._describe(state, _AskingPickler)
            except refuse.Refused as refused:
                raise refuse.named(state, refused) from None

    def _describe(self, state, kind):
        data = io.BytesIO()
        pickler = kind(data, self._before, self._marks)
        pickler.dump(state)
        pickled = pickler.finish(data)
        self._before = now = pickler.now
        return Image(pickled, pickler.storages, now.pointers, now.sizes, pickler.classes)


class _NotPlain(Exception):
    """A storage that is not that of a plain tensor."""


class _Marks:
    """Numbers that stand for others in a pickle: nothing else in it looks like them."""

    def __init__(self):
        self._tail = os.urandom(_TAIL_BYTES - 1) + b"\1"  # whose last byte makes it a number of 16 bytes above 0
        self._codes, self._begins, self._resolved = None, b"", b""  # of the last pickle, up to its last mark

    def mark(self, number):
        """The mark with that number."""
        return int.from_bytes(number.to_bytes(4, "little") + self._tail, "little")

    def resolve(self, pickled, codes):
        """With `codes[n]` where mark n stood, and BINPERSID behind its tuple. What begins as the last pickle did, with
        the same `codes`, is resolved already: mostly only numbers behind the tensors are others.
        """
        begins = len(self._begins)
        again = codes is self._codes and pickled.startswith(self._begins)
        if not again or pickled.find(self._tail, begins) >= 0:
            begins = pickled.rfind(self._tail) + _TAIL_BYTES + len(_LONGEST_END)
            self._codes, self._begins = codes, pickled[:begins]
            self._resolved = self._resolve(self._begins, codes)
        return self._resolved + pickled[begins:]

    def _resolve(self, pickled, codes):
        """What stands there is LONG1, 16, n, the tail, TUPLE, and BINPUT or LONG_BINPUT with the tuple's number."""
        before, *pieces = pickled.split(self._tail)
        resolved = []
        for piece in pieces:
            number, put = int.from_bytes(before[-4:], "little"), 3 if piece[1] == _BINPUT else 6
            resolved += (before[:-6], codes[number], piece[:put], b"Q")
            before = piece[put:]
        return b"".join((*resolved, before))


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

    __slots__ = ("code", "identity", "index", "key", "reduced", "was")


def _as_it_is(tensor, storage):
    """What is written of a tensor follows from this, where its __dict__ is empty."""
    return (
        storage._cdata,
        storage.data_ptr(),
        storage.nbytes(),
        tensor.dtype,
        tensor.shape,
        tensor.stride(),
        tensor.storage_offset(),
        tensor.requires_grad,
        tensor.is_neg(),
    )


class _Written:
    """What a state was written as: its tensors in order, and where their memory is."""

    __slots__ = ("codes", "pointers", "sizes", "tensors")

    def __init__(self):
        self.tensors = []  # _Known
        self.codes, self.pointers, self.sizes = [], [], []  # of records; a code is what stands for the mark


class _Pickler(pickle.Pickler):
    """What both ways have in common."""

    def __init__(self, file, before, marks):
        super().__init__(file, protocol=2)
        self._marks = marks
        self.storages, self.classes = [], []
        self.before, self.now = before, _Written()
        self._known = None  # storage -> _Known of the first tensor in it, before
        self._index = {}  # storage -> number of its record
        self._keys = []
        self._dtypes = {}  # address -> data type

    def reducer_override(self, obj):
        kind = type(obj)
        if kind is _Tensor:
            return self.reduce_tensor(obj)
        if kind is _NoHooks:
            return _EMPTY
        if isinstance(obj, _Tensor):
            refuse.unless_savable(obj)
        elif isinstance(obj, _NAMED):
            self.classes.append(obj)
        elif kind in _STORAGES:
            raise _NotPlain
        return NotImplemented

    def reduce_tensor(self, tensor):
        storage = _storage_of(tensor)
        if storage is None:
            refuse.unless_savable(tensor)
            return NotImplemented
        if self._known is None:
            self._known = {known.identity: known for known in reversed(self.before.tensors)}
        known = self._known.get(storage._cdata)
        if known is not None and self._is_again(known, tensor, storage):
            self.take(known, storage)
            return known.reduced
        refuse.unless_savable(tensor)
        plain = _PLAIN.get(tensor.dtype)
        if plain is None or tensor.__dict__ or tensor.is_neg():
            return NotImplemented
        return self._reduce_plain(tensor, storage, *plain)

    def _is_again(self, known, tensor, storage):
        """Whether the tensor is written as it was: as the first of its storage, with the same place for that."""
        is_first = known.identity not in self._index and known.index == len(self.storages)
        return is_first and not tensor.__dict__ and _as_it_is(tensor, storage) == known.was

    def take(self, known, storage):
        """Writes a tensor down."""
        if known.identity not in self._index:
            self._add(storage, known.was[3], known.key, known.code)
        self.now.tensors.append(known)

    def _reduce_plain(self, tensor, storage, storage_class, element_bytes):
        known = _Known()
        known.was, known.identity = _as_it_is(tensor, storage), storage._cdata
        numel = storage.nbytes() // element_bytes
        known.code = pickle.dumps(numel, 2)[2:-1]  # without the protocol's version and STOP
        known.index = index = self._record(storage, tensor.dtype, known.code)
        known.key = self._keys[index]
        storage_id = self.plain_id(known, storage_class, location_tag(storage), numel)
        size, stride = tuple(tensor.shape), tensor.stride()
        args = (storage_id, tensor.storage_offset(), size, stride, tensor.requires_grad, _NoHooks())
        known.reduced = (_rebuild_tensor, args)
        self.take(known, storage)
        return known.reduced

    def _record(self, storage, dtype, code=None):
        """The number of the storage's record."""
        index = self._index.get(storage._cdata)
        if index is None:
            return self._add(storage, dtype, str(len(self.storages)), code)
        self._check_type(storage, storage.data_ptr(), dtype)
        return index

    def _add(self, storage, dtype, key, code):
        """`key`: the very object that all tensors in this storage name, since a pickle says what is the same."""
        pointer = storage.data_ptr()
        self._check_type(storage, pointer, dtype)
        index = self._index[storage._cdata] = len(self.storages)
        self._keys.append(key)
        self.storages.append(storage)
        self.now.codes.append(code)
        self.now.pointers.append(pointer)
        self.now.sizes.append(storage.nbytes())
        return index

    def _check_type(self, storage, pointer, dtype):
        """As torch.save does: what it writes names one data type for each address."""
        if pointer != 0 and self._dtypes.setdefault(pointer, dtype) is not dtype:
            raise refuse.Refused(
                storage, f"{dtype} and {self._dtypes[pointer]} tensors over the same memory are not supported"
            )


class _MarkingPickler(_Pickler):
    """The short way. NotPlain: it is not for this state.

    Tensors that come as they came before are passed without anything being looked up. The first that does not ends
    this: what was passed is written down then.
    """

    def __init__(self, file, before, marks):
        super().__init__(file, before, marks)
        self._ahead = iter(before.tensors)
        self._passed = []  # storages of tensors; None once one has come that was not expected

    def reduce_tensor(self, tensor):
        if self._passed is not None:
            known, storage = next(self._ahead, None), _storage_of(tensor)
            expected = known is not None and storage is not None and not tensor.__dict__
            if expected and _as_it_is(tensor, storage) == known.was:
                self._passed.append(storage)
                return known.reduced
            self._write_down()
        return super().reduce_tensor(tensor)

    def _write_down(self):
        passed, self._passed = self._passed, None
        for known, storage in zip(self.before.tensors, passed):
            self.take(known, storage)

    def plain_id(self, known, storage_class, location, numel):
        return ("storage", storage_class, known.key, location, self._marks.mark(known.index))

    def finish(self, data):
        if self._passed is not None and len(self._passed) == len(self.before.tensors):
            self.now = self.before
            self.storages = list({known.index: s for known, s in zip(self.now.tensors, self._passed)}.values())
        elif self._passed is not None:
            self._write_down()
        return self._marks.resolve(data.getvalue(), self.now.codes)


class _AskingPickler(_Pickler):
    """The way of torch.save."""

    def persistent_id(self, obj):
        kind = type(obj)  # asked for every number and every name of the state, so the short ways come first
        if kind is _StorageId:
            return obj.value
        if kind in _STORAGES:
            return self._storage_id(obj)
        return None

    def plain_id(self, known, storage_class, location, numel):
        return _StorageId(("storage", storage_class, known.key, location, numel))

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


def _storage_of(tensor):
    """None where it has none that can be saved as such: it is a sparse or an opaque one."""
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return None


_EMPTY = (OrderedDict, ())
