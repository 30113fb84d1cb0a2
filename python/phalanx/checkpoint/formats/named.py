"""A state as a safetensors file: every tensor under its path, contiguous; all else in the header. What stands where:
docs/formats/checkpoint-safetensors.md. The safetensors package is not needed."""

import array
import base64
import binascii
import copy
import ctypes
import io
import json
import os

import torch

from phalanx.checkpoint import native
from phalanx.checkpoint.formats import framed, plan, zipped
from phalanx.checkpoint.state import refuse

HEADER_BYTES_MAX = 100_000_000
_LENGTH_BYTES = 8
_ROOM = 64 << 10
_SLACK = 1 << 20  # by which slots may be larger than they must: readers go through all of a header's spaces
_ALIGNMENT = 64
_METADATA = "__metadata__"
_BEGIN = b'{"__metadata__":{"phalanx.crc32":"'
_NO_CRC = b"00000000"
_MARK = -0x7068  # begins a torch.Size that stands for a tensor: no size is below 0
_DTYPES = {
    name: getattr(torch, dtype)
    for name, dtype in {
        "F64": "float64",
        "F32": "float32",
        "F16": "float16",
        "BF16": "bfloat16",
        "I64": "int64",
        "I32": "int32",
        "I16": "int16",
        "I8": "int8",
        "U64": "uint64",
        "U32": "uint32",
        "U16": "uint16",
        "U8": "uint8",
        "BOOL": "bool",
        "C64": "complex64",
        "F8_E4M3": "float8_e4m3fn",
        "F8_E5M2": "float8_e5m2",
        "F8_E8M0": "float8_e8m0fnu",
        "F8_E4M3FNUZ": "float8_e4m3fnuz",
        "F8_E5M2FNUZ": "float8_e5m2fnuz",
    }.items()
    if hasattr(torch, dtype)
}
NAMES = {dtype: name for name, dtype in _DTYPES.items()}


# --- writing


class Describer:
    """As plan.Describer, for this layout."""

    def __init__(self):
        self._values = plan.Describer()
        self._form = None

    def describe(self, state):
        """The image of `state`. CannotSave names what it cannot hold."""
        with plan.without_collector():
            return self._describe(state)

    def _describe(self, state):
        found = _Tensors()
        rest = found.take(state, "state", "")
        form = self._form
        if form is None or form.key != found.key:
            form = self._form = _Form(found)
        whole = {"version": 1, "state": rest, "ties": found.ties()}
        values = self._values.describe(whole)
        if values.storages:
            raise refuse.CannotSave(
                f"{self._path_of_nameless(rest)}: a tensor inside an object has no name in a safetensors file: hold "
                'tensors in dicts, lists and tuples, or use layout="torch"'
            )
        packed = zipped.zipped(values.pickle, values.sizes).frame
        return Image(form, found.memory, base64.b64encode(packed), values.classes)

    def _path_of_nameless(self, rest):
        """Where the object stands that a tensor, or a storage, was found in."""

        def holds_memory(value):
            if isinstance(value, (dict, list, tuple, torch.Tensor)) or type(value) in _PLAIN:
                return False
            return bool(plan.Describer().describe(value).storages)

        return refuse.path_of(rest, holds_memory) or "state"


_PLAIN = frozenset((int, float, str, bool, bytes, type(None)))


