"""Modules, looked at without running their code: one may be loaded when it is looked at, or answer by a property."""

import sys
import types

names_of = types.ModuleType.__dict__["__dict__"].__get__  # of a module, past what it may say
_KEPT_BY_C = (types.GetSetDescriptorType, types.MemberDescriptorType)


def is_module(value):
    """Past what a value may say of its class."""
    return issubclass(type(value), types.ModuleType)


def kept_names(value):
    """{name: value} of what a module has, or whatever else stands in sys.modules; empty where it keeps none."""
    if is_module(value):
        return names_of(value)
    keeps = next((vars(base)["__dict__"] for base in type(value).__mro__ if "__dict__" in vars(base)), None)
    names = keeps.__get__(value) if isinstance(keeps, _KEPT_BY_C) else None
    return names if type(names) is dict else {}


def is_yet_to_be_loaded(module):
    """Whether it is one of importlib.util.LazyLoader that nobody has looked at."""
    lazy = kept_names(sys.modules.get("importlib.util")).get("_LazyModule")
    return lazy is not None and type(module) is lazy


def answers_as_usual(module):
    """Whether looking at what it has runs no code of its own."""
    return is_module(module) and type(module).__getattribute__ is types.ModuleType.__getattribute__
