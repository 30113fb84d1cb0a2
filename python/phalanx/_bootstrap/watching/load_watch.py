"""Sees modules loaded by whoever loads them, without importing them. Cheap: every rank and every Python below
phalanx.shim begins with this."""

import importlib.util
import sys


def when_loaded(calls):
    """Calls `calls[name](module)` for each of these modules: now, or as soon as whoever wants it has loaded it."""
    late = {}
    for name, call in calls.items():
        if name in sys.modules:
            call(sys.modules[name])
        else:
            late[name] = call
    if late:
        sys.meta_path.insert(0, LoadWatch(late))


def is_awaited(name):
    """Whether somebody waits for that module already."""
    return any(isinstance(finder, LoadWatch) and finder.awaits(name) for finder in sys.meta_path)


def call_for_loaded():
    """Calls for those of them that are there without having been loaded before our eyes."""
    for finder in [finder for finder in sys.meta_path if isinstance(finder, LoadWatch)]:
        finder.call_for_loaded()


class LoadWatch:
    """Waits for modules and leaves behind the last."""

    def __init__(self, calls):
        self._calls = calls

    def awaits(self, name):
        return name in self._calls

    def call_for_loaded(self):
        for name in [name for name in self._calls if name in sys.modules]:
            self._calls.pop(name)(sys.modules[name])
        if not self._calls and self in sys.meta_path:
            sys.meta_path.remove(self)

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
            vars(spec.loader).pop("exec_module", None)  # another watch may have taken its own away with ours
            execute(module)
            call(module)

        try:
            spec.loader.exec_module = execute_then_call
        except AttributeError:
            pass  # a loader that takes no attributes: nobody is called
        return spec
