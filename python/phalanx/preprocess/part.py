"""Part files: what one split becomes. docs/formats/data-parts.md has the layout; src/data joins them."""

import array
import json
import os
import struct
import sys
import tempfile
import uuid
import zlib

from phalanx.preprocess.refusal import Refused

MAGIC = b"PHXPART\0"
VERSION = 1
HEADER = struct.Struct("<8sIIQQ32sQQQQII")
HEADER_BYTES = 4096
# Name: (code in an .idx, typecode of array).
TYPES = {"uint16": (8, "H"), "int32": (4, "i")}
LONGEST_SEQUENCE = (1 << 31) - 1
READ_BYTES = 1 << 22
# A table goes to a file of its own where it gets longer: memory stays flat.
TABLE_BYTES_IN_MEMORY = 1 << 22


def folder_of(prefix):
    return f"{prefix}.parts"


def name_of(number):
    return f"{number:05d}.part"


def padding(count):
    return bytes(-count % 8)


class PartWriter:
    """Writes one part under a temporary name; `finish` makes it whole, durably, `publish` gives it its own. Used as a
    context: what was not finished is removed."""

    def __init__(self, folder, number, parts, dtype, fingerprint):
        self.folder, self.number, self.parts, self.fingerprint = folder, number, parts, fingerprint
        self.code, _ = TYPES[dtype]
        self.tokens, self.tokens_crc, self.documents = 0, 0, 0
        self.lengths, self.ends = Table("I", folder), Table("Q", folder)
        self.temporary = os.path.join(folder, f"{name_of(number)}.{uuid.uuid4().hex}.writing")

    def __enter__(self):
        self.file = open(self.temporary, "xb", buffering=1 << 20)
        self.file.write(bytes(HEADER_BYTES))
        return self

    def __exit__(self, *error):
        self.lengths.close()
        self.ends.close()
        if not self.file.closed:
            self.file.close()
            os.unlink(self.temporary)

    def add(self, sequences):
        """One document, of arrays of the part's type."""
        for tokens in sequences:
            count = len(tokens)
            if count > LONGEST_SEQUENCE:
                raise Refused(f"a document of {count} tokens is longer than the format can hold, 2^31 - 1")
            if sys.byteorder == "big":
                tokens.byteswap()
            self.tokens_crc = zlib.crc32(tokens, self.tokens_crc)
            self.file.write(tokens)
            self.tokens += count
            self.lengths.add(count)
        self.ends.add(self.lengths.count)
        self.documents += 1

    def finish(self, notes):
        encoded = json.dumps(notes).encode()
        tables_crc = 0
        self.file.write(padding(self.file.tell()))
        for block in (*self.lengths.blocks(), padding(4 * self.lengths.count), *self.ends.blocks(), encoded):
            tables_crc = zlib.crc32(block, tables_crc)
            self.file.write(block)
        fields = HEADER.pack(
            MAGIC, VERSION, self.code, self.number, self.parts, self.fingerprint,
            self.tokens, self.lengths.count, self.documents, len(encoded), self.tokens_crc, tables_crc,
        )  # fmt: skip
        self.file.seek(0)
        self.file.write(fields + struct.pack("<I", zlib.crc32(fields)))
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()


def publish(temporary, number):
    """From now on runs trust the part."""
    folder = os.path.dirname(temporary)
    os.rename(temporary, os.path.join(folder, name_of(number)))
    sync_folder(folder)


class Table:
    """Numbers that come one by one, to be written later."""

    def __init__(self, typecode, folder):
        self.count, self.recent = 0, array.array(typecode)
        self.spool = tempfile.SpooledTemporaryFile(TABLE_BYTES_IN_MEMORY, dir=folder)

    def add(self, value):
        self.recent.append(value)
        self.count += 1
        if len(self.recent) == READ_BYTES // 64:
            self.flush()

    def flush(self):
        if sys.byteorder == "big":
            self.recent.byteswap()
        self.spool.write(self.recent.tobytes())
        del self.recent[:]

    def blocks(self):
        self.flush()
        self.spool.seek(0)
        yield from iter(lambda: self.spool.read(READ_BYTES), b"")

    def close(self):
        self.spool.close()


def sync_folder(folder):
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def trusted(folder, number, parts, fingerprint):
    """The notes of a finished part that is whole and of this job; None where it is not there, or anything else."""
    try:
        with open(os.path.join(folder, name_of(number)), "rb") as file:
            return check(file, number, parts, fingerprint)
    except OSError:
        return None


def check(file, number, parts, fingerprint):
    head = file.read(HEADER_BYTES)
    if len(head) != HEADER_BYTES:
        return None
    fields = HEADER.unpack_from(head)
    magic, version, code, own_number, own_parts, own_fingerprint, tokens, sequences, documents, noted = fields[:10]
    (crc,) = struct.unpack_from("<I", head, HEADER.size)
    if crc != zlib.crc32(head[: HEADER.size]) or (magic, version) != (MAGIC, VERSION):
        return None
    if (own_number, own_parts, own_fingerprint) != (number, parts, fingerprint):
        return None
    width = next((array.array(typecode).itemsize for known, typecode in TYPES.values() if known == code), None)
    if width is None:
        return None
    tables = HEADER_BYTES + tokens * width + (-tokens * width % 8)
    end = tables + 4 * sequences + (-4 * sequences % 8) + 8 * documents + noted
    if os.fstat(file.fileno()).st_size != end:
        return None
    if crc_of(file, HEADER_BYTES, tokens * width) != fields[10] or crc_of(file, tables, end - tables) != fields[11]:
        return None
    file.seek(end - noted)
    return json.loads(file.read(noted))


def crc_of(file, start, count):
    file.seek(start)
    crc = 0
    while count > 0:
        block = file.read(min(count, READ_BYTES))
        if not block:
            return None
        crc = zlib.crc32(block, crc)
        count -= len(block)
    return crc
