"""Counts optimizer steps on the board, without a change of the script and without importing torch. saves.py does the
same for checkpoints."""

import weakref

from phalanx._bootstrap import agent_store, board, frameworks, saves, split
from phalanx._bootstrap.watching import load_watch

_OPTIMIZER_MODULE = "torch.optim.optimizer"

_first_optimizer = None  # weak reference to the first optimizer seen; the script must be able to drop it
_report = None  # told the first step, then None
_awaits_number = False  # the script will say its number itself, a moment after the optimizer has stepped


def install(report, exact=False, splits=False):
    """From now on every step is counted on the board, and the first one of this life is told to `report(step)`.

    `exact`: the life before called phalanx.step, whose number is waited for, until the second optimizer step at most.
    `splits`: what of each step is this rank's own work goes to the board as well (split.py).
    """
    global _report, _awaits_number
    _report = report
    _awaits_number = exact
    board.on_first_step = _first_step
    hooks = {
        _OPTIMIZER_MODULE: _register_with_split if splits else _register,
        **saves.HOOKS,
        **frameworks.HOOKS,
        **agent_store.hooks(),
    }
    load_watch.when_loaded(hooks)


def forget():
    """In a forked child of the rank: its steps are its own business."""
    global _report
    _report = None
    board.let_go()


def _register_with_split(module):
    _register(module)  # first: the board has counted a step before it is told of its split
    split.register(module)


def _register(module):
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is None:  # torch before 2.0 has none: only phalanx.step counts there
        return
    register(_after_step)


def _after_step(optimizer, args, kwargs):
    global _first_optimizer, _awaits_number
    if _first_optimizer is None or _first_optimizer() is not optimizer:
        if _first_optimizer is not None and _first_optimizer() is not None:
            return
        _first_optimizer = weakref.ref(optimizer)  # the first; or the first is gone, and the script made another
    steps = board.optimizer_stepped()
    if _report is not None:
        if _awaits_number:
            _awaits_number = False
        else:
            _first_step(steps)
    if board.on_step is not None and not board.tells_steps():
        board.on_step(steps)


# torch.compile must not trace into the hook: it has no tensors, and new numbers each time.
_after_step._torchdynamo_disable = True
_after_step._torchdynamo_disable_msg = None
_after_step._torchdynamo_disable_recursive = True


def _first_step(step):
    """The first optimizer step or phalanx.step of this life, whichever comes first."""
    global _report
    board.on_first_step = None
    report, _report = _report, None
    if report is not None:
        board.first_step_done()
        report(step)
