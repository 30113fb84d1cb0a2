"""Copies from CUDA devices on a stream of their own, where there is one."""

import pytest

torch = pytest.importorskip("torch")

from checkpoint_agent import CheckpointAgent  # noqa: E402
from phalanx._bootstrap import memory  # noqa: E402
from phalanx.checkpoint import Checkpointer, native  # noqa: E402
from phalanx.checkpoint.copying import cuda, overlap  # noqa: E402

WIDTH = 2048
on_device = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_without_a_device_nothing_is_asked_of_cuda():
    copier = cuda.Copier()
    copier.unpin()
    copies = copier.copy(0x1000, 64, [], pinned=True)
    copies.fence()
    copies.wait()
    assert copies.are_over()


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
    monkeypatch.setattr(cuda, "_forget_last_error", lambda: runtime.calls.append("forget"))
    return runtime


def test_a_slot_that_was_replaced_is_pinned_anew_and_no_other(runtime):
    copier, slots = cuda.Copier(), {0: (0x1000, 64, (1, 64)), 1: (0x2000, 64, (2, 64))}
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
    why = cuda.Copier().pin({0: (0x1000, 64, (1, 64)), 1: (0x2000, 64, (2, 64))})
    assert why == "CUDA does not pin a slot of 64 bytes (error 2): copies hold the training"
    assert runtime.calls == [("register", 0x1000), ("register", 0x2000), "forget"]


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
    records = [(first.untyped_storage(), 5, True), (torch.empty(0).untyped_storage(), 9, False)]
    records.append((second.untyped_storage(), 20, False))
    copies = cuda.Copier().copy(native.address(slot), len(slot), records, pinned=False)
    assert copies.are_over()
    assert bytes(slot) == bytes(5) + b"\1\2\3" + bytes(12) + b"\7\0\10\0" + bytes(40)


@pytest.fixture
def agent(monkeypatch):
    monkeypatch.setenv("PHALANX_EPOCH", "1")
    with CheckpointAgent() as agent:
        memory.keep(agent.rank_fd)
        yield agent
        memory.forget()


def make_step(model, optimizer):
    def step():
        optimizer.zero_grad()
        model(torch.randn(64, WIDTH, device="cuda")).square().mean().backward()
        optimizer.step()

    return step


def on_cpu(value):
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {key: on_cpu(inner) for key, inner in value.items()}
    return [on_cpu(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return all(equal(a[key], b[key]) for key in a)
    return all(map(equal, a, b)) if isinstance(a, (list, tuple)) else a == b


@on_device
@pytest.mark.parametrize("settings", [{}, {"fused": True}, {"capturable": True}])
def test_saves_from_a_device_are_as_the_state_was(agent, tmp_path, settings):
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.BatchNorm1d(WIDTH)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), **settings)
    step = make_step(model, optimizer)
    average = torch.zeros(WIDTH, WIDTH, device="cuda")
    step()
    with Checkpointer(tmp_path / "run", verify="never") as checkpointer:
        for number in range(5):
            step()
            before = on_cpu({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "average": average})
            handle = checkpointer.save(number, {"model": model, "optimizer": optimizer, "average": average})
            assert overlap.why_not_with(torch.__version__) or handle.why is None
            average.add_(1.0)  # no optimizer guards it
            step()
            step()
            assert handle.wait_committed(), handle.why
            assert native.check_file(agent.slot_path(agent.sealed()[number])) is None
            loaded, _ = checkpointer.load()
            assert equal(before, loaded)


@on_device
def test_random_numbers_of_the_device_go_on_where_they_were(agent, tmp_path):
    torch.rand(3, device="cuda")
    with Checkpointer(tmp_path / "run") as checkpointer:
        assert checkpointer.save(1, {"rng": True}).wait_committed()
        drawn = torch.rand(3, device="cuda")
        checkpointer.load()
        assert torch.equal(torch.rand(3, device="cuda"), drawn)
