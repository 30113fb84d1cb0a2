"""Whose code is it? The interpreter's and installed packages' (libraries), or the user's own."""

import importlib.machinery
import os
import site
import stat
import sys
import sysconfig

from phalanx._bootstrap.watching.modules import kept_names

OUR_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep
OUR_PARENT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # the folder of `phalanx`

# Loaded before any of ours: what the interpreter itself and site need. Set by the two doors, first thing.
modules_at_start = frozenset()
last_preloaded = None  # the module imported last before this process was forked; None: it was not forked

# Top-level modules of the standard library that only the bootstrap has wanted so far.
our_modules = frozenset()


def note_our_modules():
    """To be called by the door."""
    global our_modules
    names = {name.partition(".")[0] for name in sys.modules}
    our_modules = frozenset(names - modules_at_start - {"phalanx", "__main__"})


def forget(names):
    """Has the next import of these look for them anew, with all below them."""
    for name in names:
        for loaded in [n for n in sys.modules if n == name or n.startswith(name + ".")]:
            del sys.modules[loaded]


_PACKAGES = ("site-packages", "dist-packages")


def _library_folders():
    paths = sysconfig.get_paths()
    folders = [paths.get(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    for ask in (getattr(site, "getsitepackages", list), getattr(site, "getusersitepackages", str)):
        found = ask()
        folders.extend([found] if isinstance(found, str) else found)
    folders.extend(p for p in sys.path if os.path.basename(p) in (*_PACKAGES, "lib-dynload"))
    folders.append(os.path.join(OUR_PARENT, "phalanx"))
    both = {os.path.abspath(f) for f in folders if f} | {os.path.realpath(f) for f in folders if f}
    return ("<frozen ", *sorted(folder + os.sep for folder in both))


_folders = _library_folders()
_folders_of_packages = tuple(folder for folder in _folders if os.path.basename(folder[:-1]) in _PACKAGES)
_SUFFIXES = frozenset(importlib.machinery.all_suffixes())


def _standard_names():
    """Names of the standard library's modules. Before Python 3.10 nobody tells them: its folders are looked through."""
    if hasattr(sys, "stdlib_module_names"):
        return sys.stdlib_module_names
    names = set()
    for folder in {sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib")}:
        for place in (folder, os.path.join(folder, "lib-dynload")):
            files = os.listdir(place) if os.path.isdir(place) else ()
            names.update(file.partition(".")[0] for file in files if _is_module(os.path.join(place, file)))
    return frozenset(names)


def _is_module(path):
    return path.endswith(tuple(_SUFFIXES)) or os.path.isfile(os.path.join(path, "__init__.py"))


_STANDARD_NAMES = _standard_names()


def is_library_file(path):
    return path.startswith(_folders)


class Libraries:
    """Tells where links lead from a folder of packages: to a library, where that is another such folder or an installer
    has written it there (a cache of uv, a --target folder), else to the user's own code. To be made anew for each look
    at the world: it remembers."""

    def __init__(self):
        self._real_folders = {folder[:-1]: os.path.realpath(folder[:-1]) for folder in _folders_of_packages}
        self._installed = {}

    def have(self, path):
        """Whether a module's file, or a folder of a namespace package, is a library's."""
        if not is_library_file(path):
            return is_library_file(os.path.realpath(path))
        packages = next((folder for folder in _folders_of_packages if path.startswith(folder)), None)
        if packages is None:
            return True  # the interpreter's
        real = self._real(path)
        if is_library_file(real) or not set(_PACKAGES).isdisjoint(real.split(os.sep)[:-1]):
            return True
        place = real.rsplit(os.sep, 1 + path.count(os.sep, len(packages)))[:2]
        if tuple(place) not in self._installed:
            self._installed[tuple(place)] = _is_installed(*place)
        return self._installed[tuple(place)]

    def _real(self, path):
        """Of files only those that a package begins with may be links: asking for each would take its time."""
        folder, name = os.path.split(path)
        is_first = name.startswith("__init__.") or folder + os.sep in _folders_of_packages
        if is_first and os.path.islink(path):
            return os.path.realpath(path)
        return os.path.join(self._real_folder(folder), name)

    def _real_folder(self, folder):
        if folder not in self._real_folders:
            parent, name = os.path.split(folder)
            real = os.path.join(self._real_folder(parent), name)
            self._real_folders[folder] = os.path.realpath(folder) if os.path.islink(folder) else real
        return self._real_folders[folder]


def _is_installed(folder, name):
    """Whether an installer's list of what it has put into a folder has that file, or folder, of it."""
    try:
        lists = [os.path.join(folder, one, "RECORD") for one in os.listdir(folder) if one.endswith(".dist-info")]
    except OSError:
        return False
    return any(_lists(path, (f"{name},", f"{name}/")) for path in lists)


def _lists(path, beginnings):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return any(line.startswith(beginnings) for line in file)
    except OSError:
        return False


def is_library_module(module):
    """Whether `module` is a normally imported one of the standard library or of an installed package."""
    return is_library_origin(getattr(getattr(module, "__spec__", None), "origin", None))


def is_library_origin(origin):
    """Whether that is where the spec of such a module says that it comes from."""
    return isinstance(origin, str) and (origin in ("built-in", "frozen") or is_library_file(origin))


def is_standard_name(name):
    """Whether that is the name of a module of the standard library, or our own."""
    top = name.partition(".")[0]
    return top == "phalanx" or top in _STANDARD_NAMES or top in sys.builtin_module_names


def version_of(path):
    """What tells one version of a file from another: (size, time of its last change), or None where it is not there."""
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_size, info.st_mtime_ns


def is_read_once(path):
    """Whether it is a pipe, a terminal or the like, whose text only the first who reads it is given."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def entry_of(module):
    """The index of the entry of sys.path that a top-level module was imported from. -1: none can stand in front of it,
    since Python has it in itself; len(sys.path): none is known."""
    spec = kept_names(module).get("__spec__")
    origin = getattr(spec, "origin", None)
    if origin in ("built-in", "frozen"):
        return -1
    if not isinstance(origin, str):
        return len(sys.path)  # a namespace package, which any module of its name hides
    folder = os.path.dirname(origin)
    if spec.submodule_search_locations is not None:
        folder = os.path.dirname(folder)
    return sys.path.index(folder) if folder in sys.path else len(sys.path)


def own_folder(kind, script, cwd):
    """What a cold start puts first on sys.path: the script's folder, or for -m the working directory."""
    if kind == "module":
        return cwd
    return os.path.dirname(os.path.realpath(os.path.join(cwd, script)))


def script_folder_is_left_out():
    return bool(getattr(sys.flags, "safe_path", False) or sys.flags.isolated)


_first_on_path = None  # what put_first_on_path has put there


def put_first_on_path(folder):
    """Puts the script's folder where the interpreter puts it; in the place of another that was put there for a script
    that imports took place for."""
    global _first_on_path
    if script_folder_is_left_out():
        return
    if _first_on_path in sys.path:
        sys.path[sys.path.index(_first_on_path)] = folder
        sys.path_importer_cache.pop(folder, None)  # its list may be older than the newest file
    elif _first_on_path is None:
        sys.path.insert(0, folder)
    _first_on_path = folder


def take_off_path():
    """Takes off sys.path what put_first_on_path has put there."""
    global _first_on_path
    if _first_on_path in sys.path:
        sys.path.remove(_first_on_path)
    _first_on_path = None


def forget_old_finders():
    """In a fork: has Python look again at the entries of sys.path where no folder was, and at archives. Finders of
    folders see for themselves what has changed."""
    cache = sys.path_importer_cache
    for entry in [entry for entry, finder in cache.items() if not isinstance(finder, importlib.machinery.FileFinder)]:
        del cache[entry]
    archives = sys.modules.get("zipimport")
    if archives is not None:
        archives._zip_directory_cache.clear()


def own_folders(folder):
    """Names of the folders in `folder` that may be packages without __init__."""
    if script_folder_is_left_out():
        return frozenset()
    try:
        with os.scandir(folder) as entries:
            return frozenset(entry.name for entry in entries if entry.name.isidentifier() and entry.is_dir())
    except OSError:
        return frozenset()


def own_names(folder, among=None):
    """Names of the top-level modules that `folder` provides as the first entry of sys.path; only those in `among`."""
    return frozenset() if script_folder_is_left_out() else names_in(folder, among)


def names_in(folder, among=None, or_folders=frozenset()):
    """Names of the top-level modules that a folder has; only those in `among`. `or_folders`: names for which a folder
    without __init__ counts, which is a package where nothing else has its name."""
    try:
        with os.scandir(folder) as entries:
            return frozenset(filter(None, (_provided_by(entry, among, or_folders) for entry in entries)))
    except OSError:
        return frozenset()


def _provided_by(entry, among, or_folders):
    """The module that a folder's entry is, or None. A folder of data is none, but for names in `or_folders`."""
    name = entry.name.split(".", 1)[0]
    if among is not None and name not in among:
        return None
    rest = entry.name[len(name) :]
    if rest:
        return name if rest in _SUFFIXES else None
    if any(os.path.exists(os.path.join(entry.path, "__init__" + suffix)) for suffix in _SUFFIXES):
        return name
    return name if name in or_folders and entry.is_dir() else None
