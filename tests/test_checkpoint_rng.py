"""Random numbers as they are captured and restored."""

import random

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

from phalanx.checkpoint.state import rng  # noqa: E402


def draws():
    """Of each generator, and of what is kept of a pair of normal numbers."""
    return (
        random.random(),
        random.gauss(0, 1),
        numpy.random.standard_normal(),
        numpy.random.rand(),
        torch.rand(3).tolist(),
    )


@pytest.mark.parametrize("half", [False, True], ids=["no half", "half"])
@pytest.mark.parametrize("kept", [False, True], ids=["new", "kept"])
def test_what_is_restored_draws_the_same(kept, half):
    """`half`: of a pair of normal numbers one is left."""
    into = {} if kept else None
    rng.capture(into=into)
    random.seed(5)
    numpy.random.seed(5)
    if half:
        random.gauss(0, 1)
        numpy.random.standard_normal()
    found = rng.capture(into=into)
    expected = draws()
    draws()
    rng.restore(found)
    assert draws() == expected


def test_memory_that_is_kept():
    """The tensors stay, what is in them follows."""
    kept = {}
    before = rng.capture(into=kept)
    alone = rng.capture()
    draws()
    after = rng.capture(into=kept)
    for one, other in zip(tensors(before), tensors(after)):
        assert one is other
    assert not torch.equal(after["torch"], alone["torch"])
    assert all(one is not other for one, other in zip(tensors(after), tensors(alone)))


def tensors(found):
    numbers = [found["python"]["words"], found["torch"], found["numpy"]["state"]["key"]["words"]]
    assert all(isinstance(tensor, torch.Tensor) for tensor in numbers)
    return numbers


def test_memory_of_inference_mode():
    """Which cannot be written to later: it is replaced."""
    kept = {}
    with torch.inference_mode():
        rng.capture(into=kept)
    draws()
    found = rng.capture(into=kept)
    expected = draws()
    rng.restore(found)
    assert draws() == expected


def test_what_others_drew_from(monkeypatch):
    """Generators of numpy whose state is whole numbers of more than 64 bits, and of arrays of another length."""
    kept = {}
    for kind in (numpy.random.PCG64, numpy.random.Philox, numpy.random.MT19937):
        state = numpy.random.RandomState(kind(5))
        monkeypatch.setattr(numpy.random, "get_state", state.get_state)
        monkeypatch.setattr(numpy.random, "set_state", state.set_state)
        found = rng.capture(into=kept)
        expected = state.rand(7).tolist()
        rng.restore(found)
        assert state.rand(7).tolist() == expected
