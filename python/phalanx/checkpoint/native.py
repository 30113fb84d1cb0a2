"""The native side, libphalanx_checkpoint.so, by ctypes: src/checkpoint/rank/capi.h is the contract."""

import array
import ctypes
import mmap
import os
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p

from phalanx._library import load

ABI_VERSION = 10
NO_SLOT, NO_ROOM, STALE, BUSY, BROKEN = -1, -2, -3, -4, -5
LATER, NOW, FILLED = 0, 1, 2
COPYING, SEALED, CHANGED, LATE, NOTHING = 0, 1, 2, 3, 4
CONTROL_BYTES = 4096
_SLOTS_AT, _SLOT_FIELDS_BYTES, _FILE_NUMBER_AT = 256, 256, 128  # docs/formats/checkpoint-image.md
HEAD = (1 << 64) - 1  # a patch's record: PHX_CKPT_HEAD
SPAN = 1 << 63  # the same, with the number of a span: PHX_CKPT_SPAN
_TEXT_BYTES = 1024


class Failure(Exception):
    """What a native call has said: `code` and a sentence."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


class Save(ctypes.Structure):
    """phx_ckpt_save."""

    _fields_ = (
        ("step", c_int64),
        ("rank", c_uint32),
        ("world_size", c_uint32),
        ("branch", c_uint32),
        ("form", c_uint32),
        ("n", c_uint64),
        ("bytes", c_void_p),
        ("source", c_void_p),
        ("when", c_void_p),
        ("pickle", c_char_p),
        ("pickle_bytes", c_uint64),
        ("info", c_char_p),
        ("info_bytes", c_uint64),
        ("file_bytes", c_uint64),
        ("threads", c_int),
        ("verify", c_int),
        ("consent", c_int),
        ("notify_fd", c_int),
        ("notify", c_char_p),
        ("notify_bytes", c_uint64),
    )


class Frame(ctypes.Structure):
    """phx_ckpt_frame."""

    _fields_ = (
        ("bytes", c_void_p),
        ("byte_count", c_uint64),
        ("record_at", c_void_p),
        ("patches", c_void_p),
        ("patch_count", c_uint64),
        ("spans", c_void_p),
        ("span_count", c_uint64),
        ("digits", c_uint32),
    )


class Outcome(ctypes.Structure):
    """phx_ckpt_outcome."""

    _fields_ = (("state", c_int), ("copy_ns", c_int64), ("differing_record", c_uint64), ("bytes", c_uint64))


class Zip(ctypes.Structure):
    """phx_ckpt_zip."""

    _fields_ = (
        ("bytes", c_void_p),
        ("n", c_uint64),
        ("pickle", c_char_p),
        ("pickle_bytes", c_uint64),
        ("length", c_uint64),
    )


_FUNCTIONS = {
    "phx_ckpt_abi_version": (c_uint32, ()),
    "phx_ckpt_open": (c_void_p, (c_char_p, c_uint64, c_char_p, c_size_t)),
    "phx_ckpt_close": (None, (c_void_p,)),
    "phx_ckpt_map": (c_int, (c_void_p, c_char_p, c_size_t)),
    "phx_ckpt_layout": (
        c_int,
        (c_void_p, c_uint64, c_uint64, POINTER(c_uint64), c_void_p, POINTER(c_uint64)),
    ),
    "phx_ckpt_zip_lengths": (c_int, (POINTER(Zip), POINTER(c_uint64), POINTER(c_uint64), c_char_p, c_size_t)),
    "phx_ckpt_zip_frame": (c_uint64, (POINTER(Zip), c_void_p, c_void_p, c_void_p)),
    "phx_ckpt_begin": (c_int, (c_void_p, POINTER(Save), c_char_p, c_size_t)),
    "phx_ckpt_begin_framed": (c_int, (c_void_p, POINTER(Save), POINTER(Frame), c_char_p, c_size_t)),
    "phx_ckpt_slot_data": (c_void_p, (c_void_p, c_int)),
    "phx_ckpt_filled": (None, (c_void_p,)),
    "phx_ckpt_give_up": (None, (c_void_p, c_uint64)),
    "phx_ckpt_wait_copied": (c_int, (c_void_p, POINTER(Outcome))),
    "phx_ckpt_wait_copied_until": (c_int, (c_void_p, c_int64, POINTER(Outcome))),
    "phx_ckpt_poll": (c_int, (c_void_p, POINTER(Outcome))),
    "phx_ckpt_notify_error": (c_int, (c_void_p,)),
    "phx_ckpt_parts": (c_int, (c_void_p, c_uint64, c_void_p, c_void_p, c_uint64, c_char_p, c_size_t)),
    "phx_ckpt_check_file": (c_int, (c_char_p, c_char_p, c_size_t)),
    "phx_ckpt_scatter": (None, (c_void_p, c_void_p, c_void_p, c_uint64)),
    "phx_ckpt_queue_copies": (c_int, (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_uint64)),
    "phx_crc32": (c_uint32, (c_uint32, c_void_p, c_uint64)),
}
_library = None


def library():
    """The loaded library. Raises LibraryMissing."""
    global _library
    if _library is None:
        here = os.path.dirname(os.path.abspath(__file__))
        _library = load("phalanx.checkpoint", here, "libphalanx_checkpoint.so", ABI_VERSION, _FUNCTIONS)
    return _library


class Slots:
    """A rank's slots behind one control page. One thread at a time. A signal handler may close them within any other
    call: nothing is under way any more when that goes on."""

    def __init__(self, control_path, epoch):
        self._library = library()
        with open(control_path, "rb") as file:
            self._page = mmap.mmap(file.fileno(), CONTROL_BYTES, mmap.MAP_SHARED, mmap.PROT_READ)
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        self._handle = self._library.phx_ckpt_open(os.fsencode(control_path), epoch, text, _TEXT_BYTES)
        if not self._handle:
            raise Failure(BROKEN, _sentence(text))

    def close(self):
        """Waits for a copy under way."""
        handle, self._handle = self._handle, None
        if handle:
            self._library.phx_ckpt_close(handle)

    def changes(self):
        """A number that the agent raises whenever it has replaced a slot's file: older mappings are none of it."""
        return int.from_bytes(self._page[32:40], "little")

    def file_number(self, slot):
        """Which of the slot's files, one after the other, it has now; 0: none."""
        at = _SLOTS_AT + slot * _SLOT_FIELDS_BYTES + _FILE_NUMBER_AT
        return int.from_bytes(self._page[at : at + 8], "little")

    def map(self):
        """Maps the slots ahead of the first save; how many there are."""
        return self._checked(self._library.phx_ckpt_map)

    def begin(self, save, frame=None):
        """The slot that the save goes to. Failure's code says what was in the way. `frame`: of an image that is no zip
        file of torch's."""
        if frame is not None:
            return self._checked(self._library.phx_ckpt_begin_framed, ctypes.byref(save), ctypes.byref(frame))
        return self._checked(self._library.phx_ckpt_begin, ctypes.byref(save))

    def slot_data(self, slot):
        return self._handle and self._library.phx_ckpt_slot_data(self._handle, slot)

    def filled(self):
        if self._handle:
            self._library.phx_ckpt_filled(self._handle)

    def give_up(self, record):
        """That record was written while it was copied: the image is not to be sealed."""
        if self._handle:
            self._library.phx_ckpt_give_up(self._handle, record)

    def wait_copied(self, until_ns=None):
        """Until time.monotonic_ns() is that at most: the outcome's state is COPYING then."""
        if until_ns is not None:
            return self._outcome(self._library.phx_ckpt_wait_copied_until, until_ns)
        return self._outcome(self._library.phx_ckpt_wait_copied)

    def poll(self):
        return self._outcome(self._library.phx_ckpt_poll)

    def notify_error(self):
        return self._library.phx_ckpt_notify_error(self._handle) if self._handle else 0

    def _checked(self, function, *arguments):
        if not self._handle:
            raise Failure(BROKEN, "the slots are closed")
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        code = function(self._handle, *arguments, text, _TEXT_BYTES)
        if code < 0:
            raise Failure(code, _sentence(text))
        return code

    def _outcome(self, function, *arguments):
        outcome = Outcome(state=NOTHING)
        if not self._handle:
            return outcome
        code = function(self._handle, *arguments, ctypes.byref(outcome))
        if code < 0:
            raise Failure(code, "the copy's outcome cannot be asked for")
        return outcome


