"""Notes which files and folders a library looks at while it is imported: a rank may find others there."""

import _io  # which importlib has, and of which `io` has the names
import builtins
import io
import os
import posix  # its functions stay what they are while those of `os` are watched
import stat
import sys

from phalanx._bootstrap import places

_OF_THIS_PROCESS = ("/proc/self/", "/proc/thread-self/")
_DRAWS = ("/dev/random", "/dev/urandom")
_LEFT_OUT = ("/dev/", "/proc/", "/sys/")
_WRITES = frozenset("wax")
# Who asks for no more than whether something is there, and what: of os.path and of pathlib.
_ASK_FOR_KIND = frozenset("exists lexists isfile isdir islink ismount is_file is_dir is_symlink is_mount".split())
# Who lists folders for installed packages alone.
_LIST_PACKAGES = ("importlib.metadata", "importlib_metadata", "pkg_resources")
# Of what a folder has, the names that end like this.
_OF_FOLDERS = {"names": "", "packages": (".dist-info", ".egg-info", ".egg", ".egg-link"), "paths": ".pth"}


def look(path, how):
    """What a look at a path comes to, None where nothing is there. `how` is "file" for its size and time of change,
    "kind" for what it is, "link" for where it points, "names" for what a folder has, "packages" for those installed,
    "paths" for its files that say what stands on sys.path."""
    try:
        if how == "link":
            return posix.readlink(path)
        if how in _OF_FOLDERS:
            return _names(path, how)
        info = posix.stat(path)
    except (OSError, ValueError):
        return None
    # The time of a folder changes with each file in it, for which nobody asks who asks for a folder.
    is_kind = how == "kind" or not stat.S_ISREG(info.st_mode)
    return stat.S_IFMT(info.st_mode) if is_kind else (info.st_size, info.st_mtime_ns)


def is_as_it_was(path, how, found):
    """Whether look(path, how) would say `found` now. Folders that nothing came to or went from are not read again."""
    if how in _OF_FOLDERS and found is not None:
        try:
            if posix.stat(path).st_mtime_ns == found[0]:
                return True
        except OSError:
            return False
        now = look(path, how)
        return now is not None and now[1] == found[1]
    return look(path, how) == found


def _names(path, how):
    changed_ns = posix.stat(path).st_mtime_ns
    names = posix.listdir(path)
    return changed_ns, frozenset(name for name in names if name.endswith(_OF_FOLDERS[how]))


class Watched:
    """Stands for a function while it is watched, and is equal to it: shutil asks which functions are in a set. It is
    no function, so that a class that takes it for one of its own does not bind it."""

    def __init__(self, original, note):
        self.original = original
        self._note = note

    def __call__(self, *args, **named):
        self._note(args, named)
        return self.original(*args, **named)

    def __eq__(self, other):
        return other is self or other == self.original

    def __hash__(self):
        return hash(self.original)

    def __getattr__(self, name):
        return getattr(self.original, name)


class WatchedClass(Watched):
    """The same of a class: others may be derived from it, and objects asked whether they are of it."""

    def __mro_entries__(self, bases):
        return (self.original,)

    def __instancecheck__(self, instance):
        return isinstance(instance, self.original)

    def __subclasscheck__(self, subclass):
        return issubclass(subclass, self.original)


class Reads:
    """`seen`: {(path, how): what look said}. `is_on`: whether looks count. `library_at_work(frame)` names the library
    whose import calls, "" where nobody's does that counts; `asked(frame, why)` is told of what no fork may inherit, and
    may raise."""

    def __init__(self, library_at_work, asked):
        self.seen = {}
        self.is_on = False
        self._new = []
        self._library_at_work = library_at_work
        self._asked = asked

    def watched(self):
        """(holder, name, what takes its place) of all that opens, lists or asks for files."""
        opening = Watched(builtins.open, self._opening)
        yield builtins, "open", opening
        yield io, "open", opening
        yield os, "open", Watched(os.open, self._opening_by_flags)
        file, code = WatchedClass(io.FileIO, self._opening), Watched(io.open_code, self._opening_code)
        for holder in (io, _io):
            yield holder, "FileIO", file
            yield holder, "open_code", code
        for name, how in (("stat", "file"), ("lstat", "link"), ("access", "kind"), ("readlink", "link")):
            yield os, name, Watched(getattr(os, name), self._looking(how))
        for name in ("listdir", "scandir"):
            yield os, name, Watched(getattr(os, name), self._looking("names"))

    def settle(self):
        """Behind a library's import: what it has made itself counts as having been there."""
        for path, how in self._new:
            if self.seen[path, how] is None:
                self.seen[path, how] = look(path, how)
        self._new.clear()

    def _opening(self, args, named):
        mode = args[1] if len(args) > 1 else named.get("mode", "r")
        if isinstance(mode, str) and (not _WRITES.intersection(mode) or mode.startswith("a+")):
            self._note(args[0] if args else named.get("file"), "file", named)

    def _opening_code(self, args, named):
        if not _imports(_caller(sys._getframe(1))):
            self._note(args[0] if args else named.get("path"), "file", named)

    def _opening_by_flags(self, args, named):
        flags = args[1] if len(args) > 1 else named.get("flags", 0)
        if isinstance(flags, int) and not flags & (os.O_WRONLY | os.O_CREAT):
            self._note(args[0] if args else named.get("path"), "names" if flags & os.O_DIRECTORY else "file", named)

    def _looking(self, how):
        return lambda args, named: self._note(args[0] if args else named.get("path"), how, named)

    def _note(self, path, how, named):
        if not self.is_on or isinstance(path, int) or named.get("dir_fd") is not None:
            return
        try:
            path = os.path.abspath(os.fsdecode("." if path is None else path))
        except (TypeError, ValueError, OSError):
            return  # the call itself will say so
        frame = _caller(sys._getframe(1))
        if frame is not None and frame.f_code.co_filename.startswith(places.OUR_FOLDER):
            return  # what is seen of a library between two of its imports is not its own doing
        if path.startswith(_OF_THIS_PROCESS) or path.startswith(f"/proc/{posix.getpid()}/"):
            self._asked(frame, f"it looks at {path}, which is another process's in a rank")
        elif path in _DRAWS:
            self._asked(frame, "it draws random numbers, which every rank would draw alike")
        elif not path.startswith(_LEFT_OUT) and self._library_at_work(frame):
            key = path, _narrowed(how, frame)
            if key not in self.seen:
                self.seen[key] = look(*key)
                self._new.append(key)


def _caller(frame):
    """Who has called a watched function, from a frame of this module on."""
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    return frame


def _imports(frame):
    """Whether importlib reads a module there, whose text is looked at by others; its get_data is also for data."""
    above = frame.f_back if frame is not None and frame.f_code.co_name == "get_data" else None
    return above is not None and above.f_code.co_name == "get_code"


def _narrowed(how, frame):
    """How much of what a function tells its caller wants to know."""
    for _ in range(3):  # os.stat below Path.stat below Path.exists
        if frame is None:
            break
        name = frame.f_globals.get("__name__", "")
        if name.startswith(_LIST_PACKAGES):
            return "packages" if how == "names" else how
        if name in ("genericpath", "posixpath", "pathlib") or name.startswith("pathlib."):
            if frame.f_code.co_name in _ASK_FOR_KIND and how in ("file", "link"):
                return "kind"
        elif how != "names":
            break
        frame = frame.f_back
    return how
