"""What a script takes of modules and of the environment between two of its imports: a later import that puts another
value there would change what the script is given, since all of the prefix is imported before its first line."""

import collections
import enum
import itertools
import os
import sys
import types

from phalanx._bootstrap import places
from phalanx._bootstrap.scanning.takes import CONTENTS, OF, shown
from phalanx._bootstrap.watching.modules import answers_as_usual, is_module, kept_names, names_of

_ENVIRONMENT = "os.environ"
_UNSEEN = object()  # its module is not there
_ABSENT = object()  # its module or class is there, and has no such name
_LAZY = object()  # the same of a module that may answer with a part of it, which it imports then
_UNCLEAR = object()  # only code of a library could say what it is

_ALL_NAMES = ".__dict__"
_DEPTH_MAX = 4  # of containers in containers
_PARTS_MAX = 20_000  # of all of them
# What holds the same for ever, or only what the walk goes through by itself.
_CONSTANT = (str, bytes, int, float, complex, range, enum.Enum, type, types.ModuleType)
_ENTERED = (list, tuple, set, frozenset, collections.deque)
_READ_BY_C = (types.GetSetDescriptorType, types.MemberDescriptorType)
_METHODS = (
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType),
    *(types.ClassMethodDescriptorType, classmethod, staticmethod),
)


class Taken:
    """`names`: scan.Scan.taken, {dotted name: how many steps of the prefix come before each place where the script
    takes it}; "os.environ:NAME" is a variable, "os.environ:" all of them, "name[]" what is in a container, too;
    "a.b:c" is c of what sys.modules has by the name a.b."""

    def __init__(self, names):
        self._names_at = {}
        for name, counts in names.items():
            for at in counts:
                self._names_at.setdefault(at, []).append(name)
        self._values = {}
        self._contents = {}  # {name: what was in it, in one list}
        self.unclear = None  # a name that the script has taken, and of which nobody can tell whether it changes
        self._steps = 0

    def step_begins(self, ask=lambda name: None):
        """Before each step of the prefix. `ask` is called with dotted names that modules of the standard library may
        make when they are asked for them (typing.ContextManager, from Python 3.13 on), as the script does there."""
        for name in self._names_at.pop(self._steps, ()):
            place, looks_into, _ = name.partition(CONTENTS)
            on_demand = _made_on_demand(place)
            if on_demand is not None:
                ask(on_demand)
            self._take(place, looks_into)
        self._steps += 1

    def _take(self, place, looks_into):
        if place.endswith(_ALL_NAMES):
            names = _all_names_at(place)
            if names is not None:
                self._contents[place] = names
            elif _value_of(place[: -len(_ALL_NAMES)]) is not _UNSEEN:
                self.unclear = self.unclear or place
            return
        value = _value_of(place)
        if value is _UNSEEN:
            return
        if value is _UNCLEAR or not _is_same(value, _value_of(place), place):
            self.unclear = self.unclear or place
            return
        if value is not sys.argv and value is not getattr(sys, "orig_argv", _UNSEEN):  # preload.py counts who has them
            self._values[place] = value
        contents = _contents_of(value) if looks_into else None
        if contents is _UNCLEAR:
            self.unclear = self.unclear or place
        elif contents is not None:
            self._contents[place] = contents

    def changed(self):
        """The first name that has been taken and has another value now; or None."""
        for name, value in self._values.items():
            if not _is_same(value, _value_of(name), name):
                return shown(name)
        for name, before in self._contents.items():
            now = _all_names_at(name) if name.endswith(_ALL_NAMES) else _contents_of(_value_of(name))
            if not _are_the_same(before, now):
                return f"what is in {shown(name)}"
        return None


def keeps(module, attribute):
    """Whether a module answers with a name that it has: one that it has not runs code of its own each time."""
    if not answers_as_usual(module):
        return False
    return attribute in names_of(module) or hasattr(types.ModuleType, attribute)


def _is_same(before, now, name):
    """Whether a value is the one that it was; what C computes for each question is compared."""
    if before is _LAZY and is_module(now):
        return not places.is_standard_name(name)  # of libraries the script's own look would have imported it
    if before is now or type(before) is not type(now):
        return before is now
    return (name.startswith(_ENVIRONMENT) or type(before) in (str, bytes, int, float)) and before == now


def _are_the_same(before, now):
    return type(now) is list and len(before) == len(now) and all(one is other for one, other in zip(before, now))


def _all_names_at(place):
    """The names, each with its value, that a module or a class has itself: `place` is that of its __dict__."""
    owner = _value_of(place[: -len(_ALL_NAMES)])
    if owner is sys:
        return list(names_of(sys))  # its values are the process's own: each rank has others
    if is_module(owner):
        return [part for pair in list(names_of(owner).items()) for part in pair]
    if issubclass(type(owner), type):
        return [part for pair in list(type.__getattribute__(owner, "__dict__").items()) for part in pair]
    return None