def layout(sizes, pickle_bytes):
    """(file bytes, offsets, hash) for records of `sizes`, an array of u64."""
    count = len(sizes)
    file_bytes, layout_hash = c_uint64(), c_uint64()
    offsets = (c_uint64 * count)()
    code = library().phx_ckpt_layout(
        address(sizes), count, pickle_bytes, ctypes.byref(file_bytes), offsets, ctypes.byref(layout_hash)
    )
    if code < 0:
        raise Failure(code, f"no image can hold {count} records and a pickle of {pickle_bytes} bytes")
    return file_bytes.value, offsets, layout_hash.value


def zip_lengths(pickled, sizes, length=0):
    """(bytes of its frame, bytes of the file) of a zip file of torch's with that pickle and records of `sizes`, an
    array of u64; `length`: of the file, at least. Failure, where there can be none."""
    frame_bytes, file_bytes = c_uint64(), c_uint64()
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    file = Zip(address(sizes), len(sizes), pickled, len(pickled), length)
    code = library().phx_ckpt_zip_lengths(file, ctypes.byref(frame_bytes), ctypes.byref(file_bytes), text, _TEXT_BYTES)
    if code < 0:
        raise Failure(code, _sentence(text))
    return frame_bytes.value, file_bytes.value


def zip_frame(pickled, sizes, length=0):
    """(frame, places of the records' data, patches, bytes of the file) of the same. `patches`: (where a CRC of a
    record's data belongs, the record) after each other; both are arrays of u64."""
    frame_bytes, file_bytes = zip_lengths(pickled, sizes, length)
    frame, count = bytearray(frame_bytes), len(sizes)
    places, patches = array.array("Q", bytes(8 * count)), array.array("Q", bytes(32 * count))
    file = Zip(address(sizes), count, pickled, len(pickled), length)
    patched = library().phx_ckpt_zip_frame(file, address(frame), address(places), address(patches))
    del patches[2 * patched :]
    return frame, places, patches, file_bytes


