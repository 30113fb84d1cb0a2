"""Which files of modules have changed while imports went on: an installer replaces a library file by file, so that some
of what was imported is of one version and some of another, whenever a look at the files comes."""

import os
import posix  # its functions stay what they are while those of `os` are watched
import stat
from importlib.machinery import ExtensionFileLoader, SourceFileLoader, SourcelessFileLoader

from phalanx._bootstrap import places

CHANGED = "changed meanwhile"  # stands for what reads.look said, and is nothing that it ever says

_OF_FILES = (SourceFileLoader, SourcelessFileLoader, ExtensionFileLoader)


class Window:
    """The time from now on. It counts when a file came to its place, or was written there (ctime): its time of change
    is what the installer says."""

    def __init__(self):
        self._begin_ns = _stamp_ns()
        self._changed_ns = {}
        self._folders = {}

    def note(self, path):
        """To be called behind what is remembered of the file: a change between the two is seen, too."""
        self._changed_ns[path] = _changed_ns(path)

    def note_module(self, spec, path):
        """The same of a module's, where a loader has read it from that file, and it is a library's: what others make
        for themselves, as torch in a temporary folder, comes with each start."""
        if isinstance(spec.loader, _OF_FILES) and places.is_library_file(path):
            self.note(path)

    def note_folder(self, folder):
        """Of a package, when a module in it is looked for."""
        if isinstance(folder, str) and folder not in self._folders and places.is_library_file(folder):
            self._folders[folder] = identity(folder)

    def changed(self):
        """Of the files noted those that have changed or gone, and the folders that others have taken the place of."""
        # One that is ahead of the clock says nothing, in this start or any other.
        end_ns = _stamp_ns()
        files = [path for path, ns in self._changed_ns.items() if ns is None or self._begin_ns <= ns <= end_ns]
        return files + [folder for folder, known in self._folders.items() if identity(folder) != known]


def identity(folder):
    """(device, inode); None where it is gone, or no name of a folder at all."""
    try:
        info = posix.stat(folder)
    except (OSError, ValueError):
        return None
    return info.st_dev, info.st_ino


def _stamp_ns():
    """What the kernel would stamp a file with now, by its clock that ticks more coarsely than others."""
    fd = os.memfd_create("phalanx-clock")
    try:
        return os.fstat(fd).st_ctime_ns
    finally:
        os.close(fd)


def _changed_ns(path):
    """None where it is gone. A link may have come to point elsewhere."""
    try:
        info = posix.lstat(path)
        return max(info.st_ctime_ns, posix.stat(path).st_ctime_ns) if stat.S_ISLNK(info.st_mode) else info.st_ctime_ns
    except OSError:
        return None
