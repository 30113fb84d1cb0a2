"""Mapping an image: what torch.load(mmap=True, weights_only=True) gives, or NotPlain; never anything else."""

import hashlib
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from phalanx.checkpoint import selftest  # noqa: E402
from phalanx.checkpoint.formats import mapped, plan  # noqa: E402
from test_checkpoint_plan import (  # noqa: E402
    buffer_of_others,
    odd_sizes,
    same,
    shared,
    training,
    with_metadata,
)

KINDS = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool".split()


def kinds():
    return {name: torch.arange(48, dtype=torch.uint8).view(getattr(torch, name))[1:] for name in KINDS}


def plain_values():
    return {"long": 1 << 80, "none": None, 3: [1.5, (1, 2), "x" * 300], "b": True, "list": [[], {}, torch.ones(2)]}


def with_grad():
    return {"grad": torch.ones(2, requires_grad=True), "none": torch.ones(2)}


READ = [buffer_of_others, kinds, odd_sizes, plain_values, shared, training, with_grad, with_metadata]


def image_of(state, folder):
    return selftest.write_image(str(folder), plan.Describer().describe(state))


def digest(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


@pytest.mark.parametrize("make", READ, ids=lambda make: make.__name__)
def test_it_gives_what_torch_load_gives(make, tmp_path):
    path = image_of(make(), tmp_path)
    expected = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    assert same(expected, mapped.load(path))


@pytest.mark.parametrize("make", READ, ids=lambda make: make.__name__)
def test_without_arrays(make, tmp_path, monkeypatch):
    """As where there is no numpy."""
    monkeypatch.setattr(mapped, "_ARRAYS", {})
    test_it_gives_what_torch_load_gives(make, tmp_path)


def test_what_shares_memory_shares_it_again(tmp_path):
    loaded = mapped.load(image_of(shared(), tmp_path))
    loaded["a"].fill_(7.0)
    assert loaded["tied"].eq(7).all() and loaded["view"].eq(7).all() and loaded["transposed"].eq(7).all()
    assert len({tensor.untyped_storage()._cdata for tensor in loaded.values()}) == 1


def test_each_record_has_memory_of_its_own(tmp_path):
    """Else the next save of what was loaded would see one storage, as large as the image."""
    loaded = mapped.load(image_of({"a": torch.ones(100), "b": torch.ones(200)}, tmp_path))
    assert [loaded[key].untyped_storage().nbytes() for key in "ab"] == [400, 800]


def test_the_metadata_of_a_module(tmp_path):
    assert mapped.load(image_of(with_metadata(), tmp_path))._metadata == with_metadata()._metadata


def test_writing_does_not_reach_the_image(tmp_path):
    path = image_of({"a": torch.ones(1 << 16)}, tmp_path)
    before = digest(path)
    loaded = mapped.load(path)
    loaded["a"].mul_(2)
    assert loaded["a"].eq(2).all()
    assert digest(path) == before


def test_what_was_saved_on_cuda_comes_to_the_cpu(tmp_path):
    path = changed_image(tmp_path, {"a": torch.arange(6.0)}, lambda data: data.replace(b"X\x03\x00\x00\x00cpu", CUDA))
    loaded = mapped.load(path)
    assert loaded["a"].device.type == "cpu"
    assert loaded["a"].tolist() == [0, 1, 2, 3, 4, 5]


CUDA = b"X\x06\x00\x00\x00cuda:0"


def changed_image(folder, state, changed):
    """An image with another pickle."""
    image = plan.Describer().describe(state)
    pickled = image.pickle
    image.pickle = changed(pickled)
    assert image.pickle != pickled
    return selftest.write_image(str(folder), image)


WRAPPED, FLOAT = torch.ones(6).untyped_storage(), torch.float32
NOT_READ = {
    "parameter": lambda: {"p": torch.nn.Parameter(torch.ones(2))},
    "complex": lambda: {"c": torch.ones(2, dtype=torch.complex64)},
    "conjugate": lambda: {"c": torch.tensor([1 + 2j]).conj()},
    "storage": lambda: {"s": torch.arange(6).untyped_storage()},
    "typed storage": lambda: {
        "t": torch.ones(2),
        "s": torch.storage.TypedStorage(wrap_storage=WRAPPED, dtype=FLOAT, _internal=True),
    },
    "size": lambda: {"s": torch.Size([1, 2])},
    "set": lambda: {"s": {1, 2}},
}


@pytest.mark.parametrize("name", NOT_READ)
def test_anything_else_is_left_to_torch_load(name, tmp_path):
    with pytest.raises(mapped.NotPlain):
        mapped.load(image_of(NOT_READ[name](), tmp_path))


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (self.path,))


def test_nothing_in_a_pickle_is_called_but_what_makes_tensors(tmp_path):
    made = str(tmp_path / "made")
    path = image_of({"a": torch.ones(2), "evil": Evil(made)}, tmp_path)
    with pytest.raises(mapped.NotPlain, match=r"posix\.mkdir"):
        mapped.load(path)
    assert not os.path.exists(made)


FOREIGN_STORAGES = {
    "longer than its record": (b"K\x06tq", b"K\x07tq"),
    "one that is not there": (b"X\x01\x00\x00\x000", b"X\x01\x00\x00\x001"),
    "one before the first": (b"X\x01\x00\x00\x000", b"X\x02\x00\x00\x00-1"),
    "without a number": (b"X\x01\x00\x00\x000", b"X\x01\x00\x00\x00x"),
    "on another device": (b"X\x03\x00\x00\x00cpu", b"X\x03\x00\x00\x00xpu"),
    "with half a number of elements": (b"K\x06tq", b"G\x40\x18" + bytes(6) + b"tq"),
}


@pytest.mark.parametrize("what", FOREIGN_STORAGES)
def test_a_storage_that_is_none_of_the_image(what, tmp_path):
    old, new = FOREIGN_STORAGES[what]
    path = changed_image(tmp_path, {"a": torch.ones(6)}, lambda data: data.replace(old, new))
    with pytest.raises(mapped.NotPlain, match="storage"):
        mapped.load(path)


def test_a_file_that_is_no_image(tmp_path):
    path = tmp_path / "text"
    path.write_text("text" * 100)
    with pytest.raises(mapped.NotPlain, match="not an image"):
        mapped.load(str(path))


@pytest.mark.parametrize("elements", [7, (1 << 31) - 1])
def test_no_tensor_reaches_behind_its_record(elements, tmp_path):
    longer = b"J" + elements.to_bytes(4, "little") + SHAPE_ENDS
    path = changed_image(tmp_path, {"a": torch.ones(6)}, lambda data: data.replace(b"K\x06" + SHAPE_ENDS, longer))
    with pytest.raises(RuntimeError, match="storage"):
        mapped.load(path)


SHAPE_ENDS = b"\x85"  # a tuple of one
