"""The native side, libphalanx_data.so, by ctypes: src/data/capi.h is the contract."""

import ctypes
import os
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p

from phalanx._library import load

ABI_VERSION = 1
LAYOUTS = {"mmap": 0, "lazy": 1, "cached": 1}  # by --dataset-impl
_ERROR_BYTES = 4096
_library = None

_Progress = CFUNCTYPE(c_int, c_void_p, c_uint64, c_uint64)


class DataError(Exception):
    """What the native side refuses, or what stood in its way; a sentence."""


class _Spec(ctypes.Structure):
    _fields_ = (
        ("prefix", c_char_p),
        ("parts", POINTER(c_char_p)),
        ("part_count", c_uint64),
        ("layout", c_int),
        ("replace", c_int),
        ("progress", _Progress),
        ("user", c_void_p),
    )


class Counts(ctypes.Structure):
    """Of a dataset; `dtype` is the code in its index."""

    _fields_ = (
        *((name, c_uint64) for name in ("documents", "sequences", "tokens", "bin_bytes", "idx_bytes")),
        *((name, c_uint32) for name in ("bin_crc32", "idx_crc32", "dtype")),
    )


class Part(ctypes.Structure):
    """A part that is whole; `notes_at` and `notes_bytes` say where its notes lie in the file."""

    _fields_ = (
        ("number", c_uint64),
        ("parts", c_uint64),
        ("_fingerprint", c_uint8 * 32),
        *((name, c_uint64) for name in ("documents", "sequences", "tokens", "notes_at", "notes_bytes")),
        ("dtype", c_uint32),
    )

    @property
    def fingerprint(self):
        return bytes(self._fingerprint)


_FUNCTIONS = {
    "phx_data_abi_version": (c_uint32, ()),
    "phx_data_join_parts": (c_void_p, (POINTER(_Spec), POINTER(Counts), c_char_p, c_size_t)),
    "phx_data_publish": (c_int, (c_void_p, c_char_p, c_uint64, c_char_p, c_size_t)),
    "phx_data_close": (None, (c_void_p,)),
    "phx_data_part_check": (c_int, (c_char_p, POINTER(Part), c_char_p, c_size_t)),
    "phx_data_check": (c_int, (c_char_p, POINTER(Counts), c_char_p, c_size_t)),
}


def library():
    """The loaded library. Raises LibraryMissing."""
    global _library
    if _library is None:
        here = os.path.dirname(os.path.abspath(__file__))
        _library = load("phalanx.data", here, "libphalanx_data.so", ABI_VERSION, _FUNCTIONS)
    return _library


class Join:
    """Parts that have become one dataset, complete on the disk; `publish` brings it to its place, and without that
    nothing of it stays. `progress(done_bytes, all_bytes)` is called in this thread, again and again; what it raises
    ends the join. Raises DataError."""

    def __init__(self, prefix, parts, dataset_impl="mmap", replace=False, progress=None):
        self.counts = Counts()
        self._handle = None
        raised = []
        paths = [os.fsencode(part) for part in parts]
        spec = _Spec(
            os.fsencode(prefix), (c_char_p * len(paths))(*paths), len(paths), LAYOUTS[dataset_impl], bool(replace)
        )
        if progress is not None:
            spec.progress = _Progress(_guarded(progress, raised))
        text = ctypes.create_string_buffer(_ERROR_BYTES)
        self._handle = library().phx_data_join_parts(byref(spec), byref(self.counts), text, len(text))
        if raised:
            self.close()
            raise raised[0]
        if not self._handle:
            raise DataError(_sentence(text))

    def publish(self, sidecar):
        """`sidecar`: the bytes of `<prefix>.json`."""
        text = ctypes.create_string_buffer(_ERROR_BYTES)
        if library().phx_data_publish(self._handle, sidecar, len(sidecar), text, len(text)) != 0:
            raise DataError(_sentence(text))

    def close(self):
        if self._handle:
            library().phx_data_close(self._handle)
            self._handle = None

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def __del__(self):
        self.close()


def check_part(path):
    """Reads all of a part; what it says of itself. Raises DataError where it is not whole."""
    return _asked("phx_data_part_check", path, Part())


def check(prefix):
    """Reads all of a dataset; its counts and CRCs. Raises DataError where its files do not fit together."""
    return _asked("phx_data_check", prefix, Counts())


def _asked(function, path, answer):
    text = ctypes.create_string_buffer(_ERROR_BYTES)
    if getattr(library(), function)(os.fsencode(path), byref(answer), text, len(text)) != 0:
        raise DataError(_sentence(text))
    return answer


def _guarded(progress, raised):
    """For C, through which no exception passes."""

    def report(_, done_bytes, all_bytes):
        try:
            progress(done_bytes, all_bytes)
        except BaseException as error:
            raised.append(error)
        return len(raised)

    return report


def _sentence(text):
    return os.fsdecode(text.value)
