"""How data preparation says no."""

import importlib


class Refused(Exception):
    """What the user asked for cannot be done. The text is for the user: what, where, and what would be right."""


class BadDocument(Exception):
    """One line (or row) of the input is no document; the text says why. `--on-error` decides what follows."""


def need(module, package, purpose):
    """An optional dependency, imported; refused with the command that brings it where it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Refused(
            f"{purpose} needs the Python package {package} ({error}): pip install 'phalanx[data]', or {package} alone"
        ) from None
