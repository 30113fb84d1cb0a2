"""Counts optimizer steps on the board, without a change of the script and without importing torch."""

import importlib.util
import sys
import weakref
from time import monotonic_ns

from phalanx._bootstrap import board

_OPTIMIZER_MODULE = "torch.optim.optimizer"

_first_optimizer = None  # weak reference to the first optimizer seen; the script must be able to drop it
_handle = None
_report = None


def install(report):
    """From now on every step is counted on the board, and the first one of this life is told to `report(step)`."""
    global _report
    _report = report
    board.on_first_step = _first_step
    if _OPTIMIZER_MODULE in sys.modules:
        _register(_before_first_step)
    else:
        sys.meta_path.insert(0, _OptimizerFinder())


class _OptimizerFinder:
    """Waits for torch's optimizer module, sees it loaded by whoever loads it, and leaves."""

    def find_spec(self, name, path=None, target=None):
        if name != _OPTIMIZER_MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = getattr(spec and spec.loader, "exec_module", None)
        if execute is None:
            return spec

        def execute_then_hook(module):
            execute(module)
            _register(_before_first_step)

        try:
            spec.loader.exec_module = execute_then_hook
        except AttributeError:
            pass  # a loader that takes no attributes: no counting
        return spec


def _register(hook):
    global _handle
    module = sys.modules.get(_OPTIMIZER_MODULE)
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if _handle is not None:
        _handle.remove()
        _handle = None
    if register is not None:  # torch before 2.0 has none: only phalanx.step counts there
        _handle = register(hook)


def _before_first_step(optimizer, args, kwargs):
    global _first_optimizer
    _first_optimizer = weakref.ref(optimizer)
    _register(_after_step)
    _after_step(optimizer, args, kwargs)
    _first_step(1)


def _after_step(optimizer, args, kwargs):
    global _first_optimizer
    first = _first_optimizer()
    if first is not optimizer:
        if first is not None:
            return
        _first_optimizer = weakref.ref(optimizer)  # the first one is gone: the script made another
    words = board.words
    words[1] += 1  # OPTIMIZER_STEPS
    words[3] = monotonic_ns()  # CHANGED_NS


def _first_step(step):
    """The first optimizer step or phalanx.step of this life, whichever comes first."""
    global _report
    board.on_first_step = None
    report, _report = _report, None
    if report is not None:
        board.first_step_done()
        report(step)


def forget():
    """In a forked child of the rank: its steps are its own business."""
    global _report
    _report = None
    board.let_go()
