"""Copies from CUDA devices on a stream of their own, where there is one."""

import pytest

torch = pytest.importorskip("torch")

from checkpoint_agent import CheckpointAgent  # noqa: E402
from phalanx._bootstrap import memory  # noqa: E402
from phalanx.checkpoint import Checkpointer, cuda, native, overlap  # noqa: E402

WIDTH = 2048
on_device = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_without_a_device_nothing_is_asked_of_cuda():
    copier = cuda.Copier()
    copier.unpin()
    copies = copier.copy(0x1000, 64, [], pinned=True)
    copies.fence()
    copies.wait()
    assert copies.are_over()


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
