"""What a state is as an image: the pickle of torch.save byte for byte, the same values when stock torch.load reads it,
and a name for what cannot be saved."""

import io
import zipfile
from collections import OrderedDict, namedtuple

import pytest

torch = pytest.importorskip("torch")

from phalanx.checkpoint import CannotSave, describing, native, selftest  # noqa: E402
from phalanx.checkpoint.formats import plan  # noqa: E402
from phalanx.checkpoint.state import loadable, refuse, states  # noqa: E402

Pair = namedtuple("Pair", "first second")


def stock(state):
    """(data.pkl, [bytes of each storage]) as torch.save writes them."""
    stream = io.BytesIO()
    torch.save(state, stream)
    with zipfile.ZipFile(stream) as archive:
        names = archive.namelist()
        prefix = names[0].split("/")[0]
        count = sum(name.startswith(f"{prefix}/data/") for name in names)
        return archive.read(f"{prefix}/data.pkl"), [archive.read(f"{prefix}/data/{key}") for key in range(count)]


def same(a, b):
    if isinstance(a, torch.Tensor):
        return (
            type(a) is type(b)
            and (a.dtype, a.shape, a.stride(), a.requires_grad) == (b.dtype, b.shape, b.stride(), b.requires_grad)
            and bytes_of(a) == bytes_of(b)
        )
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    if type(a).__module__ == "numpy":
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    return a == b


def bytes_of(tensor):
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return bytes(plain.reshape(-1).view(torch.uint8).tolist()) if plain.numel() else b""


def shared():
    weight = torch.randn(10, 10)
    return {"a": weight, "tied": weight, "view": weight[3], "transposed": weight.t(), "detached": weight.detach()}


def kinds():
    names = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64 complex128".split()
    younger = "uint16 uint32 uint64 float8_e4m3fn float8_e5m2 float8_e4m3fnuz complex32".split()
    found = [getattr(torch, name) for name in [*names, *younger] if hasattr(torch, name)]
    # An element before the first one, and bytes that are all different.
    return [
        tensor for tensor in (torch.arange(48, dtype=torch.uint8).view(kind)[1:] for kind in found) if is_saved(tensor)
    ]


def is_saved(tensor):
    """Whether this torch saves such a tensor; where it does not, it is named."""
    try:
        torch.save(tensor, io.BytesIO())
    except KeyError:
        with pytest.raises(CannotSave, match=r"^state\['x'\]: torch .* cannot save torch"):
            plan.Describer().describe({"x": tensor})
        return False
    return True


def training():
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "step": 7,
    }


def buffer_of_others():
    return {"whole": torch.randn(100)[10:20], "row": torch.randn(8, 8)[:, 3], "expanded": torch.ones(1).expand(4, 4)}


def odd_sizes():
    return [torch.empty(0), torch.empty(3, 0, 2), torch.tensor(5), torch.tensor([True]), torch.empty(2, 0).t()]


def flagged():
    conj, neg = torch.tensor([1 + 2j, 3 - 4j]).conj(), torch.tensor([5 + 6j, 7 - 8j]).conj().imag
    return {"conj": conj, "neg": neg, "grad": torch.ones(2, requires_grad=True)}


def with_metadata():
    module = torch.nn.Linear(2, 2).state_dict()
    assert module._metadata
    return module


def values():
    return {"text": "x" * 300, "long": 1 << 80, "none": None, 3: [1.5, (1, 2), {"a"}], "list": [[], {}], "b": b"abc"}


PLAIN = {
    function.__name__: function
    for function in (shared, kinds, training, buffer_of_others, odd_sizes, flagged, with_metadata, values)
}
PLAIN["parameters"] = lambda: {"p": torch.nn.Parameter(torch.randn(3, 3)), "list": [torch.nn.Parameter(torch.ones(1))]}
PLAIN["storages"] = lambda: {"untyped": torch.arange(6).untyped_storage(), "typed": torch.FloatStorage([1.0, 2.0])}
PLAIN["named tuple"] = lambda: Pair(torch.ones(2), torch.zeros(2))
PLAIN["attribute"] = lambda: with_attribute(torch.ones(3))
PLAIN["many"] = lambda: [torch.full((3,), float(n)) for n in range(300)]


