"""Where the files of a step are read: in its folder, or in memory."""

import mmap
import os
import zlib

import torch

from phalanx.checkpoint import native
from phalanx.checkpoint.state import loadable
from phalanx.checkpoint.universal import zero

_END_BYTES = 64 << 10


class Folder:
    """A folder global_stepN, also of DeepSpeed's own. Files are mapped."""

    def __init__(self, path):
        self.where = os.path.abspath(path)

    def names(self):
        return sorted(name for name in os.listdir(self.where) if name.endswith(".pt"))

    def load(self, name, check=True):
        """What is in the file. Refused, where that cannot be read; `check`: each byte of it is compared with its CRC
        before."""
        path = os.path.join(self.where, name)
        why = native.check_file(path) if check else None
        if why is not None:
            raise zero.Refused(f"{name} is damaged: {why}")
        try:
            return torch.load(path, map_location="cpu", mmap=True, weights_only=False)
        except (*loadable.NOT_LOADED, ImportError) as error:
            raise zero.Refused(f"{name} cannot be read: {type(error).__name__}: {error}") from error

    def place(self, name):
        """(path, where it begins there, its bytes)."""
        path = os.path.join(self.where, name)
        return path, 0, os.stat(path).st_size

    def may_link(self, name):
        """Whether nobody writes into the file, so that another name of it stays what it is. DeepSpeed itself does,
        where it saves under a tag once more."""
        path = os.path.join(self.where, name)
        is_ours = os.path.exists(os.path.join(self.where, "manifest.json"))
        return is_ours or os.path.islink(path) or os.stat(path).st_nlink > 1


class Stored:
    """A phalanx.checkpoint.files.StoredFiles in memory. It is not checked: its images are, before they are given."""

    def __init__(self, stored, where):
        self._stored, self.where = stored, where

    def names(self):
        return sorted(name for name in self._stored if name.endswith(".pt"))

    def load(self, name, check=True):
        try:
            return self._stored[name]
        except RuntimeError as error:
            raise zero.Refused(str(error)) from error

    def place(self, name):
        return self._stored.place(name)

    def may_link(self, name):
        return False  # it is a part of an image


def copy(source, name, as_name):
    """The File `as_name` that is the source's file of that name."""
    path, begin, length = source.place(name)
    link = path if source.may_link(name) else None
    return zero.File(as_name, None, [[zero.Piece(_bytes(path, begin, length), 0, length)]], link)


def identity(source, names):
    """[(name, bytes, CRC of its end)]: at its end a zip has the CRCs of all that is in it."""
    found = []
    for name in names:
        path, begin, length = source.place(name)
        if length == 0:
            raise zero.Refused(f"{name} is damaged: it is empty")
        end = min(length, _END_BYTES)
        found.append((name, length, zlib.crc32(memoryview(_bytes(path, begin + length - end, end).numpy()))))
    return found


def _bytes(path, begin, length):
    """A mapped part of a file, as a tensor."""
    before = begin % mmap.ALLOCATIONGRANULARITY
    with open(path, "rb") as file:
        whole = mmap.mmap(file.fileno(), before + length, access=mmap.ACCESS_COPY, offset=begin - before)
    return torch.frombuffer(memoryview(whole)[before:], dtype=torch.uint8)
