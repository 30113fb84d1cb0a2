"""--watch-ranks: which rank holds the others up. Who is slow is decided in src/master/rules/pace_test.cc and
core/pace_test.cc; here is what a rank measures of itself, and one job as people run it."""

import json
import types

import pytest
import torch
from phalanx._bootstrap.split import Split, _Clock

MS = 1_000_000


class Told:
    """A Split whose word is kept, on a clock that the test moves."""

    def __init__(self, clock_of=None):
        self.now_ns = 0
        self.saved = 0
        self.splits = []
        self.clock = types.SimpleNamespace(
            mark=lambda: self.now_ns, is_past=lambda mark: True, between_ns=lambda first, second: second - first
        )
        self.split = Split(
            torch.autograd.Variable._execution_engine.queue_callback,
            clock_of or (lambda parameter: self.clock),
            lambda own_ns, waited_ns: self.splits.append((own_ns // MS, waited_ns // MS)),
            lambda: self.saved,
        )

    def after(self, milliseconds):
        self.now_ns += milliseconds * MS

    def step(self, optimizer):
        self.split.before_step(optimizer, (), {})
        optimizer.step()
        self.split.after_step(optimizer, (), {})


class Slow(torch.autograd.Function):
    """Takes a while of the backward pass."""

    @staticmethod
    def forward(ctx, value, then):
        ctx.then = then
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.then()
        return gradient, None


@pytest.fixture
def told():
    return Told()


def train(told, model, optimizer, own_ms, waited_ms):
    """A step: half of its own time forward, half in the backward pass of the first layer, then it waits."""
    told.after(own_ms // 2)
    batch = Slow.apply(torch.ones(2, 4, requires_grad=True), lambda: told.after(own_ms - own_ms // 2))
    model(batch).sum().backward()
    told.after(waited_ms)
    told.step(optimizer)


def a_model():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def test_own_work_ends_with_the_backward_pass(told):
    model, optimizer = a_model()
    for own_ms, waited_ms in ((10, 0), (30, 12), (50, 4)):
        train(told, model, optimizer, own_ms, waited_ms)
    assert told.splits == [(30, 12), (50, 4)], "the first step began before anybody looked"


def test_of_several_passes_the_last_one_counts(told):
    model, optimizer = a_model()
    train(told, model, optimizer, 10, 1)
    for _ in range(3):
        told.after(10)
        model(torch.ones(2, 4)).sum().backward()
    told.after(5)
    told.step(optimizer)
    assert told.splits == [(30, 5)]


def test_what_is_saved_is_no_work_of_its_own(told):
    model, optimizer = a_model()
    train(told, model, optimizer, 10, 1)
    told.after(200)
    told.saved += 200 * MS
    train(told, model, optimizer, 30, 7)
    assert told.splits == [(30, 7)]


def test_a_second_optimizer_splits_nothing(told):
    model, optimizer = a_model()
    other = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    train(told, model, optimizer, 10, 1)
    told.step(other)
    train(told, model, optimizer, 20, 2)
    assert told.splits == [(20, 2)]


def test_a_frozen_end_is_passed_over(told):
    """A parameter that never gets a gradient marks nothing: the one before it is tried."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 1))
    unused = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([*model.parameters(), unused], lr=0.01)
    for _ in range(30):
        train(told, model, optimizer, 10, 2)
    assert 0 < len(told.splits) <= 10 and set(told.splits) == {(10, 2)}


def test_gradients_that_come_another_way_are_given_up(told):
    """As with FSDP: its shards get their gradients from outside autograd."""
    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(3)]
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    for _ in range(300):
        told.step(optimizer)
    assert told.splits == [] and not any(each._backward_hooks for each in parameters)


def test_the_optimizer_may_go_and_another_may_come(told):
    model, optimizer = a_model()
    train(told, model, optimizer, 10, 1)
    model, optimizer = a_model()
    for own_ms in (10, 20, 30):
        train(told, model, optimizer, own_ms, 3)
    assert told.splits == [(20, 3), (30, 3)]


class Event:
    """As torch.cuda.Event: recorded now, and past when the device has come there."""

    def __init__(self, device):
        self._device = device
        self.at_ns = device.now_ns

    def query(self):
        return self.at_ns <= self._device.done_ns

    def elapsed_time(self, end):
        return (end.at_ns - self.at_ns) / 1e6


def test_a_device_is_not_waited_for():
    """Its marks are read when it has come past them; a script far ahead of it is not looked at for a while."""
    told = Told(clock_of=lambda parameter: marks)
    told.done_ns = 0
    marks = types.SimpleNamespace(
        mark=lambda: Event(told),
        is_past=lambda mark: mark.query(),
        between_ns=lambda first, second: int(first.elapsed_time(second) * 1e6),
    )
    model, optimizer = a_model()
    for _ in range(40):
        train(told, model, optimizer, 10, 2)
    assert told.splits == []
    told.done_ns = told.now_ns
    train(told, model, optimizer, 10, 2)
    assert told.splits == [(10, 2)] * 16
    for _ in range(3):
        told.done_ns = told.now_ns
        train(told, model, optimizer, 10, 2)
    assert len(told.splits) > 16


def test_marks_of_another_parameter_are_of_another_clock(told):
    """What is pending when a parameter is given up is forgotten with it."""
    frozen = torch.nn.Parameter(torch.zeros(1))
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*model.parameters(), frozen], lr=0.01)
    other = types.SimpleNamespace(
        mark=lambda: "a mark", is_past=lambda mark: False, between_ns=lambda first, second: first - second
    )
    told.split._clock_of = lambda parameter: other if parameter is frozen else told.clock
    for _ in range(30):
        train(told, model, optimizer, 10, 2)
    assert set(told.splits) == {(10, 2)}


def test_a_device_that_refuses_ends_the_looking_and_not_the_training(told):
    model, optimizer = a_model()
    train(told, model, optimizer, 10, 2)

    def refuse():
        raise RuntimeError("operation not permitted when stream is capturing")

    told.clock.mark = refuse
    for _ in range(3):
        train(told, model, optimizer, 10, 2)
    told.clock.mark = lambda: told.now_ns
    for _ in range(60):
        train(told, model, optimizer, 10, 2)
    assert told.splits == [] and not any(each._backward_hooks for each in model.parameters())


def test_flat_parameters_are_not_looked_at(told):
    """FSDP1 has waited for the others before their gradient is there."""
    FlatParameter = type("FlatParameter", (torch.nn.Parameter,), {})
    model = torch.nn.Linear(4, 1)
    flat = FlatParameter(torch.zeros(1))
    optimizer = torch.optim.SGD([*model.parameters(), flat], lr=0.01)
    for _ in range(30):
        train(told, model, optimizer, 10, 2)
    assert told.splits == []


def test_the_clock_of_this_machine():
    first = _Clock.mark()
    second = _Clock.mark()
    assert _Clock.is_past(second) and 0 <= _Clock.between_ns(first, second) < 1_000 * MS


@pytest.mark.timeout(900)
def test_a_slow_rank_is_named_its_node_left_out_and_let_in_again(job):
    place = job.folder / "uneven"
    flags = ["--watch-ranks", "--exclude-straggler"]
    nodes = [
        job.node(index, "uneven.py", str(place), "60" if index == 1 else "10", nnodes="2:3", flags=flags)
        for index in range(3)
    ]
    slow = r"rank \d \(node 127\.0\.0\.2\) holds the others up: \d+ ms of its own in each step, the others \d+ ms"
    nodes[0].wait_line(slow, timeout_s=300)  # three windows of 20 s in a row; a rank that waits for a core has more
    nodes[1].wait_line(r"this node is left out for 600 s: slow: rank \d: \d+ ms of its own")
    nodes[0].wait_line(r"node 127\.0\.0\.2 is left out \(slow: rank \d: .*\): 3 -> 2 nodes")
    (hosts,) = {record.parent.parent for record in job.folder.glob("state*/*/events.db")}
    state = f"--state-dir={hosts}"
    refused = job.phalanx("let-in", "nobody", state, check=False)
    assert (
        refused.returncode == 1
        and "no node nobody is left out" in refused.stderr
        and "node 127.0.0.2 is left out for another" in refused.stderr
    )
    done = job.phalanx("let-in", "127.0.0.2", state)
    assert done.stdout == "node 127.0.0.2 may come in: it is checked first where the job checks its nodes\n"
    nodes[0].wait_line(r"node 127\.0\.0\.2 joined: 2 -> 3 nodes")
    place.with_name("uneven.stop").touch()
    assert [node.wait() for node in nodes] == [0] * 3, job.story()
    kinds = [json.loads(row)["kind"] for row in job.phalanx("events", state, "--json").stdout.splitlines()]
    assert [kind for kind in kinds if kind in ("rank-slow", "node-left-out", "node-let-in")] == [
        "rank-slow",
        "node-left-out",
        "node-let-in",
    ]
