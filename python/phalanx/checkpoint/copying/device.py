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

import torch

from phalanx.checkpoint import native
from phalanx.checkpoint.formats import framed

# Of one comparison; as much memory is taken of a device that large records are copied from.
CHUNK_BYTES = 32 << 20
# What is no larger is gathered on the device and copied in one piece.
SMALL_BYTES = 64 << 10
GATHERED_BYTES_MAX = 4 << 20  # of one piece
SAMPLE_EVERY_BYTES = 256 << 10  # one word of so many
_NO_MEMORY = "the device has no memory for the second look: copied before save() returned"
_WORD_BYTES = 8


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

    @torch.inference_mode(False)
    def copy(self, address, count, records, pinned, proves, wait_for_host):
        """Queues the copies into the slot and returns what follows them. `records`: (number, storage, offset, guarded)
        each; `proves`: they are looked at twice. `wait_for_host()` returns when all is copied that the host copies.

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
            return _copied_at_once(by_device, proves, wait_for_host)
        try:
            parts = self._begin(by_device, proves)
        except torch.cuda.OutOfMemoryError:
            return _copied_at_once(by_device, proves, wait_for_host, why=_NO_MEMORY)
        return Copies(parts, proves)

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

    def __init__(self, parts, proves, differing=None, why=None):
        """`why`: of a save that was copied before this was there."""
        self._parts, self._proves, self.why = parts, proves, why
        self._differing = differing

    @torch.inference_mode(False)
    def look_again(self):
        """Queues the second look: to be called once, when all is copied that others copy. Where it raises, what was
        copied is not proven."""
        if not self._proves:
            return
        for part, other in itertools.permutations(self._parts, 2):
            part.queue.follow(other.copied)
        for part in self._parts:
            part.look_again()

    def fence(self):
        """What is queued from now on, on the current streams, runs behind what was queued here. Does not block."""
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
        queue.run(self._looks.clear)
        self._samples.take()
        self._at_once.copy()
        if self._proves:
            self._at_once.look_again()
        held = queue.event()
        self._later.copy()
        self.copied = self.over = queue.event()
        queue.hold_current(held)

    def look_again(self):
        try:
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
    """Comparisons on one device, and what they came to: a byte each, 1 where the two were not the same."""

    def __init__(self, queue):
        self._queue = queue
        self._names = []  # call each: the number of the record that differed
        self._largest = 0  # of what is compared with the slot, in bytes
        self._most = 0  # words or bytes of a comparison
        self._found = self._unequal = self._scratch = None

    def add(self, name, count):
        """The number of a comparison of so many words, or bytes, on the device."""
        self._names.append(name)
        self._most = max(self._most, count)
        return len(self._names) - 1

    def add_with_slot(self, name, source):
        self._largest = max(self._largest, source.numel())
        return self.add(name, source.numel() // _WORD_BYTES if _has_words(source) else source.numel())

    def take_memory(self):
        self._found = self._queue.empty(len(self._names)).view(torch.bool)
        self._unequal = self._queue.empty(self._most).view(torch.bool)
        self._scratch = self._queue.empty(self._largest)

    def clear(self):
        self._found.zero_()

    def calls_with_slot(self, look, to, source):
        """What the queue is to run."""
        was_copied = self._scratch[: source.numel()]
        bring = functools.partial(was_copied.copy_, to, non_blocking=True)
        return bring, functools.partial(self.compare, look, was_copied, source)

    def compare(self, look, first, second):
        first, second = _in_words(first, second)
        unequal = self._unequal[: first.numel()]
        torch.ne(first, second, out=unequal)
        torch.any(unequal, out=self._found[look])

    def first_that_differed(self):
        found = self._queue.read(lambda: self._found).tolist()
        return next((name() for name, differed in zip(self._names, found) if differed), None)


class _Group:
    """Records of one device that are copied at the same time."""

    def __init__(self, queue, driver, records, looks, proves):
        self._queue, self._looks = queue, looks
        self.large = [each for each in records if each.source.numel() > SMALL_BYTES]
        small = [each for each in records if each.source.numel() <= SMALL_BYTES]
        self._gathered = [_Gathered(queue, driver, each, looks, proves) for each in _pieces(small)]
        self._chunks = []  # (look, in the slot, on the device)
        for record in self.large if proves else ():
            size = _comparable_bytes(record.source)
            for to, source in zip(record.to().split(size), record.source.split(size)):
                look = looks.add_with_slot(functools.partial(int, record.number), source)
                self._chunks.append((look, to, source))

    def copy(self):
        for each in self._gathered:
            each.copy()
        self._queue.copy([(each.to(), each.source) for each in self.large])

    def look_again(self):
        for each in self._gathered:
            each.look_again()
        calls = (self._looks.calls_with_slot(*chunk) for chunk in self._chunks)
        self._queue.run(*itertools.chain.from_iterable(calls))

    def land(self):
        for each in self._gathered:
            each.land()


class _Twice:
    """Pieces of a device's memory that are gathered into one, twice, and compared there."""

    def __init__(self, queue, sources, numbers, looks, proves):
        """`numbers`: of which record each piece is."""
        self._queue, self._sources, self._numbers, self._looks = queue, sources, numbers, looks
        self.ends = list(itertools.accumulate(each.numel() * each.element_size() for each in sources))
        self.first, self._second = queue.empty(self.ends[-1]), queue.empty(self.ends[-1] if proves else 0)
        self._look = looks.add(self._name, self.ends[-1]) if proves else None

    def gather(self):
        self._queue.run(functools.partial(self._gather, self.first))

    def gather_again(self):
        compare = functools.partial(self._looks.compare, self._look, self.first, self._second)
        self._queue.run(functools.partial(self._gather, self._second), compare)

    def _gather(self, into):
        torch.cat(self._sources, out=into.view(self._sources[0].dtype))

    def _name(self):
        differs = self._queue.read(lambda: torch.ne(self.first, self._second).nonzero())
        return self._numbers[bisect.bisect_right(self.ends, int(differs[0]))]


