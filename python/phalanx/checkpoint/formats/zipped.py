"""A zip file of torch's in pieces: all bytes but the data of its tensors. Pure. What stands where:
docs/formats/checkpoint-image.md.

A .distcp file is a row of such files, each with one tensor or one other value.
"""

import struct
import zlib

ALIGNMENT = 64  # of the data of each record
_LOCAL = struct.Struct("<IHHHHHIIIHH")
_ENTRY = struct.Struct("<IHHHHHHIIIHHHHHII")
_END64 = struct.Struct("<IQHHIIQQQQ")
_LOCATOR = struct.Struct("<IIQI")
_END = struct.Struct("<IHHHHIIH")
_CRC = struct.Struct("<I")
_CRC_IN_DESCRIPTOR, _CRC_IN_ENTRY = 4, 16
_PICKLE = b"archive/data.pkl"
_MAX32 = 0xFFFFFFFF
_ENDING_BYTES = _END64.size + _LOCATOR.size + _END.size


class Zipped:
    """`frame`: the bytes that are no tensor's, in the file's order. `records`: where the data of each tensor lies.
    `patches`: (where the CRC of a tensor's data stands, the tensor's number) each, still zero. All places are those in
    the zip file, which is `length` bytes long."""

    __slots__ = ("_crcs_at", "_pickle", "frame", "length", "patches", "records")

    def __init__(self, frame, records, patches, length, pickle=(0, -1), crcs_at=()):
        """`pickle`: (where it begins in the frame, its bytes); `crcs_at`: where its CRC stands there."""
        self.frame, self.records, self.patches, self.length = frame, records, patches, length
        self._pickle, self._crcs_at = pickle, crcs_at

    def with_pickle(self, pickled):
        """The same file with another pickle of as many bytes; None: it has not as many, and all lies elsewhere. A
        number of steps or a learning rate is another one with each save."""
        at, count = self._pickle
        if len(pickled) != count:
            return None
        frame = bytearray(self.frame)
        frame[at : at + count] = pickled
        for place in self._crcs_at:
            _CRC.pack_into(frame, place, zlib.crc32(pickled))
        return Zipped(bytes(frame), self.records, self.patches, self.length, self._pickle, self._crcs_at)


def zipped(pickled, sizes, length=0):
    """The file that torch.load reads as `pickled`, whose storages are of `sizes`. `length`: of the file, with zeros in
    front of its directory; 0, or what is not enough: as short as can be."""
    return _Builder(pickled, sizes).finish(length)


class _Builder:
    def __init__(self, pickled, sizes):
        self._frame = bytearray()
        self._at = 0
        self._records, self._patches, self._entries = [], [], []
        self._pickle, self._crcs_at = (0, 0), []
        for number, size in enumerate(sizes):
            self._begin(b"archive/data/%d" % number, size)
            self._records.append(self._at)
            self._at += size
            self._end(size, 0, number)
        for name, data in (
            (_PICKLE, pickled),
            (b"archive/byteorder", b"little"),
            (b"archive/version", b"3\n"),
        ):
            self._begin(name, len(data))
            if name == _PICKLE:
                self._pickle = len(self._frame), len(data)
                self._crcs_at.append(len(self._frame) + len(data) + _CRC_IN_DESCRIPTOR)
            self._put(data)
            self._end(len(data), zlib.crc32(data), None)

    def finish(self, length):
        # No entry's length depends on where the directory lies.
        directory = sum(len(entry) for entry, _ in self._entries)
        self._put(bytes(max(0, length - self._at - directory - _ENDING_BYTES)))
        directory_at = self._at
        for entry, number in self._entries:
            if number is not None:
                self._patches.append((self._at + _CRC_IN_ENTRY, number))
            elif entry[_ENTRY.size :].startswith(_PICKLE):
                self._crcs_at.append(len(self._frame) + _CRC_IN_ENTRY)
            self._put(entry)
        self._put(_ending(directory_at, self._at, len(self._entries)))
        return Zipped(bytes(self._frame), self._records, self._patches, self._at, self._pickle, self._crcs_at)

    def _put(self, data):
        self._frame += data
        self._at += len(data)

    def _begin(self, name, size):
        self._name, self._header_at = name, self._at
        zip64 = _zip64(self._header_at, size, 0)
        behind = self._at + _LOCAL.size + len(name) + len(zip64) + 4
        padding = -behind % ALIGNMENT
        extra = len(zip64) + 4 + padding
        self._put(_LOCAL.pack(0x04034B50, 0, _flags(size), 0, 0, 0, 0, 0, 0, len(name), extra))
        self._put(name + zip64 + struct.pack("<HH", 0x4246, padding) + b"Z" * padding)

    def _end(self, size, crc, number):
        if size > 0:
            if number is not None:
                self._patches.append((self._at + _CRC_IN_DESCRIPTOR, number))
            wide = size >= _MAX32 or self._header_at >= _MAX32
            self._put(struct.pack("<IIQQ" if wide else "<IIII", 0x08074B50, crc, size, size))
        zip64 = _zip64(self._header_at, size, size)
        short, at = min(size, _MAX32), min(self._header_at, _MAX32)
        names = (len(self._name), len(zip64))
        entry = _ENTRY.pack(0x02014B50, 0, 0, _flags(size), 0, 0, 0, crc, short, short, *names, 0, 0, 0, 0, at)
        self._entries.append((entry + self._name + zip64, number))


def _flags(size):
    return 0x0808 if size > 0 else 0x0800


def _zip64(header_at, size, stored):
    """The field with what does not fit into 32 bits. `stored`: the second size, which torch's writer leaves 0 in front
    of the data."""
    fields = []
    if size >= _MAX32:
        fields += [size, stored]
    if header_at >= _MAX32:
        fields.append(header_at)
    return struct.pack(f"<HH{len(fields)}Q", 1, 8 * len(fields), *fields) if fields else b""


def _ending(directory_at, end, entries):
    length = end - directory_at
    return (
        _END64.pack(0x06064B50, _END64.size - 12, 798, 45, 0, 0, entries, entries, length, directory_at)
        + _LOCATOR.pack(0x07064B50, 0, end, 1)
        + _END.pack(
            0x06054B50,
            0,
            0,
            min(entries, 0xFFFF),
            min(entries, 0xFFFF),
            min(length, _MAX32),
            min(directory_at, _MAX32),
            0,
        )
    )
