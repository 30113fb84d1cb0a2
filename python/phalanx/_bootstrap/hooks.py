"""Counts optimizer steps on the board, without a change of the script and without importing torch. saves.py does the
same for checkpoints."""

import importlib.util
import sys
import weakref
from time import monotonic_ns

from phalanx._bootstrap import board, saves

_OPTIMIZER_MODULE = "torch.optim.optimizer"

_first_optimizer = None  # weak reference to the first optimizer seen; the script must be able to drop it
_report = None  # told the first step, then None
_awaits_number = False  # the script will say its number itself, a moment after the optimizer has stepped


def install(report, exact=False):
    """From now on every step is counted on the board, and the first one of this life is told to `report(step)`.

    `exact`: the life before called phalanx.step, whose number is waited for, until the second optimizer step at most.
    """
    global _report, _awaits_number
    _report = report
    _awaits_number = exact
    board.on_first_step = _first_step
    when_loaded({_OPTIMIZER_MODULE: _register, **saves.HOOKS})


def forget():
    """In a forked child of the rank: its steps are its own business."""
    global _report
    _report = None
    board.let_go()


def when_loaded(calls):
    """Calls `calls[name](module)` for each of these modules: now, or as soon as whoever wants it has loaded it."""
    late = {}
    for name, call in calls.items():
        if name in sys.modules:
            call(sys.modules[name])
        else:
            late[name] = call
    if late:
        sys.meta_path.insert(0, _LoadWatch(late))


class _LoadWatch:
    """Waits for modules, sees them loaded by whoever loads them, and leaves behind the last."""

    def __init__(self, calls):
        self._calls = calls

    def find_spec(self, name, path=None, target=None):
        call = self._calls.pop(name, None)
        if call is None:
            return None
        if not self._calls:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = getattr(spec and spec.loader, "exec_module", None)
        if execute is None:
            return spec

        def execute_then_call(module):
            del spec.loader.exec_module
            execute(module)
            call(module)

        try:
            spec.loader.exec_module = execute_then_call
        except AttributeError:
            pass  # a loader that takes no attributes: no counting
        return spec


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
    words = board.words
    words[1] += 1  # OPTIMIZER_STEPS
    words[3] = monotonic_ns()  # CHANGED_NS
    if _report is not None:
        if _awaits_number:
            _awaits_number = False
        else:
            _first_step(words[1])


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
