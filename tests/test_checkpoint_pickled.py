"""The native pickler: byte for byte what torch.save writes, of whatever a state may hold, and nothing of it kept."""

import argparse
import collections
import copyreg
import datetime
import enum
import functools
import gc
import re
import sys
import threading
import types
from collections import OrderedDict

import pytest
from test_checkpoint_plan import stock

torch = pytest.importorskip("torch")

from phalanx.checkpoint import describing  # noqa: E402
from phalanx.checkpoint.formats import plan  # noqa: E402


class Outer:
    class Inner:
        class Innermost:
            pass

    def method(self):
        pass


class Colour(enum.Enum):
    RED = 1
    BLUE = "b"


class Number(enum.IntEnum):
    SEVEN = 7


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a, b):
        self.a, self.b = a, b


class WithKeywords:
    def __new__(cls, a, *, b):
        made = super().__new__(cls)
        made.a, made.b = a, b
        return made

    def __getnewargs_ex__(self):
        return (self.a,), {"b": self.b}


class ListOfOwn(list):
    def __init__(self, items=()):
        super().__init__(items)
        self.note = "kept"


class Numbered(int):
    pass


def set_state(made, state):
    made.__dict__.update(state)


class WithSetter:
    def __init__(self, value=None):
        self.value = value

    def __reduce__(self):
        return WithSetter, (), {"value": self.value}, None, None, set_state


class Registered:
    def __init__(self, value):
        self.value = value


class Extended:
    pass


Pair = collections.namedtuple("Pair", "first second")
copyreg.pickle(Registered, lambda each: (Registered, (each.value,)))
INTS = [0, 1, -1, 255, 256, 65535, 65536, -129, *((1 << bits) + by for bits in (31, 39, 40, 63, 64) for by in (-1, 0))]
INTS += [-each for each in INTS] + [1 << 3000, -(1 << 3000)]
TEXTS = ["", "a", "x" * 300, "storage", "cpu", "\udc80", "ünï", "7", "\0"]
KINDS = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint8]


def atoms(choose):
    return choose.choice(
        [
            lambda: choose.choice(INTS),
            lambda: choose.choice(TEXTS),
            lambda: "".join(choose.choice(["text ", "of ", "its own"]) for _ in range(3)),
            lambda: choose.choice([None, True, False, 1.5, float("inf"), -0.0, 1j, b"", b"bytes\xff", ...]),
            lambda: bytearray(choose.choice([b"", b"\x80"])),
            lambda: choose.choice([torch.float16, torch.device("cpu"), torch.strided, torch.Size([1, 2]), range(3)]),
            lambda: choose.choice([Outer, Outer.Inner.Innermost, Outer.method, len, type(None), Colour, torch.ones]),
            lambda: choose.choice([Colour.RED, Number.SEVEN, Numbered(3), datetime.date(2026, 1, 2), re.compile("a+")]),
        ]
    )()


def tensors(choose, made):
    kind = choose.choice(KINDS)
    base = torch.arange(24).reshape(2, 3, 4).to(kind)
    made.append(base)
    same = [each for each in made if each.dtype is kind and each.dim() == 3]
    return choose.choice(
        [
            lambda: base,
            lambda: choose.choice(same),
            lambda: choose.choice(same).detach(),
            lambda: choose.choice(same)[1:, ::2],
            lambda: choose.choice(same).transpose(0, 2),
            lambda: choose.choice(same).untyped_storage() if kind is torch.uint8 else base[0, 0, 0],
            lambda: torch.empty(choose.choice([(0,), (2, 0), (1,) * 13, ()]), dtype=kind),
            lambda: torch.nn.Parameter(base) if kind.is_floating_point else base.t_() if base.dim() == 2 else base,
            lambda: torch.ones(2, requires_grad=True),
            lambda: torch._neg_view(torch.ones(3)),
        ]
    )()


def objects(choose, inner):
    """What takes Python's ways, with `inner()` in it."""
    return choose.choice(
        [
            lambda: argparse.Namespace(a=inner(), b=inner()),
            lambda: Slotted(inner(), inner()),
            lambda: WithKeywords(1, b=inner()),
            lambda: ListOfOwn([inner() for _ in range(choose.randrange(3))]),
            lambda: WithSetter(inner()),
            lambda: Registered(inner()),
            lambda: Pair(inner(), inner()),
            lambda: collections.deque([inner(), inner()], 5),
            lambda: collections.defaultdict(list, {1: inner()}),
            lambda: collections.Counter("abracadabra"),
            lambda: functools.partial(print, inner()),
            lambda: types.SimpleNamespace(x=inner()),
            lambda: {choose.randrange(100) for _ in range(5)},
            lambda: frozenset(choose.sample(TEXTS, 2)),
            lambda: with_attributes(OrderedDict((n, inner()) for n in range(choose.choice([0, 1, 3])))),
        ]
    )()


def with_attributes(ordered):
    ordered._metadata = OrderedDict({"": {"version": 1}})
    return ordered


def states(choose, depth, made, seen):
    """A random state. `made`: its tensors so far; `seen`: objects that may come again."""

    def inner():
        return states(choose, depth - 1, made, seen)

    if seen and choose.random() < 0.1:
        return choose.choice(seen)
    if depth == 0:
        return tensors(choose, made) if choose.random() < 0.5 else atoms(choose)
    several = range(choose.choice([0, 1, 2, 3, 5]))
    found = choose.choice(
        [
            lambda: {choose.choice([*TEXTS, 1, 2.5, (1, "k")]): inner() for _ in several},
            lambda: [inner() for _ in several],
            lambda: tuple([inner() for _ in several]),
            lambda: objects(choose, inner),
            inner,
        ]
    )()
    seen.append(found)
    return found


