"""Functions that imports replace in modules which were there before, as torch._dynamo does with torch.manual_seed, and
torch.package with inspect.getfile: they are put back when what has replaced them is hidden, and replaced again when it
is given out. So with the folder for temporary files, which tempfile keeps from the first question on."""

import collections
import sys
import types

from phalanx._bootstrap.watching.modules import is_module
from phalanx._bootstrap.watching.modules import names_of as _names_of

Replaced = collections.namedtuple("Replaced", "name module attribute before after")
Replaced.__doc__ = """`name`: that of `module`. `before` is None where the value was none."""

_FOLDER = ("tempfile", "tempdir")
_CODE = (types.FunctionType, types.BuiltinFunctionType, type)


class Picture:
    """Of the functions and classes that the modules which are there have by name."""

    def __init__(self):
        self._values = {}
        self._folder = _folder()
        self.add(sys.modules)

    def add(self, names):
        """Modules that have come."""
        for name in names:
            module = sys.modules[name]
            if is_module(module) and _names_of(module).get("__name__") != "__main__":
                names = _names_of(module)
                self._values[name] = module, {key: value for key, value in names.items() if _is_code(value)}

    def changes(self):
        """[Replaced, ...] since it was made or asked; only those of modules that are in sys.modules now."""
        found = []
        for name, (module, values) in self._values.items():
            if sys.modules.get(name) is not module:
                continue
            now = _names_of(module)
            changed = [key for key, value in values.items() if now.get(key) is not value]
            found += [Replaced(name, module, key, values[key], now[key]) for key in changed if key in now]
            values.update((key, now[key]) for key in changed if key in now)
        if _folder() is not self._folder:
            found.append(Replaced(_FOLDER[0], sys.modules[_FOLDER[0]], _FOLDER[1], self._folder, _folder()))
            self._folder = _folder()
        return found

    def note(self, changes, is_done):
        """These have been done, or undone, by others than an import."""
        for change in changes:
            value = change.after if is_done else change.before
            if (change.name, change.attribute) == _FOLDER:
                self._folder = value
            else:
                self._values[change.name][1][change.attribute] = value


def undo(changes):
    for change in reversed(changes):
        if _names_of(change.module).get(change.attribute) is change.after:
            setattr(change.module, change.attribute, change.before)


def redo(changes):
    """Leaves alone what is another by now."""
    for change in changes:
        if _names_of(change.module).get(change.attribute) is change.before:
            setattr(change.module, change.attribute, change.after)


def by_libraries(changes, tops):
    """Of these the ones that these libraries have done: what stands there now is theirs."""
    return [change for change in changes if str(getattr(change.after, "__module__", "")).partition(".")[0] in tops]


def why_not(changes):
    """Why these cannot be done again, or None."""
    for change in changes:
        now = _names_of(change.module).get(change.attribute)
        if (change.name, change.attribute) == _FOLDER:
            # The script may have made it, or removed it, since: who asked for it has kept what was the answer then.
            if now is None and change.module.gettempdir() != change.after:
                return "the folder for temporary files is another one now"
        elif now is not change.before and now is not change.after:
            return f"the script has replaced {change.name}.{change.attribute}"
    return None


def _is_code(value):
    """Not what a module notes for itself, which may say what it has done where nobody can undo it."""
    return issubclass(type(value), _CODE)  # past what a value may say of its class


def _folder():
    return getattr(sys.modules.get(_FOLDER[0]), _FOLDER[1], None)
