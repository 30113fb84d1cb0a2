"""Our native libraries, which lie beside the modules that load them."""

import ctypes
import os


class LibraryMissing(ImportError):
    """A native library is not there, or is not the one that its package speaks with."""


def load(package, folder, name, version, functions, kind=ctypes.CDLL):
    """The library `name` in `folder`, as ctypes has it. `functions`: {name: (result type, argument types)}; the first
    of them tells the version. `kind`: ctypes.PyDLL for one that calls Python. Raises LibraryMissing."""
    path = os.path.join(folder, name)
    try:
        loaded = kind(path)
        for function_name, (result, arguments) in functions.items():
            function = getattr(loaded, function_name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise LibraryMissing(f"{package}: its native library cannot be loaded: {error}") from None
    found = getattr(loaded, next(iter(functions)))()
    if found != version:
        raise LibraryMissing(f"{package}: {path} speaks version {found}, this package {version}")
    return loaded