def test_random_states_are_pickled_as_torch_save_does(choose):
    describer = plan.Describer()
    for _ in range(300):
        state = states(choose, choose.randrange(1, 5), [], [])
        try:
            expected, storages = stock(state)
        except RuntimeError:  # two types over the same memory
            continue
        image = describer.describe(state)
        assert image.pickle == expected, state
        assert [bytes(storage.tolist()) for storage in image.storages] == storages


@pytest.mark.parametrize("count", [0, 1, 2, 999, 1000, 1001, 2000])
def test_batches_end_where_those_of_pickle_end(count):
    counted = OrderedDict((n, n) for n in range(count))
    state = [list(range(count)), dict(counted), counted, collections.deque(range(count)), tuple(range(count))]
    assert plan.Describer().describe(state).pickle == stock(state)[0]


def recursive():
    inside = []
    inside.append((inside, 1))
    long = []
    long.append((long, 1, 2, 3, 4))
    own = {}
    own["own"] = own
    named = argparse.Namespace()
    named.named = named
    held = ListOfOwn()
    held.append(held)
    return [inside[0], long[0], own, named, held]


def test_what_holds_itself_is_pickled_as_torch_save_does():
    assert plan.Describer().describe(recursive()).pickle == stock(recursive())[0]


def test_a_number_that_copyreg_has_for_a_class_stands_for_it():
    copyreg.add_extension(__name__, "Extended", 240)
    try:
        state = [Extended, Extended, Extended]
        assert plan.Describer().describe(state).pickle == stock(state)[0]
    finally:
        copyreg.remove_extension(__name__, "Extended", 240)


def nested(depth):
    state = []
    for _ in range(depth):
        state = [state]
    return state


def test_what_is_nested_too_deeply_is_an_error():
    assert plan.Describer().describe(nested(300)).pickle == stock(nested(300))[0]
    with pytest.raises(RecursionError):
        plan.Describer().describe(nested(100_000))


def test_what_cannot_be_pickled_is_the_error_of_pickle():
    with pytest.raises(Exception, match="lambda") as expected:
        stock({"f": [lambda: 1]})
    with pytest.raises(expected.type, match="lambda"):
        plan.Describer().describe({"f": [lambda: 1]})


def test_tensors_are_looked_at_in_the_same_way_where_torch_exchanges_none(choose, monkeypatch):
    monkeypatch.setattr(describing, "_exchange", lambda: 0)
    test_random_states_are_pickled_as_torch_save_does(choose)


class Changing:
    """Adds to what holds it while it is asked what it is."""

    def __init__(self, change):
        self._change = change

    def __reduce__(self):
        self._change()
        return Changing, (None,)


def test_what_changes_while_it_is_described_is_an_error_or_left_out():
    state = {}
    state.update(a=Changing(lambda: state.update(b=1)), c=2)
    with pytest.raises(RuntimeError, match="changed size"):
        plan.Describer().describe(state)
    alone = [Changing(lambda: alone.clear()), *range(10)]
    assert plan.Describer().describe(alone).pickle
    gone = {"a": Changing(lambda: gone.clear()), "b": torch.ones(2)}
    with pytest.raises(RuntimeError, match="changed size"):
        plan.Describer().describe(gone)


def test_other_threads_may_change_a_state_that_is_described():
    """It may be an error; the process lives."""
    state = {n: {"x": torch.ones(2), "own": argparse.Namespace(n=n)} for n in range(300)}
    over = threading.Event()

    def change():
        while not over.is_set():
            for n in range(300):
                state[n] = {"x": torch.ones(2), "own": argparse.Namespace(n=n)}
                state.pop(1000 + n, None)
                if n % 50 == 0:
                    state[1000 + n] = torch.zeros(1)

    thread = threading.Thread(target=change)
    thread.start()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(50):
            try:
                assert plan.Describer().describe(state).pickle
            except RuntimeError as error:
                assert "changed size" in str(error)
    finally:
        sys.setswitchinterval(before)
        over.set()
        thread.join()


def counts(state):
    gc.collect()
    tensor, text, own = state["tensor"], state["text"], state["own"]
    counted = [state, tensor, text, own, state["tuple"], tensor.untyped_storage(), OrderedDict, torch.FloatStorage]
    counted += [torch.float32, torch._utils._rebuild_tensor_v2, argparse.Namespace, "storage", "dtype", None, True]
    return [sys.getrefcount(each) for each in counted]


def test_nothing_is_kept_of_a_state_that_was_described():
    refused = {"list": [torch.ones(2), torch.eye(2).to_sparse()]}
    state = {"tensor": torch.ones(3), "text": "of its own " * 9, "own": argparse.Namespace(a=torch.ones(1))}
    state.update(tuple=(state["text"], 1 << 70), many=[torch.ones(1) for _ in range(300)], seen={1, 2}, b=b"bytes")
    state["ordered"] = with_attributes(OrderedDict(a=1, b=2))
    describer = plan.Describer()

    def turn():
        for _ in range(20):
            describer.describe(state)
            with pytest.raises(plan.refuse.CannotSave):
                describer.describe(refused)
            with pytest.raises(RecursionError):
                describer.describe(nested(2000))

    turn()
    before, objects_before = counts(state), len(gc.get_objects())
    blocks_before = sys.getallocatedblocks()
    turn()
    # What is kept once a describing is counted 20 times; what ends elsewhere in this process is counted once or twice.
    kept = [after - earlier for after, earlier in zip(counts(state), before)]
    assert max(map(abs, kept)) < 20, kept
    assert abs(len(gc.get_objects()) - objects_before) < 20
    assert sys.getallocatedblocks() - blocks_before < 500
