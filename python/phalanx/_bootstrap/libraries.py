"""Maps torch's libraries with a second core while the first imports Python: a third of a second's work for the dynamic
loader, which needs no interpreter."""

import importlib.machinery
import os
import sys
import threading

from phalanx._bootstrap import linux

# With the extension modules that MEANWHILE wants: importing one waits for the loader's one lock. generated.py wants
# dataclasses.
FIRST = (
    *("cmath", "ctypes", "dataclasses", "decimal", "fractions", "inspect", "random", "shutil", "subprocess", "typing"),
    *("grp", "unicodedata"),
)
# What torch's late parts import and what imports nothing of torch.
MEANWHILE = ("sympy",)

# As torch loads them. libtorch_python is left to torch: its initialisers may want the interpreter.
_LIBRARIES = (("libtorch_global_deps.so", os.RTLD_GLOBAL | os.RTLD_NOW), ("libtorch.so", os.RTLD_LOCAL | os.RTLD_NOW))


def start_mapping():
    """A started thread that ends when the libraries are mapped, or None. What it cannot load torch will tell of."""
    spec = importlib.machinery.PathFinder.find_spec("torch", sys.path)
    folders = spec.submodule_search_locations if spec is not None else None
    ctypes = linux.ctypes
    dlopen = getattr(ctypes.CDLL(None), "dlopen", None) if ctypes else None
    if not folders or dlopen is None:
        return None
    dlopen.argtypes, dlopen.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    folder = os.path.join(next(iter(folders)), "lib")

    def map_libraries():
        for name, flags in _LIBRARIES:
            dlopen(os.fsencode(os.path.join(folder, name)), flags)

    # With a name of its own it takes none of the numbers that a script's threads are named by.
    thread = threading.Thread(target=map_libraries, name="phalanx-map")
    thread.start()
    return thread
