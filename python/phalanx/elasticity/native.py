"""The native side, libphalanx_elasticity.so, by ctypes: src/elasticity/capi.h is the contract."""

import ctypes
import json
import os
from ctypes import c_char_p, c_size_t, c_uint32

ABI_VERSION = 1
_ROOM_BYTES = 1 << 16  # most answers are far shorter
_FUNCTIONS = {
    "phx_elasticity_abi_version": (c_uint32, ()),
    "phx_elasticity_answer": (c_size_t, (c_char_p, c_size_t, c_char_p, c_size_t)),
}
_library = None


class LibraryMissing(ImportError):
    """The native library is not there, or is not the one that this package speaks with."""


def library():
    """The loaded library. Raises LibraryMissing."""
    global _library
    if _library is None:
        _library = _load()
    return _library


def _load():
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libphalanx_elasticity.so")
    try:
        loaded = ctypes.CDLL(path)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise LibraryMissing(f"phalanx.elasticity: its native library cannot be loaded: {error}") from None
    version = loaded.phx_elasticity_abi_version()
    if version != ABI_VERSION:
        raise LibraryMissing(f"phalanx.elasticity: {path} speaks version {version}, this package {ABI_VERSION}")
    return loaded


def answer(request):
    """The answer to a request, both as src/elasticity/rows.h has them."""
    text = json.dumps(request).encode()
    room = _ROOM_BYTES
    while True:
        buffer = ctypes.create_string_buffer(room)
        length = library().phx_elasticity_answer(text, len(text), buffer, room)
        if length < room:
            return json.loads(buffer.raw[:length])
        room = length + 1
