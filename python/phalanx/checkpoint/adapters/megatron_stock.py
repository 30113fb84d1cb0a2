"""Megatron-LM's own checkpointing, where the program is Megatron-LM; none where it has megatron-core alone."""

import importlib
import sys

_PACKAGES = ("megatron.training", "megatron")  # since 0.6, and before


def args():
    """What its get_args() gives; None: Megatron-LM has not been initialized here."""
    package = _package()
    return None if package is None else sys.modules[f"{package}.global_vars"]._GLOBAL_ARGS


def is_here(given):
    """Whether it is Megatron-LM that saves and loads, by args(): not where a program has given others of its own."""
    own = args()
    return own is not None and (given is None or given is own)


def checkpointing():
    """The module with its save_checkpoint() and load_checkpoint(), where there are args()."""
    return importlib.import_module(f"{_package()}.checkpointing")


def _package():
    for name in _PACKAGES:
        if getattr(sys.modules.get(f"{name}.global_vars"), "_GLOBAL_ARGS", None) is not None:
            return name
    return None
