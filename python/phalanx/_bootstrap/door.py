"""Makes the bootstrap importable as phalanx._bootstrap from wherever its files lie, and nothing else.

Until the door is closed modules of the standard library are those of this interpreter, whatever PYTHONPATH has by their
names: what a folder there has is for the script.
"""

import os
import sys
from _frozen_importlib import module_from_spec
from _frozen_importlib_external import PathFinder, spec_from_file_location


def open_door(modules_at_start):
    """`modules_at_start`: what was imported before the door's own first import."""
    here = os.path.dirname(os.path.abspath(__file__))
    # Python resolves links in the entry that it puts there, but not in __file__.
    if sys.path and os.path.realpath(sys.path[0]) == os.path.realpath(here):
        del sys.path[0]  # where our files lie they would stand in the way of the script's
    if PathFinder in sys.meta_path:
        sys.meta_path.insert(sys.meta_path.index(PathFinder), _StandardFirst)
    for name, folder in (("phalanx", os.path.dirname(here)), ("phalanx._bootstrap", here)):
        init = os.path.join(folder, "__init__.py")
        spec = spec_from_file_location(name, init, submodule_search_locations=[folder])
        module = module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    from phalanx._bootstrap import places

    places.modules_at_start = modules_at_start


def close_door():
    """To be called when all of the bootstrap is imported, and nothing else yet."""
    from phalanx._bootstrap import places

    if _StandardFirst in sys.meta_path:
        sys.meta_path.remove(_StandardFirst)
    places.note_our_modules()
    for entry in _entries_in_front():
        places.forget(places.names_in(entry, places.our_modules))


def _standard_entries():
    """Of sys.path those of the standard library. None where it is on none, as in a frozen program."""
    home = os.path.dirname(os.__file__)
    if home not in sys.path:
        return []
    return [home, *(entry for entry in sys.path[sys.path.index(home) :] if os.path.basename(entry) == "lib-dynload")]


def _entries_in_front():
    """Of sys.path those that hide modules of the standard library: of PYTHONPATH."""
    standard = _standard_entries()
    return sys.path[: sys.path.index(standard[0])] if standard else []


class _StandardFirst:
    """Finds the standard library's modules in front of what finds those on sys.path."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, _standard_entries()) if path is None else None
