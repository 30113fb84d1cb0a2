"""Names of variables that only ranks have, for a library that looks through all of the environment: it may find out
that none is one of those it looks for, by their beginning say. Whatever else it does with one is told."""

import sys

# Stands for a value. No library looks for it, and none has it by chance: C may join it into a text, past all methods.
_VALUE = "\0phalanx: a value that each rank has of its own\0"
_ANSWERS_NO = ("startswith", "endswith", "__contains__", "__eq__")
_SAME_KIND = ("lower", "upper", "casefold", "strip")
_LEFT_ALONE = frozenset(
    "__new__ __init__ __class__ __getattribute__ __setattr__ __delattr__ __dir__ __doc__ __init_subclass__ "
    "__subclasshook__ __sizeof__ __getnewargs__ __reduce__ __reduce_ex__".split()
)


class Tracked:
    """Makes such names; `tell()` is called where one is used, and may raise."""

    def __init__(self, tell):
        self._tell = tell
        self._handed_out = []
        self._kind = self._make_kind()

    def names(self, names):
        for name in names:
            self._handed_out.append(self._kind(name))
            yield self._handed_out[-1]

    def is_one(self, name):
        return type(name) is self._kind

    def value(self):
        """What stands for the value of such a variable."""
        self._handed_out.append(self._kind(_VALUE))
        return self._handed_out[-1]

    def are_in_hands(self):
        """Whether some have been handed out since the last forget()."""
        return bool(self._handed_out)

    def is_in(self, text, names):
        """Whether a text, or bytes, has a value in it, or all these names."""
        if isinstance(text, bytes):
            return _VALUE.encode() in text or all(name.encode() in text for name in names)
        return _VALUE in text or all(name in text for name in names)

    def forget(self):
        """Whether somebody has kept one. None is handed out any more."""
        # The list, the name here and the argument: what is beyond these is somebody's.
        kept = any(sys.getrefcount(name) > 3 for name in self._handed_out)
        self._handed_out.clear()
        return kept

    def _make_kind(self):
        tell = self._tell
        members = {name: _telling(name, tell) for name in dir(str) if name not in _LEFT_ALONE}
        members.update({name: _answering_no(name, tell) for name in _ANSWERS_NO})
        kind = type("str", (str,), members)
        for name in _SAME_KIND:
            setattr(kind, name, _changing(name, kind))
        return kind


def _telling(name, tell):
    method = getattr(str, name)

    def telling(self, *args, **named):
        tell()
        return method(self, *args, **named)

    return telling


def _answering_no(name, tell):
    method = getattr(str, name)

    def answering(self, *args):
        answer = method(self, *args)
        if answer is True:
            tell()
        return answer

    return answering


def _changing(name, kind):
    method = getattr(str, name)

    def changing(self, *args):
        return kind(method(self, *args))

    return changing
