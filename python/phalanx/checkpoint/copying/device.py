"""Copies from devices into a slot, beside the training, and the second look that proves them.

What a device's own queue does it does in order: a sample of what is copied later, the copies of what anybody may write
behind save(), a second look at those, and then the training goes on beside the copies of what only optimizers write.
Behind the last byte that is copied, on whatever device or on the host, all that was copied later is compared with the
slot, on the device and byte by byte. So each byte was the same when it was copied and after all were: one moment had
all of them (docs/checkpoint.md, "When copies overlap, and when not").

save() itself queues no more than the samples and what anybody may write: a device takes some thousand copies, and then
holds whoever queues another. The rest is queued by a thread.

A slot is pinned once per mapping: a copy into memory that is not would hold the training. `driver` in here is
cuda.Driver, or what stands in for it where there is no device.
"""

import array
import bisect
import contextlib
import ctypes
import functools
import itertools
import threading

import torch

from phalanx.checkpoint import native
from phalanx.checkpoint.formats import framed

# Of one comparison; twice as much memory is taken of a device that large records are copied from.
CHUNK_BYTES = 16 << 20
# What is no larger is gathered on the device and copied in one piece.
SMALL_BYTES = 64 << 10
GATHERED_BYTES_MAX = 4 << 20  # of one piece
SAMPLE_EVERY_BYTES = 256 << 10  # one word of so many
_NO_MEMORY = "the device has no memory for the second look: copied before save() returned"
_NO_RUNTIME = "CUDA's runtime was not found in this process: copies hold the training"
_WORD_BYTES = 8
_ALIGNMENT_BYTES = 64  # of what is compared: devices copy faster from there


class Refused(Exception):
    """No copy is under way: what a device has said."""


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

    def device_of(self, image):
        """Of the first record that lies on one; None: there is none."""
        records = self.records_of(image)
        return self._driver.device_of(image.storages[records[0]]) if records else None

    def enter_thread(self, device):
        """To be called first in a thread that pins."""
        self._driver.enter_thread(device)

    def pin(self, slots):
        """Pins slots, {slot: (address, bytes, file)}, once for each mapping. Why it cannot be, or None."""
        if not self._driver.can_queue():
            return _NO_RUNTIME
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

    @torch.inference_mode(False)
    def copy(self, address, records, pinned, proves, wait_for_host):
        """Begins the copies into the slot at `address` and returns what follows them. `records`: (number, storage,
        address of it, bytes, offset in the slot, guarded) each; `proves`: they are looked at twice. `wait_for_host()`
        returns when all is copied that the host copies.

        Behind this call the current stream of each device goes on only when the unguarded ones are copied; the guarded
        ones wait for `Copies.go_on`, and what changes them must call `Copies.fence` first. Into a slot that is not
        pinned, and where a device has no memory for the second look, all is copied before this returns.
        """
        by_device = {}
        for number, storage, source, size, offset, guarded in records:
            if size > 0:
                record = _Record(number, storage, source, size, address + offset, guarded)
                by_device.setdefault(self._driver.device_of(storage), []).append(record)
        if not pinned:
            return _copied_at_once(by_device, proves, wait_for_host)
        try:
            parts = self._begin(by_device, proves)
        except torch.cuda.OutOfMemoryError:
            return _copied_at_once(by_device, proves, wait_for_host, why=_NO_MEMORY)
        except RuntimeError as error:  # as torch says what CUDA says
            raise Refused(f"the device refuses it: {error}") from None
        return Copies(parts, proves, driver=self._driver)

    def _begin(self, by_device, proves):
        begun = [self._queue_of(device) for device in by_device]
        try:
            parts = [
                _FromDevice(queue, self._driver, wanted, proves) for queue, wanted in zip(begun, by_device.values())
            ]
            for part in parts:
                part.begin()
        except BaseException:
            for queue in begun:  # whoever takes the slot next must not find copies under way
                queue.event().synchronize()
            raise
        return parts

    def _queue_of(self, device):
        queue = self._queues.get(device)
        if queue is None:
            queue = self._queues[device] = self._driver.queue(device)
        return queue


