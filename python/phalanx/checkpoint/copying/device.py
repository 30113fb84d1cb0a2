"""Copies from devices into a slot, beside the training, and the second look that proves them.

What a device's own queue does it does in order: a sample of what is copied later, the copies of what anybody may write
behind save(), a second look at those, and then the training goes on beside the copies of what only optimizers write.
Behind the last byte that is copied, on whatever device or on the host, all that was copied later is compared with the
slot, on the device and byte by byte. So each byte was the same when it was copied and after all were: one moment had
all of them (docs/checkpoint.md, "When copies overlap, and when not").

A slot is pinned once per mapping: a copy into memory that is not would hold the training. `driver` in here is
cuda.Driver, or what stands in for it where there is no device.
"""

import array
import bisect
import ctypes
import functools
import itertools
import threading
import time

import torch

from phalanx.checkpoint import native
from phalanx.checkpoint.formats import framed

# Of one comparison; as much memory is taken of a device that large records are copied from. One sample stands for each.
CHUNK_BYTES = 32 << 20
# What is no larger is gathered on the device and copied in one piece.
SMALL_BYTES = 64 << 10
GATHERED_BYTES_MAX = 32 << 20  # of one piece
_SAMPLE_BYTES = 64
_NO_MEMORY = "the device has no memory for the second look: copied before save() returned"


class Copier:
    """Makes the copies of one Checkpointer."""

    def __init__(self, driver):
        self._driver = driver
        self._queues = {}  # device -> queue
        self._pinned = {}  # slot -> (address, file) of its mapping

    def records_of(self, image):
        """Numbers of the records that lie on devices."""
        if not self._driver.is_in_use():
            return []  # thousands of storages need not be asked
        return [index for index, storage in enumerate(image.storages) if self._driver.device_of(storage) is not None]

    def pin(self, slots):
        """Pins slots, {slot: (address, bytes, file)}, once for each mapping. Why it cannot be, or None."""
        for slot, (address, count, file) in slots.items():
            if slot in self._pinned:
                continue
            error = self._driver.pin(address, count)
            if error != 0:
                return f"CUDA does not pin a slot of {count} bytes (error {error}): copies hold the training"
            self._pinned[slot] = address, file
        return None

    def unpin(self, but=()):
        """To be called before slots are unmapped: CUDA would go on writing to the memory that was there. `but`: {slot:
        file} of those that stay mapped."""
        for slot, (address, file) in list(self._pinned.items()):
            if slot in but and but[slot] == file:
                continue
            del self._pinned[slot]
            self._driver.unpin(address)

    def copy(self, address, count, records, pinned, proves):
        """Queues the copies into the slot and returns what follows them. `records`: (number, storage, offset, guarded)
        each; `proves`: they are looked at twice.

        Behind this call the current stream of each device goes on only when the unguarded ones are copied; what
        changes the guarded ones must call `Copies.fence` first. Into a slot that is not pinned, and where a device has
        no memory for the second look, all is copied before this returns.
        """
        slot = torch.frombuffer((ctypes.c_uint8 * count).from_address(address), dtype=torch.uint8)
        by_device = {}
        for number, storage, offset, guarded in records:
            if storage.nbytes() > 0:
                record = _Record(number, slot, offset, _bytes_of(storage), guarded)
                by_device.setdefault(self._driver.device_of(storage), []).append(record)
        if not pinned:
            return _copied_at_once(by_device, proves)
        try:
            parts = [
                _FromDevice(self._queue_of(device), self._driver, wanted, proves)
                for device, wanted in by_device.items()
            ]
        except torch.cuda.OutOfMemoryError:  # nothing is queued yet
            return _copied_at_once(by_device, proves, why=_NO_MEMORY)
        for part in parts:
            part.begin()
        return Copies(parts, proves)

    def _queue_of(self, device):
        queue = self._queues.get(device)
        if queue is None:
            queue = self._queues[device] = self._driver.queue(device)
        return queue


