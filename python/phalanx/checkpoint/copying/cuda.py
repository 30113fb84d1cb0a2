"""What is asked of CUDA: memory that it pins, and queues of work on its devices. device.py decides what is queued.

Nothing here is asked of CUDA where no tensor of the state lies on a device.
"""

import ctypes

import torch

from phalanx.checkpoint import native

_CAPTURES_DO_NOT_MIND = 2  # cudaStreamCaptureModeRelaxed


class Driver:
    """CUDA, as torch gives it, and of its runtime the copy that torch gives for tensors alone."""

    def __init__(self):
        self._functions = {}  # of the runtime, as they were found: once, as many saves ask for them

    def is_in_use(self):
        return torch.cuda.is_initialized()

    def can_queue(self):
        """Whether copies can be queued: to be asked where CUDA is in use."""
        return self._function("MemcpyAsync") is not None

    def _function(self, name):
        if name not in self._functions:
            self._functions[name] = _find_runtime(name)
        return self._functions[name]

    def enter_thread(self, device):
        """To be called first in a thread that queues: else its device is the first one, on which each `with stream`
        would make a context, and what it asks for would end a graph that the training captures meanwhile."""
        torch.cuda.set_device(device)
        exchange = self._function("ThreadExchangeStreamCaptureMode")
        if exchange is not None:
            mode = ctypes.c_int(_CAPTURES_DO_NOT_MIND)
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))(exchange)(ctypes.byref(mode))

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
        return Queue(device, self._function("MemcpyAsync"))


class Queue:
    """Work on one device, beside what the training has queued there. No call waits for any of it."""

    def __init__(self, device, copy):
        """`copy`: the address of cudaMemcpyAsync."""
        self.device, self._copy = device, copy
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

    def copy(self, to, sources, sizes):
        """Memory, between addresses of this device and of pinned memory of the host, in any order. Arrays of u64. Holds
        the caller, without Python's lock, where the device's own queue is full. RuntimeError where CUDA refuses."""
        with torch.cuda.stream(self._stream):
            error = native.queue_copies(self._copy, self._stream.cuda_stream, to, sources, sizes)
        if error != 0:
            _forget_last_error()
            raise RuntimeError(f"CUDA queues no copy (error {error})")

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


def _find_runtime(name):
    """The address of a function, without the "cuda" or "hip" before it, of the runtime that torch has loaded, or
    None."""
    whole = ("hip" if torch.version.hip else "cuda") + name
    for path in (None, *_loaded("libcudart", "libamdhip64")):
        try:
            function = getattr(ctypes.CDLL(path), whole, None)
        except OSError:  # its file was replaced since
            continue
        if function is not None:
            return ctypes.cast(function, ctypes.c_void_p).value
    return None


def _loaded(*names):
    """Paths of the libraries of this process that are called so: not every torch shows them to all others."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if line.count("/") and ".so" in line}
    return sorted(path for path in paths if path.rpartition("/")[2].startswith(names))


def _forget_last_error():
    """The training's next kernel would raise it as its own. torch has no call for that."""
    forget = _find_runtime("GetLastError")
    if forget is not None:
        ctypes.CFUNCTYPE(ctypes.c_int)(forget)()
