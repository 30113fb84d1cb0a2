"""The native side, libphalanx_elasticity.so, by ctypes: src/elasticity/capi.h is the contract."""

import ctypes
import json
import os
from ctypes import c_char_p, c_size_t, c_uint32

from phalanx._library import load

ABI_VERSION = 1
_ROOM_BYTES = 1 << 16  # most answers are far shorter
_FUNCTIONS = {
    "phx_elasticity_abi_version": (c_uint32, ()),
    "phx_elasticity_answer": (c_size_t, (c_char_p, c_size_t, c_char_p, c_size_t)),
}
_library = None


def library():
    """The loaded library. Raises LibraryMissing."""
    global _library
    if _library is None:
        here = os.path.dirname(os.path.abspath(__file__))
        _library = load("phalanx.elasticity", here, "libphalanx_elasticity.so", ABI_VERSION, _FUNCTIONS)
    return _library


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
