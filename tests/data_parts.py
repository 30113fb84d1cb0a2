"""Part files as docs/formats/data-parts.md has them, written with nothing but what it names."""

import struct
import zlib
from array import array

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}
LETTERS = {"uint8": "B", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint16": "H"}
FINGERPRINT = bytes(range(32))


def padded(data):
    return data + bytes(-len(data) % 8)


def part_bytes(documents, dtype, number=0, parts=1, fingerprint=FINGERPRINT, notes=b"", version=1):
    """`documents`: lists of sequences, which are lists of tokens."""
    sequences = [sequence for document in documents for sequence in document]
    tokens = b"".join(array(LETTERS[dtype], sequence).tobytes() for sequence in sequences)
    ends, end = array("Q"), 0
    for document in documents:
        end += len(document)
        ends.append(end)
    tables = padded(array("I", map(len, sequences)).tobytes()) + ends.tobytes() + notes
    fields = struct.pack(
        "<8sIIQQ32sQQQQII",
        *(b"PHXPART\0", version, CODES[dtype], number, parts, fingerprint),
        *(sum(map(len, sequences)), len(sequences), len(documents), len(notes)),
        *(zlib.crc32(tokens), zlib.crc32(tables)),
    )
    header = (fields + struct.pack("<I", zlib.crc32(fields))).ljust(4096, b"\0")
    return header + padded(tokens) + tables


def write_parts(folder, documents, dtype, count, **fields):
    """The documents cut into `count` parts of about the same number; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number in range(count):
        piece = documents[len(documents) * number // count : len(documents) * (number + 1) // count]
        path = folder / f"{number:05}.part"
        path.write_bytes(part_bytes(piece, dtype, number, count, **fields))
        paths.append(path)
    return paths
