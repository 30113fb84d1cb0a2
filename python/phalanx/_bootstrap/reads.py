"""Notes which files and folders a library looks at while it is imported: a rank may find others there."""

import builtins
import io
import os
import posix  # its functions stay what they are while those of `os` are watched
import stat
import sys

_OF_THIS_PROCESS = ("/proc/self/", "/proc/thread-self/")
_DRAWS = ("/dev/random", "/dev/urandom")
_LEFT_OUT = ("/dev/", "/proc/", "/sys/")
_WRITES = frozenset("wax+")


def look(path, how):
    """What a look at a path comes to, None where nothing is there. `how` is "file" for its size and time of change,
    "names" for the time at which a folder's names have changed, "kind" for what it is."""
    try:
        info = posix.stat(path)
    except (OSError, ValueError):
        return None
    if how == "names":
        return info.st_mtime_ns
    if how == "kind" and not stat.S_ISREG(info.st_mode):
        return stat.S_IFMT(info.st_mode)
    return info.st_size, info.st_mtime_ns


class Reads:
    """`seen`: {(path, how): what look said}. `library_at_work(frame)` names the library whose import calls, "" where
    nobody's does that counts; `asked(frame, why)` is told of what no fork may inherit, and may raise."""

    def __init__(self, library_at_work, asked):
        self.seen = {}
        self._library_at_work = library_at_work
        self._asked = asked

    def watched(self):
        """(holder, name, function that takes its place) of all that opens, lists or asks for files."""
        opening = self._opening(builtins.open)
        yield builtins, "open", opening
        yield io, "open", opening
        yield os, "open", self._opening_by_flags(os.open)
        for name in ("stat", "lstat", "access", "readlink"):
            yield os, name, self._looking(getattr(os, name), "kind")
        for name in ("listdir", "scandir"):
            yield os, name, self._looking(getattr(os, name), "names")

    def settle(self):
        """Behind a library's import: what it has made itself counts as having been there."""
        for path, how in self.seen:
            self.seen[path, how] = look(path, how)

    def _opening(self, original):
        def opening(file, mode="r", *args, **named):
            if not (isinstance(mode, str) and _WRITES.intersection(mode)):
                self._note(file, "file")
            return original(file, mode, *args, **named)

        return opening

    def _opening_by_flags(self, original):
        def opening(path, flags, *args, **named):
            if not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self._note(path, "names" if flags & os.O_DIRECTORY else "file")
            return original(path, flags, *args, **named)

        return opening

    def _looking(self, original, how):
        def looking(path=".", *args, **named):
            self._note(path, how)
            return original(path, *args, **named)

        return looking

    def _note(self, path, how):
        if isinstance(path, int):
            return
        try:
            path = os.path.abspath(os.fsdecode(path))
        except (TypeError, ValueError, OSError):
            return  # the call itself will say so
        frame = sys._getframe(2)
        if path.startswith(_OF_THIS_PROCESS) or path.startswith(f"/proc/{posix.getpid()}/"):
            self._asked(frame, f"it looks at {path}, which is another process's in a rank")
        elif path in _DRAWS:
            self._asked(frame, "it draws random numbers, which every rank would draw alike")
        elif not path.startswith(_LEFT_OUT) and (path, how) not in self.seen and self._library_at_work(frame):
            self.seen[path, how] = look(path, how)
