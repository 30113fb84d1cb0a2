"""Imported by every Python below phalanx.shim when it starts: launches that go through torch become Phalanx's."""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _import_phalanx():
    """phalanx, also where this interpreter has it not: from where this file lies."""
    if importlib.util.find_spec("phalanx") is None:
        folder = os.path.dirname(os.path.dirname(_HERE))
        spec = importlib.util.spec_from_file_location(
            "phalanx", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )
        sys.modules["phalanx"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["phalanx"])


def _run_hidden():
    """The sitecustomize that would have been imported but for this one."""
    folders = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", folders)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_import_phalanx()

from phalanx.shim import hooks  # noqa: E402

hooks.start()
_run_hidden()
