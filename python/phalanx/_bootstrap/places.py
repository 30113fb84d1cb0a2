"""Whose code is it? The interpreter's and installed packages' (libraries), or the user's own."""

import os
import site
import sys
import sysconfig

# Loaded before any of ours: what the interpreter itself and site need. Set by the two doors, first thing.
modules_at_start = frozenset()

# Top-level modules of the standard library that only the bootstrap has wanted so far.
our_modules = frozenset()


def note_our_modules():
    """To be called when all of the bootstrap is imported, and nothing else yet."""
    global our_modules
    names = {name.partition(".")[0] for name in sys.modules}
    our_modules = frozenset(names - modules_at_start - {"phalanx", "__main__"})


def _library_folders():
    paths = sysconfig.get_paths()
    folders = [paths.get(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    for ask in (getattr(site, "getsitepackages", list), getattr(site, "getusersitepackages", str)):
        found = ask()
        folders.extend([found] if isinstance(found, str) else found)
    folders.extend(p for p in sys.path if os.path.basename(p) in ("site-packages", "dist-packages", "lib-dynload"))
    both = {os.path.abspath(f) for f in folders if f} | {os.path.realpath(f) for f in folders if f}
    return ("<frozen ", *sorted(folder + os.sep for folder in both))


_folders = _library_folders()


def is_library_file(path):
    return path.startswith(_folders)


def is_library_module(module):
    """Whether `module` is a normally imported one of the standard library or of an installed package."""
    spec = getattr(module, "__spec__", None)
    origin = getattr(spec, "origin", None)
    return isinstance(origin, str) and (origin in ("built-in", "frozen") or is_library_file(origin))


def own_folder(kind, script, cwd):
    """What a cold start puts first on sys.path: the script's folder, or for -m the working directory."""
    if kind == "module":
        return cwd
    return os.path.dirname(os.path.realpath(os.path.join(cwd, script)))


def first_path_is_unsafe():
    return bool(getattr(sys.flags, "safe_path", False) or sys.flags.isolated)


def own_names(folder):
    """Names of the top-level modules that a first entry `folder` of sys.path could provide."""
    if first_path_is_unsafe():
        return frozenset()
    try:
        entries = os.listdir(folder)
    except OSError:
        return frozenset()
    return frozenset(entry.split(".", 1)[0] for entry in entries)
