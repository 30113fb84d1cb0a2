"""Makes the bootstrap importable as phalanx._bootstrap from wherever its files lie, and nothing else."""

import importlib.util
import os
import sys


def open_door(modules_at_start):
    """`modules_at_start`: what was imported before the door's own first import."""
    here = os.path.dirname(os.path.abspath(__file__))
    # Python resolves links in the entry that it puts there, but not in __file__.
    if sys.path and os.path.realpath(sys.path[0]) == os.path.realpath(here):
        del sys.path[0]  # where our files lie they would stand in the way of the script's
    for name, folder in (("phalanx", os.path.dirname(here)), ("phalanx._bootstrap", here)):
        init = os.path.join(folder, "__init__.py")
        spec = importlib.util.spec_from_file_location(name, init, submodule_search_locations=[folder])
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    from phalanx._bootstrap import places

    places.modules_at_start = modules_at_start
