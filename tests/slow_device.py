"""A device that is none, for tests of what is copied from devices: phalanx.checkpoint.copying.cuda.Driver's stand-in.

Its memory is the host's: all of a state but the smallest tensors counts as the device's. Its queues are
threads that do their work late, in pieces, and in any order that a device might choose, so that whoever does not wait
for an event finds half a copy. What the training does it does at once: to hold it is to hold the caller.
"""

import ctypes
import queue
import random
import threading
import time

import torch

LATE_S = 0.002  # at most, before each piece of work
PIECES = 4  # of a copy
FROM_BYTES = 16  # optimizers count steps on the host


class SlowDriver:
    """`is_here(storage)`: of the host's memory, left out of the device's; `devices`: how many there are;
    `no_memory_at`: the how manieth call of Queue.empty from now on finds none; `not_pinned`: what pin() says."""

    def __init__(self, seed=0, devices=1, is_here=lambda storage: False, late_s=LATE_S):
        self._random = random.Random(seed)
        self._devices, self._is_here, self.late_s = devices, is_here, late_s
        self.not_pinned = self.no_memory_at = 0
        self.pinned = set()
        self.queues = []
        self.entered = []  # (thread, device)

    def is_in_use(self):
        return True

    def can_queue(self):
        return True

    def enter_thread(self, device):
        self.entered.append((threading.current_thread().name, device))

    def device_of(self, storage):
        if storage.nbytes() < FROM_BYTES or self._is_here(storage):
            return None
        return storage.data_ptr() // 64 % self._devices

    def pin(self, address, count):
        if self.not_pinned:
            return self.not_pinned
        assert address not in self.pinned
        self.pinned.add(address)
        return 0

    def unpin(self, address):
        self.pinned.remove(address)

    def host_bytes(self, count):
        return torch.empty(count, dtype=torch.uint8)

    def queue(self, device):
        self.queues.append(SlowQueue(self, random.Random(self._random.random()), device))
        return self.queues[-1]


class SlowQueue:
    """One after the other, by a thread."""

    def __init__(self, driver, choose, device):
        self._driver, self._random, self.device = driver, choose, device
        self._work = queue.SimpleQueue()
        self.done = []  # what was done, in order
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            name, call = self._work.get()
            time.sleep(self._random.random() * self._driver.late_s)
            call()
            self.done.append(name)

    def follow_current(self):
        """The training's own work is done: it is the caller's."""

    def follow(self, event):
        self._work.put(("follow", event.synchronize))

    def hold_current(self, event):
        event.synchronize()

    def empty(self, count):
        self._driver.no_memory_at -= 1
        if self._driver.no_memory_at == 0:
            raise torch.cuda.OutOfMemoryError("the device has no memory")
        return torch.empty(count, dtype=torch.uint8).fill_(0xA5)

    def copy(self, to, sources, sizes):
        pieces = []
        for target, source, size in zip(to, sources, sizes):
            count = max(1, -(-size // PIECES))
            pieces.extend((target + at, source + at, min(count, size - at)) for at in range(0, size, count))
        self._random.shuffle(pieces)
        for piece in pieces:
            self._work.put(("copy", lambda piece=piece: ctypes.memmove(*piece)))

    def run(self, *calls):
        for call in calls:
            self._work.put(("run", call))

    def event(self):
        event = SlowEvent()
        self._work.put(("event", event.happened.set))
        return event

    def read(self, call):
        return call()


class SlowEvent:
    def __init__(self):
        self.happened = threading.Event()

    def query(self):
        return self.happened.is_set()

    def synchronize(self):
        self.happened.wait()