class Copies:
    """Copies that are under way on one or more devices."""

    def __init__(self, parts, proves, differing=None, why=None):
        """`why`: of a save that was copied before this was there."""
        self._parts, self._proves, self.why = parts, proves, why
        self._differing = differing
        self._is_queued = not proves or not parts  # all of it: the second look, too
        self._waiting = None  # a thread, for who waits no longer than some time

    def look_again(self):
        """Queues the second look, once: to be called when all is copied that others copy."""
        if self._is_queued:
            return
        self._is_queued = True
        for part, other in itertools.permutations(self._parts, 2):
            part.queue.follow(other.copied)
        for part in self._parts:
            part.look_again()

    def is_queued(self):
        return self._is_queued

    def fence(self):
        """What is queued from now on, on the current streams, runs behind the copies. Does not block."""
        for part in self._parts:
            part.queue.hold_current(part.over)

    def are_over(self):
        return self._is_queued and all(part.over.query() for part in self._parts)

    def wait(self, until_ns=None):
        """False where time.monotonic_ns() came to `until_ns` before they were over."""
        if until_ns is None:
            self._synchronize()
            return True
        if self._waiting is None and not self.are_over():  # CUDA knows no wait with an end
            self._waiting = threading.Thread(target=self._synchronize, name="phalanx-wait-copies", daemon=True)
            self._waiting.start()
        if self._waiting is not None:
            self._waiting.join(max(0, until_ns - time.monotonic_ns()) / 1e9)
        return self.are_over()

    def land(self):
        """When they are over: brings what was gathered to its places. The number of a record that was written while it
        was copied, or None."""
        found = [part.land() for part in self._parts]
        return next((number for number in [self._differing, *found] if number is not None), None)

    def _synchronize(self):
        for part in self._parts:
            part.over.synchronize()


class _Record:
    """One storage, and where its bytes go."""

    __slots__ = ("_slot", "guarded", "number", "offset", "source")

    def __init__(self, number, slot, offset, source, guarded):
        self.number, self.offset, self.guarded = number, offset, guarded
        self.source = source  # its bytes, on the device
        self._slot = slot

    def to(self):
        return self._slot[self.offset : self.offset + self.source.numel()]

    def address(self):
        return self._slot.data_ptr() + self.offset


class _FromDevice:
    """The copies of one device, in the order in which its queue makes them. Takes all memory that it needs before it
    queues anything: torch.cuda.OutOfMemoryError."""

    def __init__(self, queue, driver, records, proves):
        self.queue, self._proves = queue, proves
        self._flags = _Flags()
        at_once = [each for each in records if not each.guarded]
        later = [each for each in records if each.guarded]
        self._at_once = _Group(queue, driver, at_once, self._flags, proves)
        self._later = _Group(queue, driver, later, self._flags, proves)
        largest = max([0, *(each.source.numel() for each in self._at_once.large + self._later.large)])
        self._scratch = queue.empty(min(CHUNK_BYTES, largest) if proves else 0)
        self._samples = _Samples(queue, self._later.large if proves else [], self._flags)
        self._flags.take_memory(queue)
        self.copied = self.over = None  # events

    def begin(self):
        queue = self.queue
        queue.follow_current()
        queue.run(self._flags.clear)
        self._samples.take()
        self._at_once.copy()
        if self._proves:
            self._at_once.look_again(self._scratch)
        held = queue.event()
        self._later.copy()
        self.copied = self.over = queue.event()
        queue.hold_current(held)

    def look_again(self):
        self._samples.look_again()
        self._later.look_again(self._scratch)
        self.over = self.queue.event()

    def land(self):
        """The number of a record that differed, or None."""
        self._at_once.land()
        self._later.land()
        return self._flags.first_raised(self.queue) if self._proves else None


class _Flags:
    """What was found to differ, on the device: a byte for each comparison, 1 where it did."""

    def __init__(self):
        self._names = []  # call each: the number of the record that differed
        self._bytes = None

    def add(self, name):
        """Its number."""
        self._names.append(name)
        return len(self._names) - 1

    def take_memory(self, queue):
        self._bytes = queue.empty(len(self._names))

    def clear(self):
        self._bytes.zero_()

    def raise_where(self, flag, first, second):
        """On the queue: compares two pieces of the device's memory."""
        differ = torch.ne(*_in_words(first, second)).any()
        self._bytes[flag : flag + 1].bitwise_or_(differ.to(torch.uint8))

    def first_raised(self, queue):
        raised = queue.read(lambda: self._bytes).tolist()
        return next((name() for name, is_raised in zip(self._names, raised) if is_raised), None)