def with_attribute(tensor):
    tensor.note = "kept by torch.save"
    return tensor


@pytest.fixture(params=sorted(PLAIN))
def state(request):
    return PLAIN[request.param]()


def test_the_pickle_and_the_storages_are_those_of_torch_save(state):
    describer = plan.Describer()
    pickled, storages = stock(state)
    for _ in range(3):  # the second time from what is remembered
        image = describer.describe(state)
        assert image.pickle == pickled
        assert [bytes(storage.tolist()) for storage in image.storages] == storages
        assert list(image.sizes) == [len(data) for data in storages]
        assert list(image.pointers) == [storage.data_ptr() for storage in image.storages]


@pytest.mark.parametrize("mmap", [False, True])
def test_stock_torch_load_reads_the_image(state, mmap, tmp_path):
    path = selftest.write_image(str(tmp_path), plan.Describer().describe(state))
    assert native.check_file(path) is None
    stream = io.BytesIO()
    torch.save(state, stream)
    stream.seek(0)
    expected = torch.load(stream, weights_only=False)
    loaded = torch.load(path, map_location="cpu", mmap=mmap, weights_only=False)
    if isinstance(state, dict) and "untyped" in state:
        assert [s.tolist() for s in loaded.values()] == [s.tolist() for s in expected.values()]
    else:
        assert same(expected, loaded)


def test_numpy_arrays_lie_in_the_pickle(tmp_path):
    numpy = pytest.importorskip("numpy")
    state = {"array": numpy.arange(5), "scalar": numpy.float32(2.5), "over the same memory": torch.arange(3)}
    image = plan.Describer().describe(state)
    assert image.pickle == stock(state)[0] and len(image.sizes) == 1
    loaded = torch.load(selftest.write_image(str(tmp_path), image), weights_only=False)
    assert same(state, loaded)


def changed(change):
    """A state that is described, changed in place, and described again by the same Describer: as by a fresh one?"""
    state = {"a": torch.arange(12.0).reshape(3, 4), "b": torch.ones(4), "s": torch.rand(3, 3), "p": torch.rand(9)[2:5]}
    describer = plan.Describer()
    describer.describe(state)
    change(state)
    pickled, storages = stock(state)
    for _ in range(2):
        image = describer.describe(state)
        assert image.pickle == pickled
        assert [bytes(storage.tolist()) for storage in image.storages] == storages
        assert list(image.pointers) == [storage.data_ptr() for storage in image.storages]
        assert list(image.sizes) == [storage.nbytes() for storage in image.storages]


CHANGES = {
    "transposed in place": lambda s: s["a"].t_(),
    "a square transposed in place": lambda s: s["s"].t_(),
    "another part of it": lambda s: s["b"].set_(s["s"].untyped_storage(), 2, (4,), (1,)),
    "the part behind": lambda s: s.update(s=s["s"].as_strided((3, 3), (1, 0), 1)),
    "more memory": lambda s: s["b"].untyped_storage().resize_(64),
    "other data": lambda s: setattr(s["a"], "data", torch.ones(2, 2)),
    "other type": lambda s: setattr(s["a"], "data", torch.ones(3, 4, dtype=torch.int32)),
    "resized": lambda s: s["b"].resize_(9),
    "wants a gradient": lambda s: s["b"].requires_grad_(),
    "an attribute": lambda s: setattr(s["b"], "note", 1),
    "the first is gone": lambda s: s.pop("a"),
    "another order": lambda s: s.update(a=s.pop("a")),
    "one more view": lambda s: s.update(d=s["a"][1:]),
    "a view instead": lambda s: s.update(a=s["a"][1:]),
    "the last is gone": lambda s: s.pop("p"),
    "the part beside": lambda s: s.update(p=s["p"].as_strided((3,), (1,), 3)),
    "one more behind": lambda s: s.update(d=torch.ones(2)),
    "the same one twice": lambda s: s.update(d=s["a"]),
    "another storage of the same memory": lambda s: s.update(d=torch.from_numpy(s["b"].numpy())),
    "a negative view": lambda s: s.update(b=torch._neg_view(s["b"])),
    "a parameter instead": lambda s: s.update(b=torch.nn.Parameter(s["b"])),
    "a storage instead": lambda s: s.update(b=s["b"].untyped_storage()),
    "a value behind": lambda s: s.update(step=1 << 40),
    "another storage": lambda s: s.update(b=torch.full((4,), 5.0)),
}


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_what_is_remembered_of_a_tensor_holds_no_longer_than_the_tensor_is_the_same(change):
    changed(CHANGES[change])


