"""Which warnings are shown, and how, for a while. Not by warnings.catch_warnings: behind that each module says again
what it has said already."""

import contextlib
import warnings

_NAMES = [name for name in ("showwarning", "formatwarning", "_showwarnmsg") if hasattr(warnings, name)]
_FILTERS = tuple(warnings.filters)
_AT_START = {name: getattr(warnings, name) for name in _NAMES}  # before any library: sitecustomize may have its own


@contextlib.contextmanager
def _having(filters, **functions):
    """The list stays the same one: Python keeps the one that it has looked at last, and goes by that at its end."""
    list_of_them, before = warnings.filters, [*warnings.filters]
    usual = {name: getattr(warnings, name) for name in functions}
    list_of_them[:] = filters
    vars(warnings).update(functions)
    try:
        yield
    finally:
        list_of_them[:] = before
        vars(warnings).update(usual)


def as_at_start():
    """As this interpreter begins, whatever libraries have set since."""
    return _having(_FILTERS, **_AT_START)


def none():
    return _having([("ignore", None, Warning, None, 0)])
