"""This rank's slot of the node's board: docs/formats/rank-board.md. The agent reads it, also when this process hangs.

Where there is no slot (outside a job, in a forked child of a rank) everything is written to scratch memory of our own,
so that the hot path has no branch for it.
"""

import mmap
import os
import time
from _thread import get_native_id

HEADER_BYTES = 64
SLOT_BYTES = 192
MAGIC = b"PHXBOARD"
VERSION = 5
RESCALE_AT_OFFSET = 40  # and behind it, whether a node leaves
LOCK_OFFSET = 128

# Words of a slot.
PID, OPTIMIZER_STEPS, STEP, CHANGED_NS, STARTED_NS, FIRST_STEP_NS, PHASE = range(7)
FROM_STEP, SAVING_NS, SAVING_SINCE_NS, CAUGHT_UP_NS, HEARS_RESCALE, SPLIT_STEPS, OWN_NS, WAITED_NS = range(7, 15)
COUNTS_ON = 15

PHASE_SCRIPT = 1
PHASE_STEPPING = 2
PHASE_EXITING = 3

words = memoryview(bytearray(SLOT_BYTES)).cast("Q")
_signed = words.cast("B").cast("q")
_taken = False
_looked_in_environment = False
_earlier = None  # the largest step that an earlier life has told, -1 for none; None: there is no board
_redo_until = None  # the same, until this one has come as far
_known = (0, 0)  # a step as saves number them, and how many the first optimizer had made then: at first none of both
_counts_on = False  # these numbers grow by one with each step of the optimizer, so it counts on between two saves
_counted_on = False  # the life before did so: what is restored is counted on from at once
_saves = 0  # that are under way, one inside the other
_saving_since_ns = 0

_rescale = memoryview(bytearray(16)).cast("q")  # of the board's header; the agent writes it

# Called with every step that counts, where somebody wants to know. rescale.py sets it.
on_step = None

# Called once, with the step, when the first `set_step` of this life has been written. hooks.py sets it.
on_first_step = None