class _Group:
    """Records of one device that are copied at the same time."""

    def __init__(self, queue, driver, records, flags, proves):
        self._queue, self._flags = queue, flags
        self.large = [each for each in records if each.source.numel() > SMALL_BYTES]
        small = [each for each in records if each.source.numel() <= SMALL_BYTES]
        self._gathered = [_Gathered(queue, driver, each, flags, proves) for each in _pieces(small)]
        self._flag_of = [flags.add(functools.partial(int, each.number)) for each in self.large]

    def copy(self):
        for each in self._gathered:
            each.copy()
        self._queue.copy([(each.to(), each.source) for each in self.large])

    def look_again(self, scratch):
        for each in self._gathered:
            each.look_again()
        for flag, record in zip(self._flag_of, self.large):
            for to, source in zip(record.to().split(CHUNK_BYTES), record.source.split(CHUNK_BYTES)):
                was_copied = scratch[: source.numel()]
                self._queue.copy([(was_copied, to)])
                self._queue.run(functools.partial(self._flags.raise_where, flag, was_copied, source))

    def land(self):
        for each in self._gathered:
            each.land()


class _Twice:
    """Pieces of a device's memory that are gathered into one, twice, and compared there."""

    def __init__(self, queue, sources, numbers, flags, proves):
        """`numbers`: of which record each piece is."""
        self._queue, self._sources, self._numbers, self._flags = queue, sources, numbers, flags
        self.ends = list(itertools.accumulate(each.numel() for each in sources))
        count = self.ends[-1] if sources else 0
        self.first, self._second = queue.empty(count), queue.empty(count if proves else 0)
        self._flag = flags.add(self._name) if proves and sources else None

    def gather(self):
        self._queue.run(functools.partial(self._gather, self.first))

    def gather_again(self):
        self._queue.run(functools.partial(self._gather, self._second))
        self._queue.run(functools.partial(self._flags.raise_where, self._flag, self.first, self._second))

    def _gather(self, into):
        torch.cat(self._sources, out=into)

    def _name(self):
        differs = self._queue.read(lambda: torch.ne(self.first, self._second).nonzero())
        return self._numbers[bisect.bisect_right(self.ends, int(differs[0]))]


class _Gathered:
    """Small records: one piece of memory on the device, from where one copy brings them to the host."""

    def __init__(self, queue, driver, records, flags, proves):
        self._queue, self._records = queue, records
        sources, numbers = [each.source for each in records], [each.number for each in records]
        self._twice = _Twice(queue, sources, numbers, flags, proves)
        self._on_host = driver.host_bytes(self._twice.ends[-1])

    def copy(self):
        self._twice.gather()
        self._queue.copy([(self._on_host, self._twice.first)])

    def look_again(self):
        self._twice.gather_again()

    def land(self):
        """Behind the copies: brings the records to their places."""
        addresses = array.array("Q", [each.address() for each in self._records])
        sizes = array.array("Q", [each.source.numel() for each in self._records])
        native.scatter(self._on_host.data_ptr(), addresses, sizes)


class _Samples:
    """A few bytes of each chunk that is copied later, as they were when the save began: what writes a whole tensor
    before its copy has come to it is found by them."""

    def __init__(self, queue, records, flags):
        sources, numbers = [], []
        for record in records:
            for source in record.source.split(CHUNK_BYTES):
                begin = max(0, (source.numel() - _SAMPLE_BYTES) // 2)  # a write may begin or end with the chunk
                sources.append(source[begin : begin + _SAMPLE_BYTES])
                numbers.append(record.number)
        self._twice = _Twice(queue, sources, numbers, flags, proves=True) if sources else None

    def take(self):
        if self._twice is not None:
            self._twice.gather()

    def look_again(self):
        if self._twice is not None:
            self._twice.gather_again()


def _copied_at_once(by_device, proves, why=None):
    records = list(itertools.chain.from_iterable(by_device.values()))
    for record in records:
        record.to().copy_(record.source.cpu())
    differing = None
    if proves:
        again = (each.number for each in records if not torch.equal(each.to(), each.source.cpu()))
        differing = next(again, None)
    return Copies([], proves, differing, why)


def _pieces(records):
    """The records in lists of at most GATHERED_BYTES_MAX."""
    pieces, count = [], GATHERED_BYTES_MAX
    for record in records:
        if count + record.source.numel() > GATHERED_BYTES_MAX:
            pieces.append([])
            count = 0
        pieces[-1].append(record)
        count += record.source.numel()
    return pieces


def _in_words(*pieces):
    """As numbers of 8 bytes where all of them can be looked at so: a device compares them faster."""
    are_words = all(each.numel() % 8 == 0 and each.storage_offset() % 8 == 0 for each in pieces)
    return [each.view(torch.int64) for each in pieces] if are_words else pieces


def _bytes_of(storage):
    whole, begin = storage.whole() if isinstance(storage, framed.Part) else (storage, 0)
    source = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return source.set_(whole, begin, (storage.nbytes(),), (1,))
