"""How the input is cut. A pure function of the inputs, never of workers or engines: so any run can go on from the parts
of another."""

import dataclasses
from typing import Optional

MIB = 1 << 20
SMALLEST, LARGEST = MIB, 64 * MIB
# Enough that none of many workers waits long for the last one; few enough that a folder holds their parts with ease.
FEWEST_SPLITS, MOST_SPLITS = 256, 20_000

# Spark cuts what it reads itself by the size that it is told, and nothing else: into just these pieces.
CUT_BY_BYTES = ("jsonl", "remote.jsonl", "remote.parquet")


@dataclasses.dataclass(frozen=True)
class Split:
    """A piece of one input that becomes one part. `start` and `end` are bytes of a jsonl file, row groups of a parquet
    file; other kinds are read whole. `first_line`: the lines (or rows) before it, where that is known beforehand."""

    number: int
    input: int
    start: int
    end: int
    first_line: Optional[int]


def split_bytes(inputs):
    """How large a piece is by default."""
    total = sum(one.size for one in inputs)
    return max(min(LARGEST, max(SMALLEST, total // FEWEST_SPLITS)), -(-total // MOST_SPLITS))


def ranges(one, size):
    """(start, end, first line or None) of each piece of an input."""
    if one.kind == "parquet":
        return row_groups(one.pieces, size)
    if one.kind not in CUT_BY_BYTES or one.size <= size:
        return [(0, one.size, 0)]
    starts = range(0, one.size, size)
    return [(start, min(start + size, one.size), 0 if start == 0 else None) for start in starts]


def row_groups(pieces, size):
    found, start, filled, row, first_row = [], 0, 0, 0, 0
    for i, (group_bytes, rows) in enumerate(pieces):
        if filled and filled + group_bytes > size:
            found.append((start, i, first_row))
            start, filled, first_row = i, 0, row
        filled += group_bytes
        row += rows
    return [*found, (start, len(pieces), first_row)]


def cut(inputs, size):
    """The splits of all inputs, numbered in the order of the input."""
    flat = [(i, *piece) for i, one in enumerate(inputs) for piece in ranges(one, size)]
    return [Split(number, *piece) for number, piece in enumerate(flat)]


def weight(inputs, split):
    """The bytes of the input file that a split stands for, in its progress."""
    one = inputs[split.input]
    if one.kind != "parquet":
        return split.end - split.start
    return sum(group_bytes for group_bytes, _ in one.pieces[split.start : split.end])
