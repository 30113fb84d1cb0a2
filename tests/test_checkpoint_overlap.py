"""Copies under the training: what an optimizer guards is as it was at save(), for each of torch's optimizers, and what
is not guarded, or whose hook does not fire, is copied at once, with the reason."""

import copy
import functools
import pickle
import warnings

import pytest

torch = pytest.importorskip("torch")

from phalanx.checkpoint import native  # noqa: E402
from phalanx.checkpoint.copying import overlap  # noqa: E402
from phalanx.checkpoint.copying.flight import Flight  # noqa: E402
from torch.optim import optimizer as torch_optimizer  # noqa: E402

WIDTH = 256  # a weight of 256 KB
overlaps = pytest.mark.skipif(overlap.why_not_with(torch.__version__) is not None, reason="no torch that overlaps")


@pytest.fixture
def make(make):
    return functools.partial(make, verify="never")


class Training:
    """A small model with buffers that the forward pass writes, a frozen part, and an average of its weights."""

    def __init__(self, optimizer=torch.optim.AdamW, parameters=None, **settings):
        torch.manual_seed(5)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, WIDTH), torch.nn.BatchNorm1d(WIDTH), torch.nn.Linear(WIDTH, WIDTH, bias=False)
        )
        self.model[2].weight.requires_grad_(False)
        parameters = [p for p in self.model.parameters() if p.requires_grad] if parameters is None else parameters
        self.optimizer = optimizer(parameters, **settings)
        self.average = {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def step(self):
        self.optimizer.zero_grad()
        self.model(torch.randn(4, WIDTH)).square().mean().backward()
        self.optimizer.step(*self.closure())
        for name, value in self.model.state_dict().items():
            if value.is_floating_point():
                self.average[name].lerp_(value, 0.1)

    def closure(self):
        needs_one = isinstance(self.optimizer, torch.optim.LBFGS)
        return [lambda: self.model(torch.ones(4, WIDTH)).square().mean()] if needs_one else []

    def state(self):
        return {"model": self.model, "optimizer": self.optimizer, "average": self.average, "rng": True}

    def snapshot(self):
        return clone([self.model.state_dict(), self.optimizer.state_dict(), self.average])


def clone(value):
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: clone(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(clone(inner) for inner in value)
    return value


def differing(a, b, path=""):
    """The paths at which two states differ."""
    if isinstance(a, torch.Tensor):
        return [] if torch.equal(a, b) else [path]
    if isinstance(a, dict):
        return [found for key in a for found in differing(a[key], b[key], f"{path}/{key}")]
    if isinstance(a, (list, tuple)):
        return [found for i, inner in enumerate(a) for found in differing(inner, b[i], f"{path}/{i}")]
    return [] if a == b else [path]


def saved(checkpointer):
    loaded, _ = checkpointer.load()
    return [loaded["model"], loaded["optimizer"], loaded["average"]]


def optimizers():
    settings = {
        "SGD": {"lr": 0.1, "momentum": 0.9},
        "ASGD": {"lr": 0.1},
        "Rprop": {"lr": 0.1},
        "LBFGS": {"max_iter": 2},
    }
    names = [name for name in dir(torch.optim) if isinstance(getattr(torch.optim, name), type)]
    left_out = {"Optimizer", "SparseAdam", "Muon"}  # Muon takes matrices alone, and has a test of its own below
    found = {name: settings.get(name, {}) for name in names if name not in left_out}
    for name in ("SGD", "Adam", "AdamW", "Adagrad"):
        found[f"{name} foreach"] = {**settings.get(name, {}), "foreach": True}
        found[f"{name} fused"] = {**settings.get(name, {}), "fused": True}
    return found


def trained(name, settings):
    kind = getattr(torch.optim, name.split()[0])
    try:
        training = Training(kind, **settings)
        training.step()
    except (RuntimeError, TypeError) as error:
        pytest.skip(f"this torch has no {name}: {error}")
    return training


@overlaps
@pytest.mark.parametrize("name", sorted(optimizers()))
def test_each_optimizer_waits_for_the_copy(make, name):
    training, checkpointer = trained(name, optimizers()[name]), make()
    checkpointer.prepare(training.state())
    for step in range(4):
        training.step()
        before = training.snapshot()
        handle = checkpointer.save(step, training.state())
        assert handle.why is None and not handle.is_over, "nothing was in the way of copying later"
        training.step()
        assert handle.wait_committed(), handle.why
        assert differing(before, saved(checkpointer)) == []
        assert differing(before, training.snapshot()), "the step has changed what was saved"


def closures():
    """How a step is given its closure."""
    return [lambda step, closure: step(closure), lambda step, closure: step(closure=closure)]


@overlaps
@pytest.mark.parametrize("give", closures(), ids=["by place", "by name"])
@pytest.mark.parametrize("name", sorted(name for name in optimizers() if " " not in name))
def test_a_step_with_a_closure_waits_behind_it_and_before_it_writes(monkeypatch, name, give):
    """In there are forward and backward pass, which are to go on while a state is copied."""
    training, told = trained(name, optimizers()[name]), []

    class Watch:
        def wait(self):
            told.append(("waits", clone(training.model.state_dict())))

    watch = Watch()
    monkeypatch.setattr(overlap, "_guards", [overlap.Guard(watch.wait)])
    overlap._guards[0].armed = True
    before = clone(training.model.state_dict())

    def closure():
        told.append(("closure", None))
        return training.model[0](torch.ones(4, WIDTH)).square().mean()

    give(training.optimizer.step, closure)
    assert [what for what, _ in told[:2]] == ["closure", "waits"] and differing(before, told[1][1]) == []
    assert differing(before, training.model.state_dict()), "the step has changed what was saved"


@overlaps
def test_a_step_that_may_write_before_its_closure_waits_before_it(monkeypatch):
    class Writes(torch.optim.SGD):
        def step(self, closure):
            told.append("writes")
            return super().step(closure)

    training, told = Training(Writes, lr=0.1), []

    class Watch:
        def wait(self):
            told.append("waits")

    watch = Watch()
    monkeypatch.setattr(overlap, "_guards", [overlap.Guard(watch.wait)])
    overlap._guards[0].armed = True
    training.optimizer.step(lambda: told.append("closure") or 0.0)
    assert told[:2] == ["waits", "writes"]


@overlaps
@pytest.mark.parametrize("is_global", [False, True])
def test_hooks_of_the_script_that_write_before_a_step_find_the_copy_made(monkeypatch, is_global):
    """Clamping weights, say. They come behind our hook, and before the closure."""
    training, told = Training(torch.optim.SGD, lr=0.1), []

    class Watch:
        def wait(self):
            told.append("waits")

    watch = Watch()
    monkeypatch.setattr(overlap, "_guards", [overlap.Guard(watch.wait)])
    overlap._guards[0].armed = True
    register = training.optimizer.register_step_pre_hook
    if is_global:
        register = torch_optimizer.register_optimizer_step_pre_hook
    hook = register(lambda *unused: told.append("writes"))
    training.optimizer.step(lambda: told.append("closure") or 0.0)
    hook.remove()
    assert told[:3] == ["waits", "writes", "closure"]


@overlaps
def test_an_optimizer_that_takes_matrices_alone(make):
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    weight = torch.nn.Parameter(torch.randn(WIDTH, WIDTH))
    training, checkpointer = Training(torch.optim.Muon, parameters=[weight]), make()
    for step in range(2):
        weight.grad = torch.randn(WIDTH, WIDTH)
        training.optimizer.step()
        before = clone([weight, training.optimizer.state_dict()])
        handle = checkpointer.save(step, {"weight": weight, "optimizer": training.optimizer})
        assert handle.why is None
        training.optimizer.step()
        assert handle.wait_committed(), handle.why
        loaded, _ = checkpointer.load()
        assert differing(before, [loaded["weight"], loaded["optimizer"]]) == []


@overlaps
def test_a_state_of_state_dicts_overlaps_as_well(make):
    training, checkpointer = Training(), make()
    training.step()
    before = training.snapshot()
    state = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
    handle = checkpointer.save(1, {**state, "average": training.average})
    assert handle.why is None and not handle.is_over
    training.step()
    assert handle.wait_committed() and differing(before, saved(checkpointer)) == []


@pytest.fixture
def without_hook():
    """The global hook is gone, as where an optimizer never calls it."""
    overlap._install()  # no test before may have needed it
    overlap._hook.remove()
    yield
    overlap._hook = None
    overlap._install()


@overlaps
@pytest.mark.parametrize("settings", [{}, {"fused": True}])
def test_a_step_that_nobody_sees_is_found_by_the_comparison(make, agent, monkeypatch, settings):
    """A weight of 64 MiB: the step has begun to write it long before it is copied, and looked at again. On a busy
    machine it may come too late; then what was kept is what was there before it."""
    weight = torch.nn.Parameter(torch.zeros(16 << 20))
    optimizer, checkpointer = torch.optim.SGD([weight], lr=1.0, **settings), make(verify="always")

    def step():
        weight.grad = torch.ones_like(weight)
        optimizer.step()

    def save(number):
        return checkpointer.save(number, {"weight": weight, "optimizer": optimizer})

    def is_found(number):
        """Whether the step is, that nobody sees."""
        before = weight.detach().clone()
        handle = save(number)
        assert handle.why is None
        optimizer.step()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            if handle.wait_staged():
                assert torch.equal(before, checkpointer.load()[0]["weight"])
                return False
        assert any("copies everything before it returns" in str(warning.message) for warning in told)
        assert "while it was copied" in handle.why and handle.why.startswith("state['weight']")
        assert agent.wait_packet("skipped")["step"] == number and number not in agent.sealed()
        return True

    step()
    weight.grad = torch.ones_like(weight)
    monkeypatch.setattr(checkpointer._writer._guard, "wait", lambda: None)  # these steps do not wait
    found = next((number for number in range(1, 11) if is_found(number)), None)
    assert found is not None, "ten steps in a row were too late"
    monkeypatch.undo()
    for number in (found + 1, found + 2):
        before = weight.detach().clone()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it has been said
            handle = save(number)
        assert handle.is_over and "an earlier save has found that state['" in handle.why
        step()
        assert torch.equal(before, checkpointer.load()[0]["weight"])


@overlaps
def test_without_the_hook_everything_is_copied_at_once(make, without_hook):
    training, checkpointer = Training(), make()
    for step in range(3):
        training.step()
        before = training.snapshot()
        handle = checkpointer.save(step, training.state())
        assert handle.is_over and "no step of AdamW was seen since the last save" in handle.why
        training.step()
        assert differing(before, saved(checkpointer)) == []


@overlaps
def test_the_first_save_trusts_no_hook_that_it_has_not_seen(make):
    training, checkpointer = Training(), make()
    checkpointer.prepare(training.state())
    handle = checkpointer.save(1, training.state())
    assert handle.is_over and "no step of AdamW was seen since the last save" in handle.why
    training.step()
    assert checkpointer.save(2, training.state()).why is None
    handle = checkpointer.save(3, training.state())
    assert "no step of AdamW was seen since the last save" in handle.why


@overlaps
def test_steps_that_the_hook_does_not_see_are_counted(make):
    training, checkpointer = Training(), make()
    training.step()
    assert checkpointer.save(1, training.state()).why is None
    training.step()
    for entry in training.optimizer.state.values():
        entry["step"] += 2  # as by steps of a kind that calls no hook
    handle = checkpointer.save(2, training.state())
    assert handle.is_over and "AdamW made 3 steps since the last save and its hook ran before 1 of them" in handle.why


def test_an_optimizer_of_its_own_class_guards_nothing(make):
    class Own:
        def __init__(self, parameters):
            self.param_groups = [{"params": list(parameters)}]

        def step(self):
            with torch.no_grad():
                for parameter in self.param_groups[0]["params"]:
                    parameter.sub_(1.0)

        def state_dict(self):
            return {}

    weight = torch.nn.Parameter(torch.zeros(WIDTH, WIDTH))
    optimizer, checkpointer = Own([weight]), make()
    for step in range(2):
        before = weight.detach().clone()
        handle = checkpointer.save(step, {"weight": weight, "optimizer": optimizer})
        assert handle.is_over
        if checkpointer._writer._guard.off is None:
            assert "no optimizer is in the state and none was seen to step" in handle.why
        optimizer.step()
        assert torch.equal(checkpointer.load()[0]["weight"], before)


@overlaps
def test_overlap_that_is_not_wanted(make):
    training, checkpointer = Training(), make(overlap=False)
    training.step()
    handle = checkpointer.save(1, training.state())
    assert handle.is_over and handle.why == "copied before save() returned: overlap=False"


def later_numbers(checkpointer):
    """Numbers of the records that the last save has copied under the training."""
    return [index for index, when in enumerate(checkpointer._writer._plan.when) if when == native.LATER]


def later_records(checkpointer):
    """Paths of what is being copied under the training."""
    current = checkpointer._writer._flight
    return {current.path_of(index) for index in later_numbers(checkpointer)}


@overlaps
def test_only_what_the_optimizer_writes_is_copied_later(make):
    training, checkpointer = Training(), make(verify="always")
    # A buffer over the memory of a parameter is written by the forward pass, for all that anybody knows.
    training.model[1].register_buffer("alias", training.model[0].weight.detach())
    training.average["1.alias"] = torch.zeros(WIDTH, WIDTH)
    training.step()
    checkpointer.save(1, {**training.state(), "more": torch.ones(WIDTH, WIDTH)})
    assert later_records(checkpointer) == {
        "state['optimizer']['state'][0]['exp_avg']",
        "state['optimizer']['state'][0]['exp_avg_sq']",
    }
    checkpointer.wait()
    training = Training()
    training.step()
    checkpointer.save(2, training.state())
    assert "state['model']['0.weight']" in later_records(checkpointer)
    assert not any("2.weight" in path or "average" in path for path in later_records(checkpointer))


def many_small(count, buffers=0):
    """`count` weights of 4 KiB that an optimizer has written, and buffers of that size: (model, optimizer)."""
    model = torch.nn.Module()
    model.weights = torch.nn.ParameterList(torch.nn.Parameter(torch.ones(1024)) for _ in range(count))
    for number in range(buffers):
        model.register_buffer(f"buffer{number}", torch.zeros(1024))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    step_small(model, optimizer)
    return model, optimizer


def step_small(model, optimizer):
    for weight in model.weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()


@overlaps
def test_many_small_tensors_are_copied_later(make):
    model, optimizer = many_small(500, buffers=2)  # three times 2 MiB
    checkpointer = make(verify="always")
    step_small(model, optimizer)
    handle = checkpointer.save(1, {"model": model, "optimizer": optimizer})
    later = later_records(checkpointer)
    states = {f"state['optimizer']['state'][{n}]['{name}']" for n in range(500) for name in ("exp_avg", "exp_avg_sq")}
    assert later == states | {f"state['model']['weights.{n}']" for n in range(500)}, "but for counters and buffers"
    was = copy.deepcopy(model.state_dict())
    step_small(model, optimizer)
    assert handle.wait_staged(), handle.why
    loaded, _ = checkpointer.load()
    assert all(torch.equal(loaded["model"][name], was[name]) for name in was)


@overlaps
def test_few_small_tensors_are_copied_at_once(make):
    model, optimizer = many_small(300)
    checkpointer = make(verify="always")
    step_small(model, optimizer)
    handle = checkpointer.save(1, {"model": model, "optimizer": optimizer})
    assert later_numbers(checkpointer) == [] and handle.is_sealed and handle.why is None


def moved(weight):
    weight.untyped_storage().resize_(8192)


def replaced(weight):
    weight.data = torch.zeros(1024)


def written(weight):
    with torch.no_grad():
        weight[:10] += 1


@overlaps
@pytest.mark.parametrize("write", [written, moved], ids=lambda write: write.__name__)
def test_a_small_tensor_that_is_written_while_it_is_copied_sounds_the_alarm(make, monkeypatch, write):
    model, optimizer = many_small(500)
    checkpointer = make()
    step_small(model, optimizer)
    look_for_alarms = Flight.look_for_alarms

    def written_before(current):
        write(model.weights[321])
        return look_for_alarms(current)

    monkeypatch.setattr(Flight, "look_for_alarms", written_before)
    with pytest.warns(RuntimeWarning, match="copies everything before it returns"):
        handle = checkpointer.save(1, {"model": model, "optimizer": optimizer})
        assert not handle.wait_staged()
    assert handle.why.startswith("state['model']['weights.321']: it") and "while it was copied" in handle.why


@overlaps
def test_a_weight_with_other_memory_than_was_saved_guards_nothing(make):
    model, optimizer = many_small(500)
    checkpointer = make()
    step_small(model, optimizer)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    replaced(model.weights[7])
    checkpointer.save(1, {**state, "itself": optimizer})
    later = later_records(checkpointer)
    assert "state['model']['weights.7']" not in later and "state['model']['weights.8']" in later


def flat_state(frozen):
    """Pieces of one buffer, a small one behind large ones; of all but those in `frozen` an optimizer."""
    size = WIDTH * WIDTH
    flat = torch.zeros(3 * size + 8)
    pieces = {"first": flat[:size], "second": flat[size : 2 * size], "third": flat[2 * size : -8], "tail": flat[-8:]}
    trained = [torch.nn.Parameter(piece) for name, piece in pieces.items() if name not in frozen]
    for parameter in trained:
        parameter.grad = torch.ones_like(parameter)
    return pieces, torch.optim.SGD(trained, lr=1.0)


@overlaps
@pytest.mark.parametrize("frozen", [(), ("third",), ("first", "second"), ("tail",)], ids=str)
@pytest.mark.parametrize("layout", ["torch", "safetensors"])
def test_what_shares_its_memory_with_something_else_is_copied_at_once(make, layout, frozen):
    state, optimizer = flat_state(frozen)
    checkpointer = make(layout=layout)
    for number in (1, 2, 3):  # the second and the third go by what was found at the first
        optimizer.step()
        before = clone(state)
        handle = checkpointer.save(number, {**state, "optimizer": optimizer})
        later = later_numbers(checkpointer)
        assert len(later) == (0 if frozen else 1 if layout == "torch" else 3)
        for name in frozen:
            state[name].add_(1.0)
        optimizer.step()
        assert handle.wait_committed(), handle.why
        assert differing(before, {name: checkpointer.load()[0][name] for name in before}) == []


@overlaps
@pytest.mark.parametrize("layout", ["torch", "safetensors"])
def test_a_parameter_that_shrinks_leaves_memory_that_nobody_guards(make, layout):
    weight = torch.nn.Parameter(torch.zeros(2, WIDTH, WIDTH))
    optimizer, checkpointer = torch.optim.SGD([weight], lr=1.0), make(layout=layout)
    whole = weight.detach()
    for number, count in ((1, 2), (2, 1)):
        weight.grad = None
        weight.data = whole[:count]
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        checkpointer.save(number, {"whole": whole, "optimizer": optimizer})
        assert later_numbers(checkpointer) == ([0] if count == 2 else [])


@overlaps
@pytest.mark.parametrize("layout", ["torch", "safetensors"])
def test_what_an_optimizer_that_is_not_trusted_writes_as_well_is_copied_at_once(make, layout):
    weights = [torch.nn.Parameter(torch.zeros(WIDTH, WIDTH)) for _ in range(2)]
    first, second = torch.optim.SGD(weights, lr=1.0), torch.optim.SGD(weights[1:], lr=1.0)
    checkpointer = make(layout=layout)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    state = {"weight0": weights[0], "weight1": weights[1], "first": first, "second": second}
    for number, steps, expected in ((1, [first], [0]), (2, [first, second], [0, 1]), (3, [first], [0])):
        for optimizer in steps:
            optimizer.step()
        checkpointer.save(number, state)
        pointers = checkpointer._writer._flight.image.pointers
        later = {pointers[index] for index in later_numbers(checkpointer)}
        assert later == {weights[index].data_ptr() for index in expected}


def replace_parameter(training, weight):
    """The optimizer trains another one now; the state still has the old one, whom nobody guards."""
    new = torch.nn.Parameter(weight.detach().clone())
    training.optimizer.param_groups[0]["params"][-1] = new
    state = {new if key is weight else key: value for key, value in training.optimizer.state.items()}
    training.optimizer.state.clear()
    training.optimizer.state.update(state)


def replace_memory(training, weight):
    weight.data = weight.detach().clone()


def replace_average(training, weight):
    training.optimizer.state[weight]["exp_avg_sq"] = training.spare


def replace_optimizer(training, weight):
    new = type(training.optimizer)(training.optimizer.param_groups[0]["params"])
    new.load_state_dict(training.optimizer.state_dict())
    training.optimizer = new


# What is replaced -> (how, with the optimizer itself in the state, what is still copied later).
REPLACES = {
    "nothing": (None, True, {"weight", "average"}),
    "nothing of a state by hand": (None, False, {"weight", "average"}),
    "a parameter": (replace_parameter, True, {"average"}),
    "a parameter's memory": (replace_memory, True, {"average"}),
    "an average": (replace_average, True, {"weight", "spare"}),
    "an average of a state by hand": (replace_average, False, {"weight", "spare"}),
    "the optimizer": (replace_optimizer, True, {"weight", "average"}),
}


@overlaps
@pytest.mark.parametrize("what", sorted(REPLACES))
def test_what_the_optimizer_wrote_at_the_last_save_is_not_what_it_writes_for_ever(make, what):
    replace, in_state, expected = REPLACES[what]
    training, checkpointer = Training(), make(verify="always")
    training.optimizer.param_groups[0]["params"].reverse()  # the last average moves no other record
    training.step()
    weight = training.model[0].weight
    training.spare = torch.ones(WIDTH, WIDTH)
    average = training.optimizer.state[weight]["exp_avg_sq"]
    state = {"weight": weight.detach(), "average": average, "spare": training.spare}
    for number in (1, 2, 3):
        if number == 3 and replace is not None:
            replace(training, weight)
        training.step()
        before = clone(state)
        handle = checkpointer.save(number, {**state, **({"optimizer": training.optimizer} if in_state else {})})
        later = {path for path in later_records(checkpointer) if "optimizer" not in path}
        checkpointer.wait()
        assert handle.wait_committed(), handle.why
        loaded, _ = checkpointer.load()
        assert differing(before, {key: loaded[key] for key in before}) == []
    assert later == {f"state['{name}']" for name in expected}


@overlaps
@pytest.mark.parametrize("what", ["model", "optimizer"])
def test_loading_waits_for_the_copy(make, what):
    training, checkpointer = Training(), make(verify="always")
    training.step()
    training.step()
    before = training.snapshot()
    handle = checkpointer.save(1, training.state())
    assert not handle.is_over
    thing = getattr(training, what)
    thing.load_state_dict({k: v * 0 for k, v in thing.state_dict().items()} if what == "model" else thing.state_dict())
    assert handle.is_over and handle.wait_committed(), handle.why
    assert differing(before, saved(checkpointer)) == []
    assert not training.model._load_state_dict_pre_hooks


class Wrapper(torch.nn.Module):
    """Its state is that of the module in it, as with some wrappers."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def state_dict(self, *arguments, **named):
        return self.module.state_dict(*arguments, **named)


# What is saved -> what is loaded into meanwhile.
LOADED = {
    "a submodule": (lambda model: model, lambda model, saved: model[0]),
    "a submodule of a wrapped one": (Wrapper, lambda model, saved: model[0]),
    "what is wrapped": (torch.nn.Sequential, lambda model, saved: model),
    "what a wrapper of its own kind holds": (Wrapper, lambda model, saved: model),
    "a wrapper": (lambda model: model, lambda model, saved: torch.nn.ModuleDict({"other": Wrapper(model)})),
    "a wrapper of a submodule": (lambda model: model, lambda model, saved: torch.nn.Sequential(model[0])),
}


@overlaps
@pytest.mark.parametrize("what", sorted(LOADED))
def test_loading_what_lies_in_the_state_or_around_it_waits_for_the_copy(make, what):
    training, checkpointer = Training(), make(verify="always")
    wrap, choose = LOADED[what]
    saved_module = wrap(training.model)
    loaded_module = choose(training.model, saved_module)
    training.step()
    training.step()
    before = clone(saved_module.state_dict())
    handle = checkpointer.save(1, {"model": saved_module, "optimizer": training.optimizer})
    assert not handle.is_over
    torch.nn.Module.load_state_dict(
        loaded_module,
        {key: value * 0 for key, value in torch.nn.Module.state_dict(loaded_module).items()},
        strict=False,
    )
    assert handle.is_over and handle.wait_committed(), handle.why
    assert differing(before, checkpointer.load()[0]["model"]) == []
    hooks = [module._load_state_dict_pre_hooks for module in [*saved_module.modules(), *loaded_module.modules()]]
    assert not any(hooks)


@overlaps
def test_a_module_that_is_copied_or_pickled_meanwhile_waits_for_nothing(make):
    training, checkpointer = Training(), make(verify="always")
    training.step()
    handle = checkpointer.save(1, training.state())
    assert not handle.is_over
    for other in (copy.deepcopy(training.model), pickle.loads(pickle.dumps(training.model))):
        other.load_state_dict(training.model.state_dict())
    assert not handle.is_over
    training.model.load_state_dict(training.model.state_dict())
    assert handle.is_over


@overlaps
def test_a_hook_for_loading_that_came_later_is_called_as_well(make):
    training, checkpointer = Training(), make(verify="always")
    training.step()
    handle = checkpointer.save(1, training.state())
    assert not handle.is_over
    called = []
    training.model[0]._register_load_state_dict_pre_hook(lambda *arguments: called.append(handle.is_over))
    for _ in range(2):
        training.model[0].load_state_dict(training.model[0].state_dict())
    assert called == [True, True]


@overlaps
def test_loading_into_the_module_of_ddp_waits_for_the_copy(make, tmp_path):
    if not torch.distributed.is_available():
        pytest.skip("this torch has no distributed")
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        training, checkpointer = Training(), make(verify="always")
        wrapped = torch.nn.parallel.DistributedDataParallel(training.model)
        training.step()
        before = clone(wrapped.state_dict())
        handle = checkpointer.save(1, {"model": wrapped, "optimizer": training.optimizer})
        assert not handle.is_over
        wrapped.module.load_state_dict({key: value * 0 for key, value in training.model.state_dict().items()})
        assert handle.is_over and handle.wait_committed(), handle.why
        assert differing(before, checkpointer.load()[0]["model"]) == []
    finally:
        torch.distributed.destroy_process_group()


@overlaps
def test_wait_is_for_what_else_writes_parameters(make):
    training, checkpointer = Training(), make(verify="always")
    training.step()
    before = training.snapshot()
    handle = checkpointer.save(1, training.state())
    checkpointer.wait()
    with torch.no_grad():
        training.model[0].weight.zero_()
    assert handle.is_over and handle.wait_committed()
    assert differing(before, saved(checkpointer)) == []


WRITES = {
    "it was written while it was copied": lambda weight: weight.detach().mul_(2),
    "its memory was moved or freed": lambda weight: weight.untyped_storage().resize_(8 * WIDTH * WIDTH),
}


@overlaps
@pytest.mark.parametrize("why", sorted(WRITES))
def test_a_write_in_between_sounds_the_alarm(make, agent, monkeypatch, why):
    """Behind the copy: memory that is freed under it would end this process."""
    training, checkpointer = Training(), make()
    training.step()
    look_for_alarms = Flight.look_for_alarms

    def written_before(current):
        WRITES[why](training.model[0].weight)
        return look_for_alarms(current)

    monkeypatch.setattr(Flight, "look_for_alarms", written_before)
    handle = checkpointer.save(1, training.state())
    with pytest.warns(RuntimeWarning, match="copies everything before it returns"):
        training.optimizer.step()
    assert f"state['model']['0.weight']: {why}" in handle.why
    assert not handle.wait_committed() and agent.wait_packet("skipped")["step"] == 1
    assert agent.packets("sealed") == []
    assert checkpointer.save(2, training.state()).is_over


@overlaps
@pytest.mark.parametrize("why", ["written behind it", "moved behind it"])
def test_a_write_behind_a_save_that_was_proved_whole(make, why):
    """The image is sealed: nothing is said, and the next save overlaps as before."""
    training, checkpointer = Training(), make(verify="always")
    training.step()
    before = training.snapshot()
    handle = checkpointer.save(1, training.state())
    checkpointer._writer._flight.wait(checkpointer._writer._slots)
    weight = training.model[0].weight
    weight.data = weight.data.clone() if why.startswith("moved") else weight.data.add_(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        training.step()
    assert handle.wait_committed() and differing(before, saved(checkpointer)) == []
    assert not checkpointer.save(2, training.state()).is_over


def write_an_element(embedding):
    with torch.no_grad():
        embedding.weight[-1, -1] = 7


def look_up_a_long_row(embedding):
    """The forward pass writes the row, shortened."""
    embedding(torch.tensor([embedding.num_embeddings - 1]))


@overlaps
@pytest.mark.parametrize("write", [write_an_element, look_up_a_long_row])
def test_a_part_that_is_written_before_its_copy_is_in_no_image(make, agent, monkeypatch, write):
    """64 MiB, so that the last bytes are copied behind the write, and no sample has them. On a busy machine the copy is
    faster now and then; what was kept is what was there before then, or the second look has found it."""
    embedding = torch.nn.Embedding(1 << 16, 256, max_norm=1.0)
    buffer = torch.full((256,), -1.0)
    optimizer, checkpointer = torch.optim.SGD(embedding.parameters(), lr=1.0), make(verify="always")

    def is_found(number):
        with torch.no_grad():
            embedding.weight[-1] = number + 2.0
        embedding.weight.grad = torch.zeros_like(embedding.weight)
        optimizer.step()
        before = embedding.weight[-1].tolist()
        with monkeypatch.context() as patch:
            patch.setattr(checkpointer._writer, "_hooks_for_loading", lambda expanded: write(embedding))
            handle = checkpointer.save(number, {"embedding": embedding, "optimizer": optimizer, "buffer": buffer})
        if handle.is_over:
            write(embedding)
        buffer[0] = number
        assert embedding.weight[-1].tolist() != before
        if handle.wait_committed():
            loaded = checkpointer.load()[0]
            assert (loaded["embedding"]["weight"][-1].tolist(), loaded["buffer"][0]) == (before, number - 1)
            return False
        assert handle.why.startswith("state['embedding']['weight']")
        assert agent.wait_packet("skipped")["step"] == number and number not in agent.sealed()
        return True

    with pytest.warns(RuntimeWarning, match="copies everything before it returns"):
        assert any(map(is_found, range(10))), "ten writes in a row were too late"


@overlaps
def test_several_optimizers_and_one_that_does_not_step(make):
    torch.manual_seed(1)
    weights = [torch.nn.Parameter(torch.randn(WIDTH, WIDTH)) for _ in range(2)]
    first, second = (torch.optim.SGD([weight], lr=0.5) for weight in weights)
    checkpointer = make(verify="always")

    def step(optimizer, weight):
        weight.grad = torch.ones_like(weight)
        optimizer.step()

    step(first, weights[0])
    before = clone(weights)
    handle = checkpointer.save(1, {"weights": weights, "first": first, "second": second})
    assert later_records(checkpointer) == {"state['weights'][0]"}
    assert "copied in part before save() returned: no step of SGD was seen" in handle.why
    step(second, weights[1])
    assert handle.is_over, "any optimizer's step waits: they may share weights"
    step(first, weights[0])
    assert handle.wait_committed()
    assert differing(before, [weight.detach() for weight in checkpointer.load()[0]["weights"]]) == []


@overlaps
def test_steps_of_compiled_optimizers_wait(make):
    training, checkpointer = Training(torch.optim.SGD, lr=0.1), make(verify="always")
    compiled = torch.compile(training.optimizer.step, backend="eager")
    training.step()
    for step in range(2):
        training.model(torch.randn(4, WIDTH)).sum().backward()
        compiled()
        before = training.snapshot()
        handle = checkpointer.save(step, training.state())
        assert handle.why is None
        compiled()
        assert handle.is_over and handle.wait_committed()
        assert differing(before, saved(checkpointer)) == []


@overlaps
def test_fsdp_is_copied_at_once(make, tmp_path):
    if not torch.distributed.is_available():
        pytest.skip("this torch has no distributed")
    from torch.distributed.fsdp import FullyShardedDataParallel

    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = torch.nn.Linear(WIDTH, WIDTH)
        wrapped = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
        checkpointer = make()
        wrapped(torch.ones(2, WIDTH)).sum().backward()
        optimizer.step()
        handle = checkpointer.save(1, {"model": wrapped, "optimizer": optimizer})
        assert handle.is_over and "FSDP frees and moves parameters" in handle.why
    finally:
        torch.distributed.destroy_process_group()


def test_the_hook_forgets_a_checkpointer_and_its_optimizers(make):
    checkpointer = make()
    guard = checkpointer._writer._guard
    training = Training()
    training.step()
    if guard.off is None:
        assert len(guard._seen) == 1
    del training
    assert len(guard._seen) == 0
    checkpointer.close()
    assert guard not in overlap._guards


def test_a_torch_whose_hooks_get_lost_copies_at_once(make, monkeypatch):
    assert overlap.why_not_with("2.15.0+cu132") is None and overlap.why_not_with("2.4.1") is None
    monkeypatch.setattr(torch, "__version__", "2.3.1")
    training, checkpointer = Training(), make()
    training.step()
    handle = checkpointer.save(1, training.state())
    assert handle.is_over and "torch 2.3.1 loses optimizer hooks to torch.compile" in handle.why
