"""Random numbers as they are captured and restored."""

import random

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

from phalanx.checkpoint import rng  # noqa: E402


def draws():
    """Of each generator, and of what is kept of a pair of normal numbers."""
    return (
        random.random(),
        random.gauss(0, 1),
        numpy.random.standard_normal(),
        numpy.random.rand(),
        torch.rand(3).tolist(),
    )


@pytest.fixture(autouse=True)
def half_a_pair_is_left():
    random.gauss(0, 1)
    numpy.random.standard_normal()


@pytest.mark.parametrize("into", [None, {}], ids=["new", "kept"])
def test_what_is_restored_draws_the_same(into):
    rng.capture(into=into)
    draws()
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