class Copies:
    """Copies that are under way on one or more devices."""

    def __init__(self, parts, proves, differing=None, why=None, driver=None):
        """`why`: of a save that was copied before this was there."""
        self._driver = driver
        self._parts, self._proves, self.why = parts, proves, why
        self._differing = differing
        self._is_queued = threading.Event()

    def enter_thread(self):
        """To be called first in a thread of their own."""
        if self._parts:
            self._driver.enter_thread(self._parts[0].queue.device)

    @torch.inference_mode(False)
    def go_on(self, wait_for_host):
        """Queues the copies of what is guarded and, when `wait_for_host()` has returned, the second look. To be called
        once, by any thread. Where it raises, what was copied is not proven."""
        try:
            for part in self._parts:
                part.copy_later()
            wait_for_host()
            if self._proves:
                self._look_again()
        finally:
            self._is_queued.set()

    def end(self):
        """No device writes to the slot behind this, whatever became of the copies."""
        self._is_queued.set()
        for part in self._parts:
            with contextlib.suppress(RuntimeError):  # a device that is lost writes nothing
                part.queue.event().synchronize()

    def _look_again(self):
        """When all is copied, on whatever device."""
        for part, other in itertools.permutations(self._parts, 2):
            part.queue.follow(other.copied)
        for part in self._parts:
            part.look_again()

    def fence(self):
        """What is queued from now on, on the current streams, runs behind all that `go_on` queues, which is waited
        for, and not what it does."""
        if self._parts:
            self._is_queued.wait()
        for part in self._parts:
            part.queue.hold_current(part.over)

    def wait(self):
        for part in self._parts:
            part.over.synchronize()

    def land(self):
        """When they are over: brings what was gathered to its places. The number of a record that was written while it
        was copied, or None."""
        found = [part.land() for part in self._parts]
        return next((number for number in [self._differing, *found] if number is not None), None)


