"""A control page as an agent writes and reads it, from docs/formats/checkpoint-image.md alone: what a test reads here
was not written by the code that it tests."""

import mmap
import struct
import zlib

PAGE_BYTES = 4096
SLOT_AT, SLOT_BYTES = 256, 256
# word, step, epoch, bytes, hash, rank, world, crc, records, ms, generation, branch, unused, crc
RANK_PART = struct.Struct("<QqQQQIIIIqQIII")
GENERATION, BRANCH = 10, 11
AGENT_PART = struct.Struct("<QQQQ")  # file number, committed, held, dropped
FILE_NUMBER, COMMITTED, HELD, DROPPED = range(4)
SEALED = 2


class ControlPage:
    """The page of one rank, without slots at first."""

    def __init__(self, path, epoch):
        with open(path, "wb") as file:
            file.write(struct.pack("<8sIIQQQ", b"PHXSLOTS", 3, 0, 0, epoch, 1).ljust(PAGE_BYTES, b"\0"))
        with open(path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), PAGE_BYTES)

    def slot(self, index):
        """(the rank's fields, the agent's fields)."""
        at = SLOT_AT + SLOT_BYTES * index
        return RANK_PART.unpack_from(self.map, at), AGENT_PART.unpack_from(self.map, at + 128)

    def is_believed(self, index):
        """Whether the rank's fields have their CRC and are of the word's generation."""
        at = SLOT_AT + SLOT_BYTES * index
        fields = RANK_PART.unpack_from(self.map, at)
        return zlib.crc32(self.map[at + 8 : at + 80]) == fields[-1] and fields[GENERATION] == fields[0] >> 8

    def set(self, index, field, value):
        """A field of the agent's part, by its number."""
        struct.pack_into("<Q", self.map, SLOT_AT + SLOT_BYTES * index + 128 + 8 * field, value)

    def clear(self, index):
        """The slot is empty, and its generation stays."""
        at = SLOT_AT + SLOT_BYTES * index
        word = struct.unpack_from("<Q", self.map, at)[0]
        struct.pack_into("<Q", self.map, at, word >> 8 << 8)

    def change(self, count, slot_bytes):
        struct.pack_into("<I", self.map, 12, count)
        struct.pack_into("<Q", self.map, 16, slot_bytes)
        changes = struct.unpack_from("<Q", self.map, 32)[0]
        struct.pack_into("<Q", self.map, 32, changes + 1)

    def set_epoch(self, epoch):
        struct.pack_into("<Q", self.map, 24, epoch)