class _Gathered:
    """Small records: one piece of memory on the device, from where one copy brings them to the host."""

    def __init__(self, queue, driver, records, looks, proves):
        self._queue, self._records = queue, records
        sources, numbers = [each.source for each in records], [each.number for each in records]
        self._twice = _Twice(queue, sources, numbers, looks, proves)
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
    """A word of each SAMPLE_EVERY_BYTES that are copied later, as they were when the save began: what writes a whole
    tensor before its copy has come to it is found by them."""

    def __init__(self, queue, records, looks):
        self._kinds = []
        for are_words in (True, False):
            chosen = [each for each in records if _has_words(each.source) == are_words]
            sources = [_sampled(each.source, are_words) for each in chosen]
            if chosen:
                self._kinds.append(_Twice(queue, sources, [each.number for each in chosen], looks, proves=True))

    def take(self):
        for each in self._kinds:
            each.gather()

    def look_again(self):
        for each in self._kinds:
            each.gather_again()


def _sampled(source, are_words):
    """From the middle of each piece: a write may begin or end with it."""
    every = SAMPLE_EVERY_BYTES
    begin = min(every, source.numel()) // 2 // _WORD_BYTES * _WORD_BYTES
    if not are_words:
        return source[begin::every]
    return source.view(torch.int64)[begin // _WORD_BYTES :: every // _WORD_BYTES]


def _copied_at_once(by_device, proves, wait_for_host, why=None):
    records = list(itertools.chain.from_iterable(by_device.values()))
    for record in records:
        record.to().copy_(record.source.cpu())
    differing = None
    if proves:
        wait_for_host()
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


def _has_words(piece):
    """Whether a device may look at it as at numbers of 8 bytes, and so compare it faster."""
    return piece.numel() % _WORD_BYTES == 0 and piece.data_ptr() % _WORD_BYTES == 0


def _in_words(*pieces):
    are_words = all(map(_has_words, pieces)) and all(each.storage_offset() % _WORD_BYTES == 0 for each in pieces)
    return [each.view(torch.int64) for each in pieces] if are_words else pieces


def _comparable_bytes(source):
    """As many bytes of it as are compared at a time: a comparison takes a byte of the device for each word, or byte."""
    return CHUNK_BYTES if _has_words(source) else max(1, CHUNK_BYTES // _WORD_BYTES)


def _bytes_of(storage):
    whole, begin = storage.whole() if isinstance(storage, framed.Part) else (storage, 0)
    source = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return source.set_(whole, begin, (storage.nbytes(),), (1,))