def quantised():
    return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)


def freed():
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


REFUSED = {
    "sparse tensors are not supported": lambda: torch.eye(3).to_sparse(),
    "sparse tensors are not supported; save its to_dense": lambda: torch.eye(3).to_sparse_csr(),
    "quantised tensors are not supported": quantised,
    "a meta tensor has no data": lambda: torch.ones(3, device="meta"),
    "nested tensors are not supported": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "its memory is not there": freed,
    "a meta tensor": lambda: torch.nn.Parameter(torch.ones(3, device="meta")),
}


@pytest.mark.parametrize("why", sorted(REFUSED))
def test_what_cannot_be_saved_is_named_by_its_path(why):
    state = {"model": OrderedDict([("fc.weight", torch.ones(2)), ("emb.weight", REFUSED[why]())]), "step": 1}
    with pytest.raises(CannotSave) as refusal:
        plan.Describer().describe(state)
    assert str(refusal.value).startswith(f"state['model']['emb.weight']: {why}")
    inside = {"list": [(torch.ones(1), {"x": REFUSED[why]()})]}
    with pytest.raises(CannotSave, match=r"state\['list'\]\[0\]\[1\]\['x'\]: "):
        plan.Describer().describe(inside)


def test_two_types_over_the_same_memory_are_named():
    memory = torch.zeros(8)
    with pytest.raises(CannotSave, match=r"^state\['.'\]: torch.int32 and torch.float32 tensors over the same memory"):
        plan.Describer().describe({"a": memory, "b": memory.view(torch.int32)})
    with pytest.raises(RuntimeError, match="different types"):
        stock({"a": memory, "b": memory.view(torch.int32)})


def test_a_list_that_holds_itself_is_looked_through_once():
    state = [torch.ones(1)]
    state.append(state)
    assert refuse.path_of(state, lambda value: value == "nowhere") is None
    assert refuse.path_of(state, lambda value: isinstance(value, torch.Tensor)) == "state[0]"


class Custom:
    pass


def test_what_weights_only_does_not_read_is_refused_before_it_is_saved():
    good = plan.Describer().describe({"a": torch.nn.Parameter(torch.ones(2)), "d": torch.float16, "o": OrderedDict()})
    bad = {"list": [1, Custom()]}
    classes = loadable.Classes()
    classes.check(good.classes, {})
    with pytest.raises(CannotSave, match=r"^state\['list'\]\[1\]: test_checkpoint_plan.Custom is nothing that"):
        classes.check(plan.Describer().describe(bad).classes, bad)
    with pytest.raises(CannotSave):
        classes.check(plan.Describer().describe(bad).classes, bad)


def test_objects_with_a_state_dict_stand_for_it_and_the_users_own_stays_as_it_is():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inner = {"optimizer": optimizer, "plain": [1]}
    state = OrderedDict(model=model, parts=[inner, (model, 2)], untouched={"a": torch.ones(1)})
    expanded = states.expand(state)
    assert type(expanded.state) is OrderedDict and list(expanded.state) == list(state)
    assert same(expanded.state["model"], model.state_dict())
    assert expanded.state["parts"][0]["optimizer"] == optimizer.state_dict()
    assert expanded.state["untouched"] is state["untouched"]
    assert expanded.modules == [model, model] and expanded.optimizers == [optimizer]
    assert inner == {"optimizer": optimizer, "plain": [1]} and state["model"] is model


def test_the_self_test_finds_another_way_of_pickling(monkeypatch):
    monkeypatch.setattr(selftest, "_state", None)
    selftest.check()
    monkeypatch.setattr(selftest, "_state", None)
    monkeypatch.setitem(describing.PLAIN, torch.float32, (torch.HalfStorage, 2))
    with pytest.raises(selftest.WrongTorch, match=r"pickles a state in another way.*torch.save"):
        selftest.check()
