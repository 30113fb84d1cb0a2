"""An image that holds named files, and what says which rank has which. What stands where:
docs/formats/checkpoint-image.md, "Several files"."""

import array
import io
import json
import os
import struct
import zlib

from phalanx.checkpoint import native
from phalanx.checkpoint.formats import framed, plan, stock, zipped

NAME_BYTES_MAX = 200
FILES_MAX = 4096  # of a rank
_PAGE = 4096
_MAGIC, _VERSION = b"PHXFILES", 1
_HEADER = struct.Struct("<8sIIQII")
_ENTRY = struct.Struct("<QQIIII")  # where, bytes, CRC, flags, bytes of the name, 0
_CRC_AT, _TABLE_CRC_AT = 16, 24
_COPIED_ELSEWHERE = 1
TABLE_BYTES_MAX = 1 << 20  # of the files' table, with its header
_INDEX_BYTES_MAX = 1 << 30
_SLACK = 64 << 10  # what pickles may grow by before slots are made anew


def why_no_name(name):
    """None: a file may be called so."""
    if not isinstance(name, str):
        return f"{name!r} is no text"
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        return f"{name!r} is no Unicode"
    if not 1 <= length <= NAME_BYTES_MAX:
        return f"a name of {length} bytes; expected 1 to {NAME_BYTES_MAX}"
    if "/" in name or any(ord(letter) < 0x20 or ord(letter) == 0x7F for letter in name):
        return f"{name!r} is no plain file name: it has a '/' or a control character"
    if name[0] == "." or name == "manifest.json":
        return f"{name!r}: names that begin with a dot, and manifest.json, are taken"
    return None


# --- writing


class Describer:
    """Makes images of files. Keep it from save to save: it remembers how each file's tensors are written."""

    def __init__(self):
        self._describers = {}
        self._zips = {}  # name -> (pickle, sizes, Zipped): that of the last save

    def describe(self, name, state):
        """What a file is to hold: a plan.Image, or bytes as they are. CannotSave."""
        if isinstance(state, (bytes, bytearray, memoryview)):
            return bytes(state)
        return self._describer(name, plan.Describer).describe(state)

    def describe_safetensors(self, name, tensors, metadata):
        """The stock.File that a file is to be. CannotSave."""
        return self._describer(name, stock.Describer).describe(tensors, metadata)

    def _describer(self, name, kind):
        if type(self._describers.get(name)) is not kind:
            self._describers[name] = kind()
        return self._describers[name]

    def image(self, contents, copied):
        """The image of `contents`, {name: what describe() has made}, in that order. Files whose names are in `copied`
        go to storage from another rank."""
        for known in (self._describers, self._zips):  # of names that are gone
            for name in [name for name in known if name not in contents]:
                del known[name]
        image = Image()
        image.add_bytes(_table(contents, copied))
        patches = array.array("Q")
        entry_at = _HEADER.size
        for number, (name, content) in enumerate(contents.items()):
            at = image.add_page()
            self._add(image, at, name, content)
            image.spans.extend((at, image.length - at))
            _ENTRY.pack_into(
                image.frame, entry_at, at, image.length - at, 0, _flags(name, copied), len(name.encode()), 0
            )
            patches.extend((entry_at + _CRC_AT, native.SPAN | number))
            entry_at += _entry_bytes(name)
        image.spans.extend((_HEADER.size, entry_at - _HEADER.size))
        image.patches.extend(patches)
        image.patches.extend((_TABLE_CRC_AT, native.SPAN | len(contents)))
        return image

    def _add(self, image, at, name, content):
        if isinstance(content, bytes):
            image.add_bytes(content)
            return
        if isinstance(content, stock.File):
            image.add(at, content, content.parts)
            return
        sizes = content.sizes.tobytes()
        known = self._zips.get(name)
        if known is None or known[:2] != (content.pickle, sizes):
            known = content.pickle, sizes, zipped.zipped(content.pickle, content.sizes)
            self._zips[name] = known
        image.add(at, known[2], content.storages)


class Image(framed.Image):
    """As framed.Image. Slots have room for pickles that grow."""

    def add_page(self):
        """Zeros up to the next page; where that begins."""
        self.add_bytes(bytes(-self.length % _PAGE))
        return self.length

    def file_bytes(self):
        return super().file_bytes() + _SLACK

    def fits(self, slot_bytes):
        wanted = self.file_bytes()
        return super().file_bytes() <= slot_bytes <= wanted + wanted // 4


def _entry_bytes(name):
    return _ENTRY.size + -(-len(name.encode()) // 8) * 8


def _flags(name, copied):
    return _COPIED_ELSEWHERE if name in copied else 0


def _table(contents, copied):
    """With nothing but the names in it."""
    entries = bytearray()
    for name in contents:
        data = name.encode()
        entries += _ENTRY.pack(0, 0, 0, _flags(name, copied), len(data), 0) + data.ljust(-(-len(data) // 8) * 8, b"\0")
    return _HEADER.pack(_MAGIC, _VERSION, len(contents), len(entries), 0, 0) + entries


def index_image(ranks_of):
    """Of what the ranks of a node share: {name: [ranks that hold it]}."""
    image = framed.Image()
    image.add_bytes(json.dumps({"version": 1, "files": ranks_of}).encode())
    image.add_bytes(b" " * (-image.length % _PAGE))
    return image


# --- reading


def read_index(path):
    """{name: [ranks that hold it, that which goes to storage first]}. ValueError."""
    with open(path, "rb") as file:
        data = file.read(_INDEX_BYTES_MAX)
    if not data.startswith(b'{"version"'):
        raise ValueError("it has no index of files")
    index = json.loads(data.rstrip(b"\0").decode())
    if not isinstance(index, dict) or index.get("version") != 1 or not isinstance(index.get("files"), dict):
        raise ValueError("the index of its files is of another version")
    return index["files"]


def table(path):
    """{name: (place, bytes)} of the files in the image at `path`. ValueError where it has no such table."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        magic, version, count, length, crc, _ = _HEADER.unpack(file.read(_HEADER.size).ljust(_HEADER.size, b"\0"))
        if (magic, version) != (_MAGIC, _VERSION) or count > FILES_MAX or length > size:
            raise ValueError("it has no table of files")
        entries = file.read(length)
    if zlib.crc32(entries) != crc:
        raise ValueError("its table of files has a wrong CRC")
    files, at = {}, 0
    for _ in range(count):
        place, length, _, _, name_bytes, _ = _ENTRY.unpack_from(entries, at)
        name = entries[at + _ENTRY.size : at + _ENTRY.size + name_bytes].decode()
        if place + length > size:
            raise ValueError(f"{name!r} in it lies behind its end")
        files[name] = place, length
        at += _entry_bytes(name)
    return files


class Section(io.RawIOBase):
    """A part of a file, as a file."""

    def __init__(self, path, begin, length):
        super().__init__()
        self._file = open(path, "rb", buffering=0)
        self._begin, self._length, self._at = begin, length, 0

    def readable(self):
        return True

    def seekable(self):
        return True

    def readinto(self, into):
        count = min(len(into), max(0, self._length - self._at))
        self._file.seek(self._begin + self._at)
        got = self._file.readinto(memoryview(into)[:count]) if count else 0
        self._at += got
        return got

    def seek(self, offset, whence=os.SEEK_SET):
        from_where = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        self._at = max(0, from_where + offset)
        return self._at

    def close(self):
        self._file.close()
        super().close()
