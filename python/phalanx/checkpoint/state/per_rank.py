"""What each rank has for itself, in a state that is otherwise the same on all ranks."""

MARK = "phalanx_per_rank"


class PerRank:
    """`value` is saved of every rank, and given back to the rank of the same number: with phalanx.checkpoint.ddp, which
    saves all else once a node, and phalanx.checkpoint.dcp. It stands at the top level of the state.

    load() gives a PerRank again. `value` is None where the rank had none: in a larger world, or where it went with a
    lost node.
    """

    def __init__(self, value=None):
        self.value = value

    def __repr__(self):
        return f"PerRank({self.value!r})"


def saved(value):
    """As it stands in an image."""
    return {MARK: 1, "value": value}


def is_saved(value):
    return isinstance(value, dict) and MARK in value