class _Tensors:
    """The tensors of a state, taken out of it one by one."""

    def __init__(self):
        self.key = []  # (name, data type, shape) each: all that a layout depends on
        self.memory = []  # framed.Part each
        self._given = {}  # id of a tensor or a container -> what stands for it
        self._names = {}  # name -> path
        self._of_storage = {}  # storage -> [(index, tensor)]

    def take(self, value, path, name):
        """`value` without its tensors. What the user gave stays as it is."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path, "state" if name == "" else name)
        is_dict = isinstance(value, dict)
        if not is_dict and kind is not list and not _is_tuple(value):
            return value
        if kind is torch.Size and value[:1] == (_MARK,):
            raise refuse.CannotSave(f"{path}: {value} stands for a tensor in a safetensors file")
        rest = self._given.get(id(value))
        if rest is None:
            rest = self._dict(value, path, name) if is_dict else self._sequence(value, path, name)
            self._given[id(value)] = rest
        return rest

    def _dict(self, value, path, name):
        rest = copy.copy(value)
        for key, inner in value.items():
            if type(inner) not in _PLAIN:
                rest[key] = self.take(inner, f"{path}[{key!r}]", _joined(name, key))
        return rest

    def _sequence(self, value, path, name):
        rest = [self.take(inner, f"{path}[{at}]", _joined(name, at)) for at, inner in enumerate(value)]
        if type(value) is list:
            return rest
        return _tuple_like(value, rest)

    def _tensor(self, tensor, path, name):
        self._check(tensor, path, name)
        index = len(self.key)
        self.key.append((name, tensor.dtype, tuple(tensor.shape)))
        part = framed.Part.of(tensor)
        self.memory.append(part)
        known = self._given.get(id(tensor))
        if known is not None:
            return known  # the same tensor once more: under this name too, and one again when it is loaded
        if tensor.numel() and not tensor.is_neg() and not tensor.is_conj():
            identity = part._cdata if part.copied is None else refuse.storage_identity(tensor)
            self._of_storage.setdefault(identity, []).append((index, tensor))
        flags = tensor.requires_grad + 2 * isinstance(tensor, torch.nn.Parameter)
        stand_in = self._given[id(tensor)] = torch.Size((_MARK, index, flags))
        return stand_in

    def _check(self, tensor, path, name):
        try:
            refuse.unless_savable(tensor)
        except refuse.Refused as refused:
            raise refuse.CannotSave(f"{path}: {refused}") from None
        kind = type(tensor)
        why = None
        if kind is not torch.Tensor and kind is not torch.nn.Parameter:
            why = f"a {kind.__name__} has no form in a safetensors file: save its parts"
        elif tensor.__dict__:
            why = (
                f"its attributes ({', '.join(tensor.__dict__)}) have no place in a safetensors file: save its detach()"
            )
        elif tensor.dtype not in NAMES:
            why = f"safetensors files have no {tensor.dtype}"
        elif name is None:
            why = "tensors in a safetensors file are named by keys that are text or whole numbers"
        elif name in self._names or name == _METADATA:
            taken = self._names.get(name, "the header")
            why = f"in a safetensors file it would be called {name!r}, as {taken} is"
        else:
            try:
                name.encode()
            except UnicodeEncodeError:
                why = f"{name!r} is no Unicode, and no name in a safetensors file"
        if why is not None:
            raise refuse.CannotSave(f'{path}: {why}, or use layout="torch"')
        self._names[name] = path

    def ties(self):
        """{index: (of whose memory, offset, stride)}, in elements."""
        found = {}
        for sharing in self._of_storage.values():
            if len(sharing) > 1:
                found.update(_ties_of(sharing))
        return found


def _is_tuple(value):
    """One that can be made again of its items."""
    return isinstance(value, tuple) and (type(value) in (tuple, torch.Size) or hasattr(value, "_fields"))


def _tuple_like(value, items):
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def _joined(name, key):
    """None: no name can be made of it."""
    if name is None or not isinstance(key, (str, int)):
        return None
    return f"{name}.{key}" if name else str(key)


def _ties_of(sharing):
    """Of tensors in one storage."""
    whole = [(tensor.numel(), -index, tensor) for index, tensor in sharing if tensor.is_contiguous()]
    if not whole:
        return
    elements, negative, base = max(whole, key=lambda entry: entry[:2])
    begin = base.storage_offset()
    for index, tensor in sharing:
        offset = tensor.storage_offset() - begin
        extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
        if index != -negative and tensor.dtype is base.dtype and offset >= 0 and offset + extent <= elements:
            yield index, (-negative, offset, tuple(tensor.stride()))


class _Form:
    """What is the same for all states of a structure: the order of the data, and what the header says of it."""

    def __init__(self, found):
        self.key = found.key
        sizes = [part.nbytes() for part in found.memory]
        # By what each tensor's size is a multiple of: from an aligned end backwards all begin where they should.
        self.order = sorted(range(len(sizes)), key=lambda index: min(sizes[index] & -sizes[index] or 1, _ALIGNMENT))
        self.offsets, at = [0] * len(sizes), 0
        for index in self.order:
            self.offsets[index] = at
            at += sizes[index]
        self.data_bytes = at
        described = [
            f"{json.dumps(name)}:"
            + json.dumps(
                {"dtype": NAMES[dtype], "shape": shape, "data_offsets": [begin, begin + size]}, separators=(",", ":")
            )
            for (name, dtype, shape), begin, size in zip(self.key, self.offsets, sizes)
        ]
        self.tensors = "".join("," + text for text in described).encode() + b"}"
        self.in_order = array.array("Q", (self.offsets[index] for index in self.order))

    def patches(self):
        """Where each CRC stands: those of the tensors, then that of the head, which they belong to."""
        first = _LENGTH_BYTES + len(_BEGIN)
        places = array.array("Q")
        for record, index in enumerate(self.order):
            places.extend((first + 8 * (1 + index), record))
        places.extend((first, native.HEAD))
        return places


class Image:
    """As plan.Image. Its data ends with the file: where it begins depends on how long that is."""

    pickle = b""
    tensors = None  # there may be several in a storage

    def __init__(self, form, memory, rest, classes):
        self._form, self._rest, self.classes = form, rest, classes
        self.storages = [memory[index] for index in form.order]
        self.copies = [(number, part) for number, part in enumerate(self.storages) if part.copied is not None]
        self.sizes = array.array("Q", (part.nbytes() for part in self.storages))
        self.pointers = array.array("Q", (part.data_ptr() for part in self.storages))
        self._kept = None  # what the native side reads
        header = self._header_bytes(b"")
        room = _up(max(_ROOM, header // 4), 4096)
        if header + room + _SLACK + 4096 > HEADER_BYTES_MAX:
            raise refuse.CannotSave(
                f"the state: names of tensors and what is no tensor take {header} bytes, and the header of a "
                f'safetensors file may have {HEADER_BYTES_MAX}: use layout="torch"'
            )
        self._wanted = _up(_LENGTH_BYTES + header + room + form.data_bytes, 4096)

    def key(self):
        return self._form.key

    def file_bytes(self):
        return self._wanted

    def fits(self, slot_bytes):
        return self._wanted <= slot_bytes <= self._wanted + _SLACK

    def offsets(self, file_bytes):
        begin = file_bytes - self._form.data_bytes
        return array.array("Q", (begin + offset for offset in self._form.in_order))

    def identities(self):
        return [part._cdata for part in self.storages]

    def native_frame(self, file_bytes, info):
        length = file_bytes - self._form.data_bytes - _LENGTH_BYTES
        header = self._header(info)
        if len(header) > length:
            raise native.Failure(native.NO_ROOM, f"a header of {len(header)} bytes where {length} are planned")
        text = bytearray(length.to_bytes(_LENGTH_BYTES, "little") + header.ljust(length, b" "))
        self._kept = text, self.offsets(file_bytes), self._form.patches()
        frame = native.Frame(byte_count=len(text), patch_count=len(self.storages) + 1, digits=1)
        frame.bytes = ctypes.addressof(ctypes.c_uint8.from_buffer(text))
        frame.record_at, frame.patches = native.address(self._kept[1]), native.address(self._kept[2])
        return frame

    def _header(self, info):
        parts = (
            _BEGIN,
            _NO_CRC * (1 + len(self.storages)),
            b'","format":"pt","phalanx.info":',
            json.dumps(info.decode()).encode(),
            b',"phalanx.state":"',
            self._rest,
            b'"}',
            self._form.tensors,
        )
        return b"".join(parts)

    def _header_bytes(self, info):
        return len(_BEGIN) + 8 * (1 + len(self.storages)) + len(info) + len(self._rest) + len(self._form.tensors)


def _up(value, unit):
    return -(-value // unit) * unit


# --- reading


def is_one(path):
    """Whether it is a file of this layout, and not a zip."""
    with open(path, "rb") as file:
        begin = file.read(_LENGTH_BYTES + 1)
    return begin[:2] != b"PK" and begin[_LENGTH_BYTES:] == b"{"


def load(path, mmap, weights_only, device="cpu"):
    """The state in a file of this layout, on that device. `mmap`: the file stays as it is while this process lives, and
    is mapped; else it is read. ValueError says what is wrong with it."""
    try:
        return _load(path, mmap, weights_only, device)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"its header is not what it should be: {error!r}") from error


def _load(path, mmap, weights_only, device):
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(_read(file, _LENGTH_BYTES), "little")
        if length > min(HEADER_BYTES_MAX, size - _LENGTH_BYTES):
            raise ValueError(f"a header of {length} bytes in a file of {size}")
        header = json.loads(_read(file, length))
        metadata = header.pop(_METADATA, {})
        if "phalanx.state" not in metadata:
            raise ValueError("no phalanx.state in its header: it is not one of Phalanx")
        data = _Mapped(path, size) if mmap else _Read(file)
        tensors = _Loaded(header, data, _LENGTH_BYTES + length, size, device)
    try:
        packed = base64.b64decode(metadata["phalanx.state"], validate=True)
    except binascii.Error as error:
        raise ValueError(f"phalanx.state in its header is no base64: {error}") from None
    whole = torch.load(io.BytesIO(packed), map_location="cpu", weights_only=weights_only)
    if whole["version"] != 1:
        raise ValueError(f"phalanx.state in its header is of version {whole['version']}, and 1 is known")
    return tensors.put_back(whole["state"], whole["ties"])


def _read(file, count):
    data = bytearray(count)
    _read_into(file, memoryview(data))
    return bytes(data)


def _read_into(file, window):
    while len(window):
        count = file.readinto(window)
        if not count:
            raise ValueError("it ends too early")
        window = window[count:]


class _Mapped:
    """A page becomes this process's own once it is written."""

    def __init__(self, path, size):
        self._storage = torch.UntypedStorage.from_file(os.fspath(path), False, size)

    def piece(self, begin, end):
        return self._storage[begin:end]


