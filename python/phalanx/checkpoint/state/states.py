"""From what the user gives to what is pickled, and back: modules, optimizers and the like become their state_dict()."""

import torch

from phalanx.checkpoint.state import per_rank, position, refuse, rng


class Expanded:
    """`state` as it is pickled, and the modules and optimizers that it came from. `behind_steps`: tensors that are
    written by nobody before those optimizers have made their step."""

    __slots__ = ("behind_steps", "modules", "optimizers", "state", "state_of")

    def __init__(self, state_of=None):
        self.state_of = state_of or _state_dict_of
        self.state = None
        self.modules = []
        self.optimizers = []
        self.behind_steps = []


def expand(state, state_of=None, rng_into=None):
    """The user's dicts, lists and tuples are followed; anything in them that has a state_dict() is replaced by it, and
    "rng": True at the top by the state of the random numbers. `state_of`: what gives the state of such things.
    `rng_into`: as of rng.capture()."""
    expanded = Expanded(state_of)
    top = _with_rng(state, rng.capture(into=rng_into)) if _asks_for_rng(state) else state
    expanded.state = _expand(_with_values(top), expanded)
    return expanded


def _with_values(state):
    """What stands in it as PerRank, as that is saved."""
    if not isinstance(state, dict) or per_rank.PerRank not in map(type, state.values()):
        return state
    top = dict(state)
    for key, value in state.items():
        if type(value) is per_rank.PerRank:
            top[key] = per_rank.saved(value.value)
    return top


def with_rng_of(state, captured):
    """`state` with the random numbers that were captured for another that asks for them as well."""
    return _with_rng(state, captured["rng"]) if _asks_for_rng(state) else state


def _asks_for_rng(state):
    return isinstance(state, dict) and state.get("rng") is True


def _with_rng(state, captured):
    top = type(state)(state) if type(state) is not dict else dict(state)
    top["rng"] = captured
    return top


def as_is(value):
    """The Expanded of a state in which nothing stands for something else."""
    expanded = Expanded()
    expanded.state = value
    return expanded


def _expand(value, expanded):
    kind = type(value)
    if kind is torch.Tensor or kind in _LEAVES:
        return value
    if isinstance(value, dict):
        return _expand_dict(value, expanded)
    if kind in (list, tuple):
        inner = [_expand(item, expanded) for item in value]
        return value if _same(inner, value) else kind(inner)
    if kind is per_rank.PerRank:
        raise refuse.CannotSave(f"{value!r} does not stand at the top level of the state, where PerRank is to stand")
    if isinstance(value, (torch.Tensor, type)) or not callable(getattr(value, "state_dict", None)):
        return value
    if isinstance(value, torch.nn.Module):
        expanded.modules.append(value)
    elif isinstance(value, torch.optim.Optimizer):
        expanded.optimizers.append(value)
    return expanded.state_of(value)


def _state_dict_of(value):
    return value.state_dict()


_LEAVES = frozenset((int, float, str, bool, bytes, type(None)))


def _expand_dict(value, expanded):
    """The same dict, where nothing in it is replaced."""
    replaced = {}
    for key, inner in value.items():
        new = _expand(inner, expanded)
        if new is not inner:
            replaced[key] = new
    if not replaced:
        return value
    copied = value.copy()
    copied.update(replaced)
    return copied


def _same(new, old):
    return all(a is b for a, b in zip(new, old))


def own_part(state):
    """What is each rank's own in a state that is otherwise the same on all: random numbers, data positions and PerRank.
    At the top level only."""
    if not isinstance(state, dict):
        return {}
    return {
        key: value
        for key, value in state.items()
        if isinstance(value, (position.DataPosition, per_rank.PerRank)) or (key == "rng" and value is True)
    }


def restore(loaded):
    """What load() gives for what was saved: random numbers are set, and data positions are objects again."""
    if isinstance(loaded, dict) and rng.is_captured(loaded.get("rng")):
        rng.restore(loaded["rng"])
        loaded["rng"] = True
    return _with_positions(loaded)


_CONTAINERS = (dict, list, tuple)


def _with_positions(value):
    """Of an optimizer's many small dicts each is looked at: with as few calls as can be."""
    if isinstance(value, dict):
        if position.MARK in value:
            return position.loaded(value)
        if per_rank.MARK in value:
            return per_rank.PerRank(_with_positions(value["value"]))
        for key, inner in value.items():
            if isinstance(inner, _CONTAINERS):
                value[key] = _with_positions(inner)
        return value
    if type(value) is list:
        value[:] = [_with_positions(item) for item in value]
    elif type(value) is tuple:
        return tuple([_with_positions(item) for item in value])
    return value
