"""Copies from CUDA devices into a slot, on a stream of their own, while the training goes on.

The slot is pinned once per mapping by cudaHostRegister: a copy into memory that is not would hold the training. Nothing
here is used, or asked of CUDA, where no tensor of the state lies on a device.
"""

import ctypes
import threading
import time

import torch

from phalanx.checkpoint import framed


class Copier:
    """Makes the copies of one Checkpointer."""

    def __init__(self):
        self._streams = {}  # device index -> stream
        self._pinned = {}  # address of a slot -> its bytes

    def pin(self, slots):
        """Pins slots, [(address, bytes)], once for each mapping. Why it cannot be, or None."""
        for address, count in slots:
            if address not in self._pinned:
                error = torch.cuda.cudart().cudaHostRegister(address, count, 0)
                if int(error) != 0:
                    return f"CUDA does not pin a slot of {count} bytes (error {int(error)}): copies hold the training"
                self._pinned[address] = count
        return None

    def unpin(self):
        """To be called before the slots are unmapped: CUDA would go on writing to the memory that was there."""
        for address in self._pinned:
            torch.cuda.cudart().cudaHostUnregister(address)
        self._pinned.clear()

    def copy(self, address, count, records, pinned):
        """Queues the copies into the slot and returns what follows them. `records`: (storage, offset, guarded) each.

        Behind this call the current stream of each device goes on only when the unguarded ones are copied; what
        changes the guarded ones must call `Copies.fence` first. Into a slot that is not pinned all is copied before
        this returns.
        """
        slot = torch.frombuffer((ctypes.c_uint8 * count).from_address(address), dtype=torch.uint8)
        by_device = {}
        for storage, offset, guarded in records:
            if storage.nbytes() > 0:
                by_device.setdefault(storage.device, []).append((guarded, storage, offset))
        if not pinned:
            for _, storage, offset in [record for wanted in by_device.values() for record in wanted]:
                slot[offset : offset + storage.nbytes()].copy_(_bytes_of(storage).cpu())
            return Copies([])
        return Copies([self._copy_from(device, slot, wanted) for device, wanted in by_device.items()])

    def _copy_from(self, device, slot, wanted):
        current = torch.cuda.current_stream(device)
        side = self._streams.get(device.index)
        if side is None:
            side = self._streams[device.index] = torch.cuda.Stream(device)
        side.wait_stream(current)
        unguarded_done = None
        with torch.cuda.stream(side):
            for guarded, storage, offset in sorted(wanted, key=lambda record: record[0]):
                if guarded and unguarded_done is None:
                    unguarded_done = side.record_event()
                slot[offset : offset + storage.nbytes()].copy_(_bytes_of(storage), non_blocking=True)
            all_done = side.record_event()
        current.wait_event(unguarded_done or all_done)
        return device, all_done


def _bytes_of(storage):
    whole, begin = storage.whole() if isinstance(storage, framed.Part) else (storage, 0)
    source = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return source.set_(whole, begin, (storage.nbytes(),), (1,))


class Copies:
    """Copies that are under way on one or more devices."""

    def __init__(self, events):
        self._events = events  # (device, event) each
        self._waiting = None  # a thread, for who waits no longer than some time

    def fence(self):
        """What is queued from now on, on the current streams, runs behind the copies. Does not block."""
        for device, event in self._events:
            torch.cuda.current_stream(device).wait_event(event)

    def are_over(self):
        return all(event.query() for _, event in self._events)

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

    def _synchronize(self):
        for _, event in self._events:
            event.synchronize()
