"""The native side, libphalanx_universal.so, by ctypes: src/checkpoint/universal/capi.h is the contract."""

import ctypes
import os
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p

from phalanx._library import load

ABI_VERSION = 1
_TEXT_BYTES = 2048


class NotWritten(OSError):
    """A sentence: which path, which call, and what the system has said."""


class _Piece(ctypes.Structure):
    _fields_ = (("at", c_void_p), ("bytes", c_uint64))


class _File(ctypes.Structure):
    _fields_ = (
        ("name", c_char_p),
        ("link", c_char_p),
        ("pickle", c_char_p),
        ("pickle_bytes", c_uint64),
        ("pieces", POINTER(_Piece)),
        ("piece_counts", POINTER(c_uint64)),
        ("record_count", c_uint64),
    )


class _Written(ctypes.Structure):
    _fields_ = (("bytes", c_uint64), ("crc32", c_uint32), ("zero", c_uint32))


class _Publication(ctypes.Structure):
    _fields_ = (
        ("draft", c_char_p),
        ("target", c_char_p),
        ("manifest_name", c_char_p),
        ("manifest", c_char_p),
        ("manifest_bytes", c_uint64),
        ("tracker_name", c_char_p),
    )


_FUNCTIONS = {
    "phx_universal_abi_version": (c_uint32, ()),
    "phx_universal_write": (
        c_int,
        (c_char_p, POINTER(_File), c_uint64, c_int, POINTER(_Written), c_char_p, c_size_t),
    ),
    "phx_universal_publish": (c_int, (POINTER(_Publication), c_char_p, c_size_t)),
}
_library = None


def library():
    """The loaded library. Raises LibraryMissing."""
    global _library
    if _library is None:
        here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        _library = load("phalanx.checkpoint.universal", here, "libphalanx_universal.so", ABI_VERSION, _FUNCTIONS)
    return _library


def write(folder, files, threads):
    """[(name, bytes, CRC-32)] of `files`, each a zero.File, when all of them are on the disk. NotWritten."""
    given, written = (_File * len(files))(), (_Written * len(files))()
    for file, into in zip(files, given):
        pieces = [piece for record in file.records for piece in record if piece.count]
        counts = [sum(1 for piece in record if piece.count) for record in file.records]
        into.name, into.link = os.fsencode(file.name), file.link and os.fsencode(file.link)
        into.pickle, into.pickle_bytes = file.pickle, len(file.pickle or b"")
        into.pieces = (_Piece * len(pieces))(*((piece.address(), piece.nbytes()) for piece in pieces))
        into.piece_counts = (c_uint64 * len(counts))(*counts)
        into.record_count = len(counts)
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    code = library().phx_universal_write(os.fsencode(folder), given, len(files), threads, written, text, _TEXT_BYTES)
    _check(code, text)
    return [(file.name, each.bytes, each.crc32) for file, each in zip(files, written)]


def publish(draft, target, manifest_name, manifest, tracker):
    """The folder `draft` comes to `target` beside it, and what was there to `draft`. `manifest`: bytes. NotWritten."""
    publication = _Publication(
        os.fsencode(draft),
        os.fsencode(target),
        os.fsencode(manifest_name),
        manifest,
        len(manifest),
        tracker and os.fsencode(tracker),
    )
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    _check(library().phx_universal_publish(ctypes.byref(publication), text, _TEXT_BYTES), text)


def _check(code, text):
    if code < 0:
        raise NotWritten(text.value.decode("utf-8", "replace"))
