"""Modules, looked at without running their code: one may be loaded when it is looked at, or answer by a property."""

import types

names_of = types.ModuleType.__dict__["__dict__"].__get__  # of a module, past what it may say


def is_module(value):
    """Past what a value may say of its class."""
    return issubclass(type(value), types.ModuleType)


def answers_as_usual(module):
    """Whether looking at what it has runs no code of its own."""
    return is_module(module) and type(module).__getattribute__ is types.ModuleType.__getattribute__
