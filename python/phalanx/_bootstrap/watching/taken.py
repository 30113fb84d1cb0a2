"""What a script takes of modules and of the environment between two of its imports: a later import that puts another
value there would change what the script is given, since all of the prefix is imported before its first line."""

import collections
import os
import sys
import types

from phalanx._bootstrap.scanning.takes import CONTENTS

_ENVIRONMENT = "os.environ"
_UNSEEN = object()  # nothing, or what its module would have to be asked for, which may import


class Taken:
    """`names`: scan.Scan.taken, {dotted name: how many steps of the prefix come before the script first takes it};
    "os.environ:NAME" is a variable, "os.environ:" all of them, "name[]" what is in a container, too."""

    def __init__(self, names):
        self._names_at = {}
        for name, at in names.items():
            self._names_at.setdefault(at, []).append(name)
        self._values = {}
        self._contents = {}  # {name: what was in it, in one list}
        self._steps = 0

    def step_begins(self):
        """Before each step of the prefix."""
        for name in self._names_at.pop(self._steps, ()):
            place, looks_into, _ = name.partition(CONTENTS)
            value = _value_of(place)
            if value is not _UNSEEN:
                self._values[place] = value
            contents = _contents_of(value) if looks_into else None
            if contents is not None:
                self._contents[place] = contents
        self._steps += 1

    def changed(self):
        """The first name that has been taken and has another value now; or None."""
        for name, value in self._values.items():
            now = _value_of(name)
            if now is not value and not (name.startswith(_ENVIRONMENT) and now == value):
                return name.replace(":", " ").strip()
            before = self._contents.get(name)
            if before is not None and not _are_the_same(before, _contents_of(value)):
                return f"what is in {name}"
        return None


def keeps(module, attribute):
    """Whether a module answers with a name that it has: one that it has not runs code of its own each time."""
    if type(module).__getattribute__ is not types.ModuleType.__getattribute__:
        return False
    return attribute in vars(module) or hasattr(types.ModuleType, attribute)


def _are_the_same(before, now):
    return len(before) == len(now) and all(one is other for one, other in zip(before, now))


def _contents_of(value):
    """What a container holds, of Python's own kinds or derived from one, without a call of its code. Else None."""
    if isinstance(value, dict):
        return [part for pair in dict.items(value) for part in pair]
    for kind in (list, set, collections.deque):
        if isinstance(value, kind):
            return list(kind.__iter__(value))
    return None


def _value_of(name):
    """What stands there, as far as that can be seen without asking a module for what it has not loaded."""
    place, is_variable, variable = name.partition(":")
    if is_variable:
        return os.environ._data.get(os.environ.encodekey(variable)) if variable else dict(os.environ._data)
    parts = place.split(".")
    value, count = _UNSEEN, 0
    for count in range(len(parts), 0, -1):
        value = sys.modules.get(".".join(parts[:count]), _UNSEEN)
        if value is not _UNSEEN:
            break
    for part in parts[count:]:
        if isinstance(value, type):
            value = next((vars(base)[part] for base in value.__mro__ if part in vars(base)), _UNSEEN)
            continue
        if not isinstance(value, type(sys)):
            break
        value = vars(value).get(part, _UNSEEN)
    return value
