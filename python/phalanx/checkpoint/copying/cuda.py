"""Copies from CUDA devices into a slot, on a stream of their own, while the training goes on.

The slot is pinned once per mapping by cudaHostRegister: a copy into memory that is not would hold the training. Nothing
here is used, or asked of CUDA, where no tensor of the state lies on a device.
"""

import ctypes
import threading
import time

import torch

from phalanx.checkpoint.formats import framed


class Copier:
    """Makes the copies of one Checkpointer."""

    def __init__(self):
        self._streams = {}  # device index -> stream
        self._pinned = {}  # slot -> (address, file) of its mapping

    def pin(self, slots):
        """Pins slots, {slot: (address, bytes, file)}, once for each mapping. Why it cannot be, or None."""
        for slot, (address, count, file) in slots.items():
            if slot in self._pinned:
                continue
            error = int(torch.cuda.cudart().cudaHostRegister(address, count, 0))
            if error != 0:
                _forget_last_error()
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
            if int(torch.cuda.cudart().cudaHostUnregister(address)) != 0:
                _forget_last_error()

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


def _forget_last_error():
    """The training's next kernel would raise it as its own. torch has no call for that; its libraries have loaded
    CUDA's for all to see."""
    forget = getattr(ctypes.CDLL(None), "cudaGetLastError", None)
    if forget is not None:
        forget()


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