def attach(path, slot):
    """Takes slot number `slot` of the board at `path`. Raises OSError or ValueError where that is no such board."""
    global _taken, _earlier, _redo_until, _rescale, _known, _counts_on
    view, _earlier, _rescale = _map_slot(path, slot)
    _use(view)
    _taken = True
    for index in range(1, SLOT_BYTES // 8):
        words[index] = 0
    _signed[STEP] = _signed[FROM_STEP] = -1
    _redo_until = _earlier if _earlier >= 0 else None
    _known, _counts_on = (0, 0), False
    if _saves:
        words[SAVING_SINCE_NS] = _saving_since_ns
    words[PID] = os.getpid()


def expect_counting_on():
    """The life before has counted on between saves; this one does what it did, so it does so from its restore on."""
    global _counted_on
    _counted_on = True


def lock_at(slot):
    """Where in the file the lock of that slot is, for linux.hold_until_death."""
    return HEADER_BYTES + slot * SLOT_BYTES + LOCK_OFFSET


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
    global _counted_on
    if not _taken:
        _attach_by_environment()
    _counted_on = False
    _count_on(False)
    # Whoever tells it behind the optimizer's step has done that one; whoever tells it before has not.
    _tell(n, max(0, n - min(words[OPTIMIZER_STEPS], 1)))


def restored_step(n):
    """The training goes on behind that step: the number of the save that was restored. Nothing is told by it, as no
    step has been made: the next one of the optimizer tells its own, where the life before counted so."""
    global _known
    _known = (n, words[OPTIMIZER_STEPS])
    if _counted_on and on_step is None:  # safe points go by one way of counting, the same on all ranks
        _count_on(True)


def saved_step(n):
    """A save has that number, behind the step. Where it has grown since the last save, or what was restored, as much as
    the first optimizer has stepped, this counts on: a script that saves each hundred steps makes one each time. Where
    it has not, as where epochs are saved, the step stands between two saves."""
    global _known
    steps = words[OPTIMIZER_STEPS]
    is_told = _signed[STEP] >= 0 and _signed[STEP] != _known[0] and not _counts_on  # by phalanx.step
    made = steps - _known[1]
    _count_on(made > 0 and n - _known[0] == made and not is_told)
    _known = (n, steps)
    _tell(n, max(0, n - (steps if _counts_on else min(steps, 1))))


def _count_on(is_so):
    global _counts_on
    _counts_on = is_so
    words[COUNTS_ON] = is_so


def _tell(n, from_step):
    global _redo_until
    if not _taken:
        _attach_by_environment()
    if _signed[STEP] < 0:
        _signed[FROM_STEP] = from_step
    _signed[STEP] = n
    words[CHANGED_NS] = time.monotonic_ns()
    if _redo_until is not None and n >= _redo_until:
        _redo_until = None
        words[CAUGHT_UP_NS] = words[CHANGED_NS]
    if on_first_step is not None:
        on_first_step(n)
    if on_step is not None:
        on_step(n)


def optimizer_stepped():
    """The first optimizer has stepped: one more in this life."""
    words[OPTIMIZER_STEPS] += 1
    if _counts_on:
        _tell(_known[0] + words[OPTIMIZER_STEPS] - _known[1], max(0, _known[0] - _known[1]))
    else:
        words[CHANGED_NS] = time.monotonic_ns()
    return words[OPTIMIZER_STEPS]


def step_split(own_ns, waited_ns):
    """A step more is known to have taken that, by itself and in waiting for others. What it has saved is neither."""
    words[SPLIT_STEPS] += 1
    words[OWN_NS] += own_ns
    words[WAITED_NS] += waited_ns


def saved_ns():
    """Time that training has spent in saves that are over."""
    return words[SAVING_NS]


def tells_steps():
    """Whether the script counts its steps itself."""
    return _signed[STEP] >= 0


def told_step():
    """The step as the script has told it last; -1: it has not."""
    return _signed[STEP]


def earlier_step():
    """The largest step that an earlier life of this job has told, on any rank; -1: none has, so that none has saved.
    None: there is no board, and nobody knows."""
    if not _taken:
        _attach_by_environment()
    return _earlier


def hear_rescale(until_ns=1):
    """The agent may ask for a safe point: until time.monotonic_ns() is that, at all times for 1, and no more for 0."""
    words[HEARS_RESCALE] = until_ns


def rescale_at():
    """The step behind which all ranks come to a safe point; 0: none is announced."""
    return _rescale[0]


def node_leaves():
    """Whether a node goes with the rescale that is announced, and its memory with it."""
    return _rescale[1] != 0


def begin_saving():
    """A save begins, perhaps inside another. False, and nothing is counted, where it does not hold up the training:
    in another thread than the main one."""
    global _saves, _saving_since_ns
    if get_native_id() != os.getpid():
        return False
    if not _taken:
        _attach_by_environment()
    if _saves == 0:
        _saving_since_ns = words[SAVING_SINCE_NS] = time.monotonic_ns()
    _saves += 1
    return True


def end_saving():
    """The save that began last is over, well or not."""
    global _saves
    _saves -= 1
    if _saves == 0:
        words[SAVING_SINCE_NS] = 0
        words[SAVING_NS] += time.monotonic_ns() - _saving_since_ns


def let_go():
    """From now on this process writes to nobody's slot: a forked child is not the rank."""
    global _taken, _earlier, _redo_until, _rescale, _counts_on, on_first_step, on_step
    _use(memoryview(bytearray(SLOT_BYTES)))
    _counts_on = False
    _rescale = memoryview(bytearray(16)).cast("q")
    _taken = False
    _earlier = _redo_until = on_first_step = on_step = None


def _first_step_unheard(n):
    """The first step of a rank that has nobody to tell it to."""
    global on_first_step
    on_first_step = None
    first_step_done()


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
    redo_until = int.from_bytes(header[32:40], "little", signed=True)
    whole = memoryview(mapped)
    rescale = whole[RESCALE_AT_OFFSET : RESCALE_AT_OFFSET + 16].cast("q")
    return whole[start : start + SLOT_BYTES], redo_until, rescale


def _attach_by_environment():
    """For a rank that did not start through the bootstrap (--no-python): its slot is free, its first word takes it."""
    global _looked_in_environment, on_first_step
    if _looked_in_environment:
        return
    _looked_in_environment = True
    path, _, slot = os.environ.get("PHALANX_BOARD", "").rpartition(":")
    if not path or not slot.isdigit():
        return
    try:
        view = _map_slot(path, int(slot))[0]
        if view.cast("Q")[PID] == 0:
            attach(path, int(slot))
            on_first_step = _first_step_unheard
    except (OSError, ValueError):
        return  # a report about progress must not end the training
