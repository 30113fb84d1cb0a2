"""A rank's slots as an agent makes them, and the native library by ctypes, both from docs/formats/checkpoint-image.md
and src/checkpoint/rank/capi.h alone: what a test reads here was not written by the code that it tests."""

import ctypes
import os
from pathlib import Path

from control_page import DROPPED, FILE_NUMBER, ControlPage

LIBRARY = Path(__file__).resolve().parent.parent / "python" / "phalanx" / "checkpoint" / "libphalanx_checkpoint.so"
LATER, NOW, FILLED = range(3)
COPYING, DONE, CHANGED, LATE, NOTHING = range(5)


class Save(ctypes.Structure):
    _fields_ = [
        ("step", ctypes.c_int64),
        ("rank", ctypes.c_uint32),
        ("world_size", ctypes.c_uint32),
        ("branch", ctypes.c_uint32),
        ("n", ctypes.c_uint64),
        ("bytes", ctypes.c_void_p),
        ("source", ctypes.c_void_p),
        ("when", ctypes.c_void_p),
        ("pickle", ctypes.c_char_p),
        ("pickle_bytes", ctypes.c_uint64),
        ("info", ctypes.c_char_p),
        ("info_bytes", ctypes.c_uint64),
        ("file_bytes", ctypes.c_uint64),
        ("threads", ctypes.c_int),
        ("verify", ctypes.c_int),
        ("consent", ctypes.c_int),
        ("notify_fd", ctypes.c_int),
        ("notify", ctypes.c_char_p),
        ("notify_bytes", ctypes.c_uint64),
    ]


class Outcome(ctypes.Structure):
    _fields_ = [
        ("state", ctypes.c_int),
        ("copy_ns", ctypes.c_int64),
        ("differing_record", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
    ]


def load_library():
    library = ctypes.CDLL(str(LIBRARY))
    handle, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
    u64, pointer = ctypes.c_uint64, ctypes.c_void_p
    library.phx_ckpt_open.restype = handle
    library.phx_ckpt_open.argtypes = [text, u64, text, size]
    library.phx_ckpt_close.restype = None
    library.phx_ckpt_close.argtypes = [handle]
    library.phx_ckpt_map.argtypes = [handle, text, size]
    library.phx_ckpt_layout.argtypes = [pointer, u64, u64, pointer, pointer, pointer]
    library.phx_ckpt_begin.argtypes = [handle, pointer, text, size]
    library.phx_ckpt_slot_data.restype = pointer
    library.phx_ckpt_slot_data.argtypes = [handle, ctypes.c_int]
    library.phx_ckpt_filled.restype = None
    library.phx_ckpt_filled.argtypes = [handle]
    library.phx_ckpt_wait_copied.argtypes = [handle, pointer]
    library.phx_ckpt_check_file.argtypes = [text, text, size]
    library.phx_crc32.restype = ctypes.c_uint32
    library.phx_crc32.argtypes = [ctypes.c_uint32, pointer, u64]
    return library


class Layout:
    """The native plan for records of these sizes."""

    def __init__(self, library, sizes, pickle_bytes):
        n = len(sizes)
        self.sizes = (ctypes.c_uint64 * n)(*sizes)
        offsets, file_bytes, layout_hash = (ctypes.c_uint64 * n)(), ctypes.c_uint64(), ctypes.c_uint64()
        code = library.phx_ckpt_layout(
            self.sizes, n, pickle_bytes, ctypes.byref(file_bytes), offsets, ctypes.byref(layout_hash)
        )
        assert code == 0
        self.file_bytes, self.hash, self.offsets = file_bytes.value, layout_hash.value, list(offsets)


class Memory:
    """The folder of one local rank: `control-0` and its slots."""

    def __init__(self, folder, slots, slot_bytes, live_epoch=1, sparse=False):
        self.folder, self.slots, self.slot_bytes = Path(folder), slots, slot_bytes
        self.control = self.folder / "control-0"
        self.page = ControlPage(self.control, live_epoch)
        for slot in range(slots):
            self.page.set(slot, FILE_NUMBER, slot + 1)
            with open(self.path(slot), "wb") as file:
                if sparse:
                    file.truncate(slot_bytes)
                else:
                    os.posix_fallocate(file.fileno(), 0, slot_bytes)
        self.page.change(slots, slot_bytes)

    def path(self, slot):
        return self.folder / f"slot-0-{slot}.{slot + 1}"

    def drop(self, slot, generation):
        self.page.set(slot, DROPPED, generation)

    def read(self, slot):
        """The slot as a dict; `fields` is None where they are not to be believed."""
        word, step, epoch, size, layout, rank, world, crc, records, *_ = self.page.slot(slot)[0]
        fields = {"step": step, "epoch": epoch, "bytes": size, "layout": layout, "crc": crc, "n": records}
        fields.update(rank=rank, world=world)
        believed = self.page.is_believed(slot)
        return {"state": word & 0xFF, "generation": word >> 8, "fields": fields if believed else None}


class Rank:
    """One handle of the library."""

    def __init__(self, library, memory, epoch=1):
        self.library, self.memory, self.error = library, memory, ctypes.create_string_buffer(500)
        self.handle = library.phx_ckpt_open(str(memory.control).encode(), epoch, self.error, len(self.error))
        assert self.handle, self.error.value

    def save(self, layout, sources, pickle, step=1, when=None, threads=1, info=b"{}"):
        """Begins a save and waits for it; the slot. `sources`: addresses."""
        n = len(sources)
        pointers = (ctypes.c_void_p * n)(*sources)
        times = (ctypes.c_uint8 * n)(*when) if when else None
        save = Save(step, 0, 1, 0, n, ctypes.addressof(layout.sizes), ctypes.addressof(pointers))
        save.when = ctypes.addressof(times) if times else None
        save.pickle, save.pickle_bytes, save.info, save.info_bytes = pickle, len(pickle), info, len(info)
        save.file_bytes, save.threads, save.notify_fd = layout.file_bytes, threads, -1
        slot = self.library.phx_ckpt_begin(self.handle, ctypes.byref(save), self.error, len(self.error))
        assert slot >= 0, self.error.value
        if when and FILLED in when:
            self.library.phx_ckpt_filled(self.handle)
        outcome = Outcome()
        assert self.library.phx_ckpt_wait_copied(self.handle, ctypes.byref(outcome)) == 0
        assert outcome.state == DONE
        return slot

    def close(self):
        self.library.phx_ckpt_close(self.handle)


def check_file(library, path):
    """Empty, or what is wrong with the image."""
    error = ctypes.create_string_buffer(500)
    code = library.phx_ckpt_check_file(str(path).encode(), error, len(error))
    assert (code == 0) == (error.value == b"")
    return error.value.decode()
