"""What is asked of CUDA; test_checkpoint_device.py has what is copied."""

import array
import contextlib
import ctypes
import os
import types

import pytest

torch = pytest.importorskip("torch")

from checkpoint_agent import CheckpointAgent  # noqa: E402
from phalanx._bootstrap import memory  # noqa: E402
from phalanx.checkpoint import Checkpointer, native  # noqa: E402
from phalanx.checkpoint.copying import cuda, device  # noqa: E402

on_device = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_without_a_device_nothing_is_asked_of_cuda():
    copier = device.Copier(cuda.Driver())
    copier.unpin()
    copies = copier.copy(0x1000, [], pinned=True, proves=True, wait_for_host=list)
    copies.fence()
    copies.go_on(list)
    copies.wait()
    assert copies.land() is None


class Runtime:
    """Notes what is registered. What it refuses it says as CUDA does."""

    def __init__(self):
        self.calls, self.refused = [], set()

    def cudaHostRegister(self, address, count, flags):
        self.calls.append(("register", address))
        return 2 if address in self.refused else 0

    def cudaHostUnregister(self, address):
        self.calls.append(("unregister", address))
        return 0


@pytest.fixture
def runtime(monkeypatch):
    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(cuda.Driver, "can_queue", lambda self: True)
    monkeypatch.setattr(cuda, "_forget_last_error", lambda: runtime.calls.append("forget"))
    return runtime


def test_a_slot_that_was_replaced_is_pinned_anew_and_no_other(runtime):
    copier, slots = device.Copier(cuda.Driver()), {0: (0x1000, 64, (1, 64)), 1: (0x2000, 64, (2, 64))}
    assert copier.pin(slots) is None and copier.pin(slots) is None
    assert runtime.calls == [("register", 0x1000), ("register", 0x2000)]
    runtime.calls.clear()
    copier.unpin(but={0: (1, 64), 1: (3, 64), 2: (0, 64)})
    assert copier.pin({0: slots[0], 1: (0x2000, 64, (3, 64))}) is None
    assert runtime.calls == [("unregister", 0x2000), ("register", 0x2000)], "at the same address as before"
    runtime.calls.clear()
    copier.unpin()
    assert sorted(runtime.calls) == [("unregister", 0x1000), ("unregister", 0x2000)]


def test_what_cuda_refuses_to_pin_leaves_no_error_behind(runtime):
    runtime.refused.add(0x2000)
    why = device.Copier(cuda.Driver()).pin({0: (0x1000, 64, (1, 64)), 1: (0x2000, 64, (2, 64))})
    assert why == "CUDA does not pin a slot of 64 bytes (error 2): copies hold the training"
    assert runtime.calls == [("register", 0x1000), ("register", 0x2000), "forget"]


ASYNC_COPY = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p
)


def test_a_function_is_found_in_what_torch_has_loaded_or_nowhere(monkeypatch):
    assert cuda._find_runtime("MemcpyAsyncOfNobody") is None
    monkeypatch.setattr(torch.version, "hip", "6.0")  # whose functions begin with "hip"
    monkeypatch.setattr(ctypes, "CDLL", lambda path: types.SimpleNamespace(hipMemcpyAsync=ASYNC_COPY(lambda *_: 0)))
    assert cuda._find_runtime("MemcpyAsync")
    monkeypatch.undo()
    native.library()
    (path,) = cuda._loaded("libphalanx_checkpoint")
    assert os.path.samefile(path, native.library()._name)
    assert cuda._loaded("libnobody") == []


def test_without_its_runtime_all_is_copied_at_once(runtime, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(cuda, "_find_runtime", lambda name: None)
    why = device.Copier(cuda.Driver()).pin({0: (0x1000, 64, (1, 64))})
    assert why == "CUDA's runtime was not found in this process: copies hold the training"


@pytest.mark.parametrize("error", [0, 700])
def test_what_cuda_refuses_to_copy_is_said_and_leaves_no_error_behind(runtime, monkeypatch, error):
    """The runtime's function is called with each address, the stream, and the kind that looks at addresses."""
    calls, stream = [], types.SimpleNamespace(cuda_stream=0x77)
    copy = ASYNC_COPY(lambda *call: calls.append(call) or error)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    queue = cuda.Queue("cuda:0", ctypes.cast(copy, ctypes.c_void_p).value)
    numbers = [array.array("Q", each) for each in ([0x1000, 0x2000], [0x3000, 0x4000], [8, 16])]
    if error == 0:
        queue.copy(*numbers)
        assert calls == [(0x1000, 0x3000, 8, 4, 0x77), (0x2000, 0x4000, 16, 4, 0x77)] and runtime.calls == []
        return
    with pytest.raises(RuntimeError, match=r"CUDA queues no copy \(error 700\)"):
        queue.copy(*numbers)
    assert len(calls) == 1 and runtime.calls == ["forget"]


def test_the_files_of_slots_are_those_of_the_page(agent, tmp_path):
    checkpointer = Checkpointer(tmp_path / "run")
    assert checkpointer.save(1, {"x": torch.ones(4)}).wait_staged()
    slots = checkpointer._writer._slots
    assert [slots.file_number(slot) for slot in range(3)] == [agent.page.slot(slot)[1][0] for slot in range(3)]
    checkpointer.close()


def test_a_slot_that_is_not_pinned_is_filled_at_once():
    """By the same way for storages of any device, so also here."""
    slot = bytearray(64)
    first, second = torch.tensor([1, 2, 3], dtype=torch.uint8), torch.tensor([7, 8], dtype=torch.int16)
    places = [(first, 5, True), (torch.empty(0), 9, False), (second, 20, False)]
    records = [
        (number, tensor.untyped_storage(), tensor.data_ptr(), tensor.nbytes, offset, guarded)
        for number, (tensor, offset, guarded) in enumerate(places)
    ]
    copier = device.Copier(cuda.Driver())
    copies = copier.copy(native.address(slot), records, pinned=False, proves=True, wait_for_host=list)
    assert copies.land() is None
    assert bytes(slot) == bytes(5) + b"\1\2\3" + bytes(12) + b"\7\0\10\0" + bytes(40)


@pytest.fixture
def agent(monkeypatch):
    monkeypatch.setenv("PHALANX_EPOCH", "1")
    with CheckpointAgent() as agent:
        memory.keep(agent.rank_fd)
        yield agent
        memory.forget()


@on_device
def test_random_numbers_of_the_device_go_on_where_they_were(agent, tmp_path):
    torch.rand(3, device="cuda")
    with Checkpointer(tmp_path / "run") as checkpointer:
        assert checkpointer.save(1, {"rng": True}).wait_committed()
        drawn = torch.rand(3, device="cuda")
        checkpointer.load()
        assert torch.equal(torch.rand(3, device="cuda"), drawn)
