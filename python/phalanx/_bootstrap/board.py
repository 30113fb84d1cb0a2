"""This rank's slot of the node's board: docs/formats/rank-board.md. The agent reads it, also when this process hangs.

Where there is no slot (outside a job, in a forked child of a rank) everything is written to scratch memory of our own,
so that the hot path has no branch for it.
"""

import mmap
import os
import time

HEADER_BYTES = 64
SLOT_BYTES = 128
MAGIC = b"PHXBOARD"
VERSION = 1

# Words of a slot.
PID, OPTIMIZER_STEPS, STEP, CHANGED_NS, STARTED_NS, FIRST_STEP_NS, PHASE = range(7)

PHASE_SCRIPT = 1
PHASE_STEPPING = 2
PHASE_EXITING = 3

words = memoryview(bytearray(SLOT_BYTES)).cast("Q")
_signed = words.cast("B").cast("q")
_taken = False
_looked_in_environment = False

# Called once, with the step, when the first `set_step` of this life has been written. hooks.py sets it.
on_first_step = None


def attach(path, slot):
    """Takes slot number `slot` of the board at `path`. Raises OSError or ValueError where that is no such board."""
    global _taken
    view = _map_slot(path, slot)
    _use(view)
    _taken = True
    for index in range(1, SLOT_BYTES // 8):
        words[index] = 0
    _signed[STEP] = -1
    words[PID] = os.getpid()


def script_starts():
    words[STARTED_NS] = time.monotonic_ns()
    words[PHASE] = PHASE_SCRIPT


def first_step_done():
    words[FIRST_STEP_NS] = time.monotonic_ns()
    words[PHASE] = PHASE_STEPPING


def script_ends():
    words[PHASE] = PHASE_EXITING


def set_step(n):
    """The step as the script counts it."""
    if not _taken:
        _attach_by_environment()
    _signed[STEP] = n
    words[CHANGED_NS] = time.monotonic_ns()
    if on_first_step is not None:
        on_first_step(n)


def let_go():
    """From now on this process writes to nobody's slot: a forked child is not the rank."""
    global _taken, on_first_step
    _use(memoryview(bytearray(SLOT_BYTES)))
    _taken = False
    on_first_step = None


def _use(view):
    global words, _signed
    words = view.cast("Q")
    _signed = view.cast("q")


def _map_slot(path, slot):
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        header = os.pread(fd, HEADER_BYTES, 0)
        count = int.from_bytes(header[16:20], "little")
        if (
            header[:8] != MAGIC
            or int.from_bytes(header[8:12], "little") != VERSION
            or int.from_bytes(header[12:16], "little") != SLOT_BYTES
            or not 0 <= slot < count
            or size < HEADER_BYTES + count * SLOT_BYTES
        ):
            raise ValueError(f"{path} has no slot {slot} that this version can write")
        mapped = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(fd)
    start = HEADER_BYTES + slot * SLOT_BYTES
    return memoryview(mapped)[start : start + SLOT_BYTES]


def _attach_by_environment():
    """For a rank that did not start through the bootstrap (--no-python): its slot is free, its first step takes it."""
    global _looked_in_environment
    if _looked_in_environment:
        return
    _looked_in_environment = True
    path, _, slot = os.environ.get("PHALANX_BOARD", "").rpartition(":")
    if not path or not slot.isdigit():
        return
    try:
        view = _map_slot(path, int(slot))
        if view.cast("Q")[PID] == 0:
            attach(path, int(slot))
            first_step_done()
    except (OSError, ValueError):
        return  # a report about progress must not end the training
