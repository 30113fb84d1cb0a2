"""What is asked of CUDA: memory that it pins, and queues of work on its devices. device.py decides what is queued.

Nothing here is asked of CUDA where no tensor of the state lies on a device.
"""

import ctypes

import torch


class Driver:
    """CUDA, as torch gives it."""

    def is_in_use(self):
        return torch.cuda.is_initialized()

    def device_of(self, storage):
        """None where it lies on the host."""
        return storage.device if storage.device.type == "cuda" else None

    def pin(self, address, count):
        """cudaHostRegister's error; 0: it is pinned."""
        error = int(torch.cuda.cudart().cudaHostRegister(address, count, 0))
        if error != 0:
            _forget_last_error()
        return error

    def unpin(self, address):
        if int(torch.cuda.cudart().cudaHostUnregister(address)) != 0:
            _forget_last_error()

    def host_bytes(self, count):
        """Memory of the host, pinned where CUDA pins it: a copy into other memory holds the caller."""
        try:
            return torch.empty(count, dtype=torch.uint8, device="cpu", pin_memory=True)
        except RuntimeError:
            return torch.empty(count, dtype=torch.uint8, device="cpu")

    def queue(self, device):
        return Queue(device)


class Queue:
    """Work on one device, beside what the training has queued there. No call waits for any of it."""

    def __init__(self, device):
        self.device = device
        self._stream = torch.cuda.Stream(device)

    def follow_current(self):
        """What comes next runs behind all that the training has queued."""
        self._stream.wait_stream(torch.cuda.current_stream(self.device))

    def follow(self, event):
        """What comes next runs behind another queue's event."""
        self._stream.wait_event(event)

    def hold_current(self, event):
        """What the training queues from now on runs behind the event."""
        torch.cuda.current_stream(self.device).wait_event(event)

    def empty(self, count):
        """Bytes on the device, for this queue alone. torch.cuda.OutOfMemoryError where it has none."""
        with torch.cuda.stream(self._stream):
            return torch.empty(count, dtype=torch.uint8, device=self.device)

    def copy(self, pairs):
        """[(to, from)] of as many bytes each, in any order."""
        with torch.cuda.stream(self._stream):
            for to, source in pairs:
                to.copy_(source, non_blocking=True)

    def run(self, *calls):
        """Each queues operations of torch on tensors of this device."""
        with torch.cuda.stream(self._stream):
            for call in calls:
                call()

    def event(self):
        """Has query() and synchronize(): over when all is that was queued here until now."""
        return self._stream.record_event()

    def read(self, call):
        """What `call` gives, a tensor of this device, on the host: behind all that is queued here."""
        with torch.cuda.stream(self._stream):
            return call().cpu()


def _forget_last_error():
    """The training's next kernel would raise it as its own. torch has no call for that; its libraries have loaded
    CUDA's for all to see."""
    forget = getattr(ctypes.CDLL(None), "cudaGetLastError", None)
    if forget is not None:
        forget()