class _Read:
    def __init__(self, file):
        self._file = file

    def piece(self, begin, end):
        storage = torch.UntypedStorage(end - begin)
        if begin < end:
            self._file.seek(begin)
            window = (ctypes.c_uint8 * (end - begin)).from_address(storage.data_ptr())
            _read_into(self._file, memoryview(window).cast("B"))
        return storage


class _Loaded:
    """The tensors of a file, by the order in which its header names them."""

    def __init__(self, header, data, begin, size, device):
        self._flat = []
        for name, said in header.items():
            dtype, first, last = _DTYPES.get(said["dtype"]), *said["data_offsets"]
            if dtype is None:
                raise ValueError(f"{name} is of the dtype {said['dtype']}, which this torch does not know")
            if not 0 <= first <= last <= size - begin:
                raise ValueError(f"{name} lies from {first} to {last} in {size - begin} bytes of data")
            flat = torch.empty(0, dtype=dtype)
            shape = torch.Size(said["shape"])
            if shape.numel() * flat.element_size() != last - first:
                raise ValueError(f"{name} is of the shape {list(shape)} and takes {last - first} bytes")
            if last > first:
                flat.set_(data.piece(begin + first, begin + last), 0, (shape.numel(),), (1,))
            self._flat.append((flat.to(device), shape))
        self._ties = {}
        self._given = {}  # id of what was loaded -> what it has become
        self._made = {}  # tensors

    def put_back(self, state, ties):
        self._ties = ties
        return self._put(state)

    def _put(self, value):
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is torch.Size:
            return self._tensor(*value[1:]) if value[:1] == (_MARK,) else value
        if isinstance(value, dict):
            return self._once(value, self._dict)
        if kind is list:
            return self._once(value, self._list)
        if _is_tuple(value):
            return self._once(value, self._tuple)
        return value

    def _once(self, value, make):
        """What was one thing is one thing again."""
        entry = self._given.get(id(value))
        if entry is None:
            entry = self._given[id(value)] = make(value), value  # which stays, so that its id stays its own
        return entry[0]

    def _dict(self, value):
        for key, inner in value.items():
            value[key] = self._put(inner)
        return value

    def _list(self, value):
        value[:] = [self._put(inner) for inner in value]
        return value

    def _tuple(self, value):
        inner = [self._put(item) for item in value]
        return _tuple_like(value, inner)

    def _tensor(self, index, flags):
        if index not in self._made:
            flat, shape = self._flat[index]
            if index in self._ties:
                owner, offset, stride = self._ties[index]
                tensor = self._flat[owner][0].as_strided(shape, stride, offset)
            else:
                tensor = flat.view(shape)
            grad = bool(flags & 1)
            self._made[index] = torch.nn.Parameter(tensor, grad) if flags & 2 else tensor.requires_grad_(grad)
        return self._made[index]