class _Record:
    """One storage: where its bytes are, and where they go."""

    __slots__ = ("_storage", "guarded", "number", "size", "source", "to")

    def __init__(self, number, storage, source, size, to, guarded):
        """`source`, `to`: addresses, of which the first is the device's."""
        self.number, self.source, self.size, self.to, self.guarded = number, source, size, to, guarded
        self._storage = storage

    def view(self, dtype=torch.uint8, begin=0, every=1):
        """A tensor of each `every` bytes of it from `begin` on; both are multiples of the element's size."""
        storage, at = self._place()
        unit, count = dtype.itemsize, -(-(self.size - begin) // every)
        tensor = torch.empty(0, dtype=dtype, device=storage.device)
        return tensor.set_(storage, (at + begin) // unit, (count,), (every // unit,))

    def _place(self):
        """(the whole storage, where in it this begins)."""
        return self._storage.whole() if isinstance(self._storage, framed.Part) else (self._storage, 0)

    def in_slot(self):
        return torch.frombuffer((ctypes.c_uint8 * self.size).from_address(self.to), dtype=torch.uint8)

    def has_words(self):
        """Whether it may be looked at as at numbers of 8 bytes."""
        return all(number % _WORD_BYTES == 0 for number in (self.size, self.source, self._place()[1]))

    def is_there(self):
        """It is as large as it was, and where it was: whoever frees or moves its memory may do so without a step."""
        return self._storage.nbytes() == self.size and self._storage.data_ptr() == self.source


class _FromDevice:
    """The copies of one device, in the order in which its queue makes them. All memory that it needs, but for a few
    bytes, is taken before anything is queued: torch.cuda.OutOfMemoryError."""

    def __init__(self, queue, driver, records, proves):
        self.queue, self._proves = queue, proves
        self._looks = _Looks(queue)
        at_once = [each for each in records if not each.guarded]
        later = [each for each in records if each.guarded]
        self._at_once = _Group(queue, driver, at_once, self._looks, proves)
        self._later = _Group(queue, driver, later, self._looks, proves)
        self._samples = _Samples(queue, self._later.large if proves else [], self._looks)
        self._looks.take_memory()
        self.copied = self.over = None  # events

    def begin(self):
        queue = self.queue
        queue.follow_current()
        self._looks.begin()
        self._samples.take()
        self._at_once.copy()
        if self._proves:
            self._at_once.look_again()
        self.copied = self.over = queue.event()
        queue.hold_current(self.over)

    def copy_later(self):
        try:
            self._later.must_be_there()
            self._later.copy()
        finally:
            self.copied = self.over = self.queue.event()

    def look_again(self):
        try:
            self._later.must_be_there()
            self._samples.look_again()
            self._later.look_again()
        finally:
            self.over = self.queue.event()

    def land(self):
        """The number of a record that differed, or None."""
        self._at_once.land()
        self._later.land()
        return self._looks.first_that_differed() if self._proves else None


class _Looks:
    """Comparisons on one device: of each whether its two sides were the same, and else where they were not."""

    def __init__(self, queue):
        self._queue = queue
        self._layouts = []  # of each: (bytes of an element, where each record ends, its number)
        self._most = 0  # elements of a comparison
        self._largest = 0  # of those with the slot, in bytes
        self._found = self._where = self._unequal = self._sides = None

    def add(self, unit, ends, numbers):
        """The number of a comparison of elements of so many bytes, up to the last of `ends`."""
        self._layouts.append((unit, ends, numbers))
        self._most = max(self._most, ends[-1] // unit)
        return len(self._layouts) - 1

    def add_with_slot(self, ends, numbers):
        self._largest = max(self._largest, ends[-1])
        return self.add(_WORD_BYTES, ends, numbers)

    def take_memory(self):
        empty = self._queue.empty
        self._found, self._where = empty(len(self._layouts)), empty(len(self._layouts) * _WORD_BYTES)
        self._unequal = empty(self._most)
        self._sides = empty(self._largest), empty(self._largest)

    def begin(self):
        """What lies between records is the same on both sides from here on."""
        self._queue.run(self._found.zero_, *(side.zero_ for side in self._sides))

    def compare_with_slot(self, look, piece):
        slot, source = self._sides
        sizes = _numbers(part.size for part in piece)
        self._queue.copy(_numbers(slot.data_ptr() + part.at for part in piece), _numbers(map(_Part.to, piece)), sizes)
        self._queue.copy(
            _numbers(source.data_ptr() + part.at for part in piece), _numbers(map(_Part.source, piece)), sizes
        )
        _, ends, _ = self._layouts[look]
        sides = (side[: ends[-1]].view(torch.int64) for side in self._sides)
        self._queue.run(functools.partial(self.compare, look, *sides))

    def compare(self, look, first, second):
        """To be run by the queue."""
        unequal = self._unequal[: first.numel()]
        torch.ne(first, second, out=unequal.view(torch.bool))
        torch.any(unequal.view(torch.bool), dim=0, out=self._found.view(torch.bool)[look])
        torch.argmax(unequal, dim=0, out=self._where.view(torch.int64)[look])

    def first_that_differed(self):
        """The number of its record, or None."""
        found = self._queue.read(lambda: self._found).tolist()
        look = next((look for look, differed in enumerate(found) if differed), None)
        if look is None:
            return None
        unit, ends, numbers = self._layouts[look]
        at = self._queue.read(lambda: self._where.view(torch.int64)[look]).item() * unit
        return numbers[bisect.bisect_right(ends, at)]


class _Group:
    """Records of one device that are copied at the same time."""

    def __init__(self, queue, driver, records, looks, proves):
        self._queue, self._looks = queue, looks
        self.large = [each for each in records if each.size > SMALL_BYTES]
        small = [each for each in records if each.size <= SMALL_BYTES]
        self._gathered = [_Gathered(queue, driver, each, looks, proves) for each in _gatherable(small)]
        self._compared = []  # (look, parts of large records)
        for piece in _comparable(self.large) if proves else ():
            ends = [_aligned(part.at + part.size) for part in piece]
            self._compared.append((looks.add_with_slot(ends, [part.record.number for part in piece]), piece))

    def copy(self):
        for each in self._gathered:
            each.copy()
        to, sources = _numbers(each.to for each in self.large), _numbers(each.source for each in self.large)
        self._queue.copy(to, sources, _numbers(each.size for each in self.large))

    def look_again(self):
        for each in self._gathered:
            each.look_again()
        for look, piece in self._compared:
            self._looks.compare_with_slot(look, piece)

    def must_be_there(self):
        """Its addresses are nobody's any more where it is not."""
        for record in self.large:
            if not record.is_there():
                raise RuntimeError(f"the memory of record {record.number} was freed or moved, and no step was made")

    def land(self):
        for each in self._gathered:
            each.land()


class _Part:
    """Of a large record: so many bytes from `begin` on, and where among those that are compared with them."""

    __slots__ = ("at", "begin", "record", "size")

    def __init__(self, record, begin, size, at):
        self.record, self.begin, self.size, self.at = record, begin, size, at

    def to(self):
        return self.record.to + self.begin

    def source(self):
        return self.record.source + self.begin


class _Twice:
    """Views of a device's memory that are gathered into one piece, twice, and compared there."""

    def __init__(self, queue, views, numbers, looks, proves):
        """`numbers`: of which record each view is."""
        self._queue, self._views, self._looks = queue, views, looks
        ends = list(itertools.accumulate(each.numel() * each.element_size() for each in views))
        self.size = ends[-1]
        self.first, self._second = queue.empty(self.size), queue.empty(self.size if proves else 0)
        self._look = looks.add(1, ends, numbers) if proves else None

    def gather(self):
        self._queue.run(functools.partial(self._gather, self.first))

    def gather_again(self):
        compare = functools.partial(self._looks.compare, self._look, self.first, self._second)
        self._queue.run(functools.partial(self._gather, self._second), compare)

    def _gather(self, into):
        torch.cat(self._views, out=into.view(self._views[0].dtype))


class _Gathered:
    """Small records: one piece of memory on the device, from where one copy brings them to the host."""

    def __init__(self, queue, driver, records, looks, proves):
        self._queue, self._records = queue, records
        views, numbers = [each.view() for each in records], [each.number for each in records]
        self._twice = _Twice(queue, views, numbers, looks, proves)
        self._on_host = driver.host_bytes(self._twice.size)

    def copy(self):
        self._twice.gather()
        to, source = self._on_host.data_ptr(), self._twice.first.data_ptr()
        self._queue.copy(_numbers([to]), _numbers([source]), _numbers([self._twice.size]))

    def look_again(self):
        self._twice.gather_again()

    def land(self):
        """Behind the copies: brings the records to their places."""
        addresses, sizes = _numbers(each.to for each in self._records), _numbers(each.size for each in self._records)
        native.scatter(self._on_host.data_ptr(), addresses, sizes)


class _Samples:
    """A word of each SAMPLE_EVERY_BYTES that are copied later, as they were when the save began: what writes a whole
    tensor before its copy has come to it is found by them."""

    def __init__(self, queue, records, looks):
        self._kinds = []
        for dtype in (torch.int64, torch.uint8):
            chosen = [each for each in records if each.has_words() == (dtype is torch.int64)]
            views = [_sampled(each, dtype) for each in chosen]
            if chosen:
                self._kinds.append(_Twice(queue, views, [each.number for each in chosen], looks, proves=True))

    def take(self):
        for each in self._kinds:
            each.gather()

    def look_again(self):
        for each in self._kinds:
            each.gather_again()


def _sampled(record, dtype):
    """From the middle of each piece: a write may begin or end with it."""
    every = SAMPLE_EVERY_BYTES
    return record.view(dtype, min(every, record.size) // 2 // _WORD_BYTES * _WORD_BYTES, every)


def _copied_at_once(by_device, proves, wait_for_host, why=None):
    records = list(itertools.chain.from_iterable(by_device.values()))
    for record in records:
        record.in_slot().copy_(record.view().cpu())
    differing = None
    if proves:
        wait_for_host()
        again = (each.number for each in records if not torch.equal(each.in_slot(), each.view().cpu()))
        differing = next(again, None)
    return Copies([], proves, differing, why)


def _gatherable(records):
    """The records in lists of at most GATHERED_BYTES_MAX."""
    pieces, count = [], GATHERED_BYTES_MAX
    for record in records:
        if count + record.size > GATHERED_BYTES_MAX:
            pieces.append([])
            count = 0
        pieces[-1].append(record)
        count += record.size
    return pieces


def _comparable(records):
    """Lists of _Part, of which each takes CHUNK_BYTES at most."""
    pieces, at = [], CHUNK_BYTES
    for record in records:
        begin = 0
        while begin < record.size:
            if at >= CHUNK_BYTES:
                pieces.append([])
                at = 0
            size = min(record.size - begin, CHUNK_BYTES - at)
            pieces[-1].append(_Part(record, begin, size, at))
            at, begin = _aligned(at + size), begin + size
    return pieces


def _aligned(count):
    return -(-count // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def _numbers(values):
    return array.array("Q", values)