def _contents_of(value):
    """What a container holds, and containers in it, of Python's own kinds or derived from one, without a call of its
    code. None: it is no container; _UNCLEAR: one of another kind, or too much."""
    if not _has_contents(value):
        return None
    found, left = [], [(value, 0)]
    while left:
        container, depth = left.pop()
        parts = _parts_of(container)
        if parts is None or depth > _DEPTH_MAX or len(found) + len(parts) > _PARTS_MAX:
            return _UNCLEAR
        found += parts
        left += [(part, depth + 1) for part in parts if _has_contents(part)]
    return found


def _has_contents(value):
    kind = type(value)  # past what a value may say of its class: a proxy would look for what it stands for
    return not issubclass(kind, _CONSTANT) and any("__len__" in vars(base) for base in kind.__mro__)


def _parts_of(container):
    """Of one that is too large only that it is."""
    if issubclass(type(container), dict):
        few = itertools.islice(dict.items(container), _PARTS_MAX)
        return [part for pair in few for part in pair]
    kind = next((kind for kind in _ENTERED if issubclass(type(container), kind)), None)
    return None if kind is None else list(itertools.islice(kind.__iter__(container), _PARTS_MAX + 1))


def _value_of(name):
    """What stands there, as far as that can be seen without asking a module for what it has not loaded."""
    if name.startswith(_ENVIRONMENT + OF):
        variable = name[len(_ENVIRONMENT + OF) :]
        return os.environ._data.get(os.environ.encodekey(variable)) if variable else dict(os.environ._data)
    place, value = _way_to(name)[-1]
    return _UNSEEN if value is _LAZY and place != name.replace(OF, ".") else value


def _way_to(name):
    """[(dotted name, value), ...] from the module that it begins with, as far as that can be seen."""
    place, is_base, rest = name.partition(OF)
    if not is_base:
        place, _, rest = name.partition(".")
    way = [(place, sys.modules.get(place, _UNSEEN))]
    for part in rest.split(".") if rest else ():
        value = way[-1][1]
        if value is _UNSEEN or value is _ABSENT or value is _UNCLEAR or value is _LAZY:
            break
        place, value = f"{place}.{part}", _attribute_of(value, part)
        if value is _ABSENT or value is _LAZY:  # a module whose package has not been given it, or no more
            value = sys.modules.get(place, value)
        way.append((place, value))
    return way


def _made_on_demand(name):
    """The dotted name of what a module of the standard library may make when it is asked for, on the way; or None."""
    if name.startswith(_ENVIRONMENT + OF):
        return None
    place, value = _way_to(name)[-1]
    return place if value is _LAZY and places.is_standard_name(place) else None


def _attribute_of(value, name):
    """What getattr gives, where that runs no Python code: else _UNCLEAR."""
    kind = type(value)
    if name == "__dict__":
        return _UNCLEAR  # what is behind all that it has
    if issubclass(kind, type):
        return _attribute_of_class(value, name)
    if kind is types.ModuleType:
        return vars(value).get(name, _LAZY if "__getattr__" in vars(value) else _ABSENT)
    if not isinstance(_found_in(kind.__mro__, "__getattribute__"), types.WrapperDescriptorType):
        return _UNCLEAR
    of_class, own = _found_in(kind.__mro__, name), kept_names(value)
    if isinstance(of_class, _READ_BY_C):
        return _read_by_c(value, name)
    if issubclass(kind, enum.Enum) and of_class is not _ABSENT:
        return value  # a member says the same for ever
    if name in own and not hasattr(type(of_class), "__set__"):
        return own[name]
    if of_class is _ABSENT:
        return _ABSENT if _has_no_others(kind) else _UNCLEAR
    return of_class if isinstance(of_class, _METHODS) or not hasattr(type(of_class), "__get__") else _UNCLEAR


def _attribute_of_class(value, name):
    found = _found_in(type.__getattribute__(value, "__mro__"), name)
    if found is not _ABSENT:
        return found
    meta = type(value)
    found = _found_in(meta.__mro__, name)
    if isinstance(found, _READ_BY_C):
        return _read_by_c(value, name, type)
    if found is _ABSENT:
        return _ABSENT if _found_in(meta.__mro__, "__getattr__") is _ABSENT else _UNCLEAR
    return found if isinstance(found, _METHODS) or not hasattr(type(found), "__get__") else _UNCLEAR


def _found_in(classes, name):
    return next((vars(base)[name] for base in classes if name in vars(base)), _ABSENT)


def _read_by_c(value, name, reader=object):
    try:
        return reader.__getattribute__(value, name)
    except AttributeError:
        return _ABSENT  # a slot that is empty


def _has_no_others(kind):
    """Whether its objects have no names but those in their classes and in themselves."""
    owner = getattr(_found_in(kind.__mro__, "__getattribute__"), "__objclass__", None)
    is_usual = getattr(owner, "__module__", "") in ("builtins", "types", "functools")
    return is_usual and _found_in(kind.__mro__, "__getattr__") is _ABSENT