def parts(memory, room=4096):
    """Where the image in `memory`, a writable buffer, has its pickle and then its storages: (places, lengths), arrays
    of u64. Failure, where it is none; no CRC is compared."""
    image, text = (c_uint8 * len(memory)).from_buffer(memory), ctypes.create_string_buffer(_TEXT_BYTES)
    at, lengths = (c_uint64 * room)(), (c_uint64 * room)()
    count = library().phx_ckpt_parts(image, len(memory), at, lengths, room, text, _TEXT_BYTES)
    if count < 0:
        raise Failure(count, _sentence(text))
    return (at[:count], lengths[:count]) if count <= room else parts(memory, count)


def check_file(path):
    """What is wrong with the image at `path`, None where all its CRCs are right."""
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    code = library().phx_ckpt_check_file(os.fsencode(path), text, _TEXT_BYTES)
    return _sentence(text) if code < 0 else None


def scatter(pointer, addresses, sizes):
    """Copies the memory at `pointer`, piece by piece, to `addresses`; both are arrays of u64."""
    library().phx_ckpt_scatter(pointer, address(addresses), address(sizes), len(sizes))


def queue_copies(copy, stream, to, sources, sizes):
    """Queues copies by `copy`, the address of cudaMemcpyAsync or hipMemcpyAsync, on `stream`, its handle. `to`,
    `sources` (addresses) and `sizes` are arrays of u64. Its first error, or 0."""
    return library().phx_ckpt_queue_copies(copy, stream, address(to), address(sources), address(sizes), len(sizes))


def crc32(value, pointer, count):
    return library().phx_crc32(value, pointer, count)


def address(words):
    """Where the elements of an array.array or bytearray lie; the caller keeps it."""
    if len(words) == 0:
        return None
    item = c_uint8 if isinstance(words, bytearray) else c_uint64
    return ctypes.addressof(item.from_buffer(words))


def _sentence(text):
    return text.value.decode("utf-8", "replace") or "no reason was given"
