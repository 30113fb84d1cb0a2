"""Brings `deepspeed.elasticity` back where the DeepSpeed that is imported has it no more (0.19.8 and later).

Costs a job without DeepSpeed next to nothing: the finder stands behind all others, so it is asked only for modules that
nobody has, and what it serves, in phalanx.elasticity.deepspeed, is loaded then.
"""

import importlib.util
import os
import sys

from phalanx._bootstrap.watching import load_watch

_PACKAGE = "deepspeed.elasticity"
# Where DeepSpeed reads its configuration. One with elasticity has this function in it.
_CONFIG_MODULE = "deepspeed.runtime.config"
_CONFIG_FUNCTION = "compute_elastic_config"
_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "elasticity", "deepspeed")


def install():
    """From now on, whoever imports DeepSpeed finds its elasticity. A second call changes nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
        load_watch.when_loaded({_CONFIG_MODULE: _watch_config})


def _watch_config(module):
    if not hasattr(module, _CONFIG_FUNCTION):
        from phalanx.elasticity.deepspeed import config_hook

        config_hook.install(module)


class _Finder:
    def find_spec(self, name, path=None, target=None):
        if name != _PACKAGE or not _is_deepspeed(path):
            return None
        folder = os.path.join(_FOLDER, "served")
        init = os.path.join(folder, "__init__.py")
        return importlib.util.spec_from_file_location(name, init, submodule_search_locations=[folder])


def _is_deepspeed(path):
    """Whether that is DeepSpeed, and no folder that happens to have its name."""
    relative = os.path.join(*_CONFIG_MODULE.split(".")[1:]) + ".py"
    return any(os.path.isfile(os.path.join(folder, relative)) for folder in path or ())
