"""Torch, imported once, ahead of all checks."""

import os

from phalanx.node_check.results import Failed, Skipped
from phalanx.node_check.texts import last_line

_OPENBLAS = "OPENBLAS_NUM_THREADS"


class Torch:
    """The module, or why there is none."""

    def __init__(self, module, missing):
        self._module = module
        self._missing = missing  # what a check that needs it raises
        self._count = None

    def counts_threads_by(self, count):
        """`count()` is called by each process that carries out an order: of a torch that another process has imported,
        which may have counted otherwise than this one would."""
        self._count = count

    def begin(self):
        """In the process of an order, before its checks."""
        if self._module is not None and self._count is not None:
            self._count()

    def version(self):
        """As people write it: without what it was built for; None without torch."""
        return str(self._module.__version__).partition("+")[0] if self._module else None

    def needed(self):
        """The module. Raises what the check then ends with."""
        if self._module is None:
            raise self._missing
        return self._module

    def devices(self):
        """How many CUDA devices there are to see. Never in the helper itself, which forks."""
        return self._module.cuda.device_count() if self._module and self._module.cuda.is_available() else 0


def load():
    """Imports it without a thread that stays: a fork takes only the forking thread along, and OpenBLAS starts some."""
    before = os.environ.get(_OPENBLAS)
    os.environ[_OPENBLAS] = "1"
    try:
        return _load()
    finally:
        if before is None:
            del os.environ[_OPENBLAS]
        else:
            os.environ[_OPENBLAS] = before


def _load():
    try:
        import torch
        import torch.distributed
    except ModuleNotFoundError as error:
        if error.name == "torch":
            return Torch(None, Skipped("torch is not installed"))
        return Torch(None, Failed(f"torch cannot be imported: {last_line(error)}"))
    except (ImportError, OSError, RuntimeError, AttributeError, ValueError) as error:
        # One that is there and broken is a fault of this node.
        return Torch(None, Failed(f"torch cannot be imported: {last_line(error)}"))
    return Torch(torch, None)
