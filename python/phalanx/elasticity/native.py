"""The native side, libphalanx_elasticity.so, by ctypes: src/elasticity/capi.h is the contract."""

import os
from ctypes import POINTER, c_int64, c_size_t, c_uint8, c_uint32

from phalanx._library import load

ABI_VERSION = 2
PREFER_LARGER, WITHIN_LARGEST, WITHOUT_WHOLE = 1, 2, 4
VALUE_MAX = 2**40
INFINITE = 2**63 - 1  # as a limit
MICRO_BATCHES_MAX = 1000
_ROOM = 512  # most plans have far fewer counts
_NO_COUNTS = -1
_BEYOND_LIMITS = -2
_FUNCTIONS = {
    "phx_elasticity_abi_version": (c_uint32, ()),
    "phx_elasticity_choose_batch": (
        c_int64,
        (
            *(POINTER(c_int64), c_size_t, c_int64, c_int64, c_int64, c_uint32),
            *(POINTER(c_int64), POINTER(c_int64), POINTER(c_uint8), c_size_t),
        ),
    ),
}
_library = None


def library():
    """The loaded library. Raises LibraryMissing."""
    global _library
    if _library is None:
        here = os.path.dirname(os.path.abspath(__file__))
        _library = load("phalanx.elasticity", here, "libphalanx_elasticity.so", ABI_VERSION, _FUNCTIONS)
    return _library


def choose_batch(micro_batches, max_batch, min_gpus, max_gpus, flags):
    """(batch, GPU counts or None). All are whole numbers within the limits; `flags` are a sum of those above."""
    return _choose(micro_batches, max_batch, min_gpus, max_gpus, flags, with_marks=False)[:2]


def choose_marked(micro_batches, max_batch, min_gpus, max_gpus, flags):
    """The same, with a mark for each count that is numpy's in DeepSpeed."""
    return _choose(micro_batches, max_batch, min_gpus, max_gpus, flags, with_marks=True)


def _choose(micro_batches, max_batch, min_gpus, max_gpus, flags, with_marks):
    call = (_library or library()).phx_elasticity_choose_batch
    count = len(micro_batches)
    sizes = (c_int64 * count)(*micro_batches)
    batch = (c_int64 * 1)()
    room = _ROOM
    while True:
        counts = (c_int64 * room)()
        marks = (c_uint8 * room)() if with_marks else None
        found = call(sizes, count, max_batch, min_gpus, max_gpus, flags, batch, counts, marks, room)
        if found == _NO_COUNTS:
            return batch[0], None, None
        if found == _BEYOND_LIMITS:
            raise ValueError("choose_batch: a number is beyond the limits")  # the caller has looked at them
        if found <= room:
            return batch[0], counts[:found], marks[:found] if with_marks else None
        room = found
