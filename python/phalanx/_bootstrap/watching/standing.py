"""Whether files are as they were, without a look at each of torch's two thousand: the kernel tells (inotify).

Each file is watched by itself, not by its folder: one that has several names (uv and conda link files from a cache) may
be written by another of them."""

import os
import posix  # its functions stay what they are while those of `os` are watched
import select
import stat

from phalanx._bootstrap import linux
from phalanx._bootstrap.watching import changes, reads

# <sys/inotify.h>
_CLOEXEC_NONBLOCK = os.O_CLOEXEC | os.O_NONBLOCK
_MODIFY, _ATTRIB, _DELETE_SELF, _MOVE_SELF, _DONT_FOLLOW = 0x2, 0x4, 0x400, 0x800, 0x02000000
# A file that another is put in the place of loses a name, which is a change of its attributes.
_ALL_CHANGES = _MODIFY | _ATTRIB | _DELETE_SELF | _MOVE_SELF | _DONT_FOLLOW
_ANOTHER_PLACE = _DELETE_SELF | _MOVE_SELF | _DONT_FOLLOW

# Of <linux/magic.h>: file systems where nobody changes a file past this kernel. Not those of other machines.
_LOCAL = {
    "btrfs": 0x9123683E,
    "erofs": 0xE0F5E1E2,
    "ext": 0xEF53,
    "f2fs": 0xF2F52010,
    "overlayfs": 0x794C7630,
    "squashfs": 0x73717368,
    "tmpfs": 0x01021994,
    "xfs": 0x58465342,
}
_LIMIT = "/proc/sys/fs/inotify/max_user_watches"
_SHARE = 16  # no more than that part of what all processes of this user may watch


class Standing:
    """Of `files` {(path, how): what reads.look said}, from when it is made. It holds one descriptor, which forks share;
    nobody reads from it, so that all who have it see the same."""

    def __init__(self, files):
        self._files = files
        self._fd, self._unwatched = -1, files
        # Those with a link in their names; the others, which are watched; what is mounted where.
        self._by_links, self._folders, self._mounts = {}, {}, None
        self._is_local = {}  # of file systems, by device
        if _may_watch(len(files)):
            self._fd = linux.inotify(_CLOEXEC_NONBLOCK)
        if self._fd >= 0:
            self._watch_all()

    def may_differ(self):
        """Of the files those that the caller has to look at: all, where one that is watched has changed."""
        return self._files if self._have_changed() else self._unwatched

    def renewed(self):
        """This one, or, where something has changed, one that watches from now on."""
        if self._fd < 0 or not self._have_changed():
            return self
        self.close()  # forks that wait keep theirs, and what it tells
        return Standing(self._files)

    def close(self):
        if self._fd >= 0:
            os.close(self._fd)
            self._fd, self._unwatched = -1, self._files

    def _have_changed(self):
        if self._fd < 0:
            return False  # none is watched
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        if poll.poll(0) or _are_others(self._by_links):
            return True
        return self._mounts != _mounts() and _are_others(self._folders)  # one that is mounted over tells nothing

    def _watch_all(self):
        self._mounts = _mounts()
        folders, watched = {}, set()
        for path, how in self._files:
            folder = os.path.dirname(path)
            if folder not in folders:
                folders[folder] = changes.identity(folder)
            tells = how == "file" and self._tells(folder, folders[folder]) and _is_plain(path)
            if tells and linux.inotify_add_watch(self._fd, path, _ALL_CHANGES):
                watched.add((path, how))
        # Behind that, for it may have changed before it was watched.
        watched = {key for key in watched if reads.is_as_it_was(*key, self._files[key])}
        self._unwatched = {key: found for key, found in self._files.items() if key not in watched}
        self._watch_folders({folder: folders[folder] for folder in {os.path.dirname(path) for path, _ in watched}})

    def _watch_folders(self, folders):
        """`folders`: {name: its identity}. One that is moved tells nothing of its files, nor of the folders in it."""
        above = {}  # name: whether it is watched with all above it
        for folder in folders:
            if os.path.realpath(folder) == folder:
                self._watch_up(folder, above)
        self._folders = {folder: known for folder, known in folders.items() if above.get(folder)}
        self._by_links = {folder: known for folder, known in folders.items() if not above.get(folder)}
        moved = [folder for folder, known in self._folders.items() if changes.identity(folder) != known]
        self._by_links.update((folder, self._folders.pop(folder)) for folder in moved)  # before it was watched

    def _watch_up(self, folder, above):
        if folder not in above:
            parent = os.path.dirname(folder)
            above[folder] = (
                (parent == folder or self._watch_up(parent, above))
                and self._tells(folder, changes.identity(folder))
                and linux.inotify_add_watch(self._fd, folder, _ANOTHER_PLACE)
            )
        return above[folder]

    def _tells(self, folder, identity):
        """Whether the kernel knows of all that changes in the file system that this folder is in."""
        device = identity and identity[0]
        if device not in self._is_local:
            self._is_local[device] = linux.file_system(folder) in _LOCAL.values()
        return self._is_local[device]


def _are_others(folders):
    return any(changes.identity(folder) != known for folder, known in folders.items())


def _mounts():
    """As the kernel lists them, for comparison."""
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            return file.read()
    except OSError:
        return None


def _may_watch(count):
    try:
        with open(_LIMIT, "rb") as file:
            return count * _SHARE <= int(file.read())
    except (OSError, ValueError):
        return False


def _is_plain(path):
    try:
        return stat.S_ISREG(posix.lstat(path).st_mode)
    except (OSError, ValueError):
        return False
