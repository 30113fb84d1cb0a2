"""Which files the input is, in which order, and what each of them holds."""

import dataclasses
import glob
import os
import stat
from typing import Tuple

from phalanx.preprocess.options import is_remote
from phalanx.preprocess.refusal import Refused, need

# By the end of the name, the longest first.
KINDS = (
    (".jsonl.zst.tar", "jsonl.zst.tar"),
    (".dat.zst", "dat.zst"),
    (".json.zst", "json.zst"),
    (".jsonl.zst", "jsonl.zst"),
    (".jsonl.gz", "jsonl.gz"),
    (".json.gz", "jsonl.gz"),
    (".parquet", "parquet"),
    (".jsonl", "jsonl"),
    (".ndjson", "jsonl"),
    (".json", "jsonl"),
)
FOREIGN = (".zip", ".tar", ".tar.gz", ".tgz", ".xz", ".bz2", ".txt")
MAGICS = ((b"\x1f\x8b", "jsonl.gz"), (b"\x28\xb5\x2f\xfd", "jsonl.zst"), (b"PAR1", "parquet"))
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


@dataclasses.dataclass(frozen=True)
class Input:
    """A file of the input. `pieces`: (bytes, rows) of each row group of a parquet file here. Of a kind that begins with
    `remote.` the `path` is a URL, and Spark reads it."""

    path: str
    kind: str
    size: int
    mtime_ns: int
    pieces: Tuple[Tuple[int, int], ...] = ()

    @property
    def is_remote(self):
        return self.kind.startswith("remote.")

    @property
    def is_handed(self):
        """Whether Spark hands its records to the workers. Of an empty file it makes no partition."""
        return self.is_remote and self.size > 0


def kind_by_name(path):
    return next((kind for end, kind in KINDS if path.endswith(end)), None)


def kind_of(path, head):
    """What a file holds that was asked for by name: by that, else by its first bytes. jsonl may be called anything."""
    by_magic = next((kind for magic, kind in MAGICS if head.startswith(magic)), None)
    by_name = kind_by_name(path)
    if by_name in ("jsonl.gz", "jsonl.zst", "parquet", "jsonl") and head:
        by_name = by_magic or "jsonl"  # the bytes know better: a .jsonl.gz that was unpacked, or a .json that is packed
    if by_name is None and path.endswith(FOREIGN):
        raise Refused(f"{path}: this kind of archive is not read; jsonl, jsonl.gz, jsonl.zst and parquet are")
    if head.startswith(UTF16_MARKS):
        raise Refused(f"{path}: is UTF-16; JSON lines are UTF-8: iconv -f UTF-16 -t UTF-8 makes it so")
    return by_name or by_magic or "jsonl"


def find(word):
    """(paths, left out) of a word of --input: a file, those of a pattern or a folder by name.

    Files of a folder that hold no documents by their name are left out.
    """
    if os.path.isdir(word):
        inside = sorted(name for name in os.listdir(word) if os.path.isfile(os.path.join(word, name)))
        known = [name for name in inside if is_document(name)]
        if not known:
            raise Refused(f"--input {word}: the folder has no file of {', '.join(end for end, _ in KINDS)}")
        others = [name for name in inside if not is_document(name)]
        return [os.path.join(word, name) for name in known], [os.path.join(word, name) for name in others]
    matches = [word] if os.path.exists(word) else sorted(path for path in glob.glob(word) if os.path.isfile(path))
    if not matches:
        raise Refused(f"--input {word}: there is no such file or folder, and it matches none as a pattern")
    return matches, []


def is_document(name):
    return kind_by_name(name) is not None and not name.startswith(".")


def look(path):
    """One Input, with what the file itself says. Raises Refused."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise Refused(f"{path}: is no regular file; documents are read more than once when a run is resumed")
            kind = kind_of(path, file.read(4))
    except OSError as error:
        raise Refused(f"{path}: cannot be read: {error.strerror}") from None
    if kind.endswith((".zst", ".zst.tar")):
        need("zstandard", "zstandard", f"{path}: zstd")
    pieces = parquet_pieces(path) if kind == "parquet" else ()
    return Input(os.path.abspath(path), kind, status.st_size, status.st_mtime_ns, pieces)


def parquet_pieces(path):
    parquet = need("pyarrow.parquet", "pyarrow", f"{path}: parquet")
    import pyarrow

    try:
        metadata = parquet.read_metadata(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise Refused(f"{path}: is no readable parquet file: {error}") from None
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    return tuple((group.total_byte_size, group.num_rows) for group in groups)


def check_columns(one, keys):
    """A parquet file that lacks a key lacks it in all rows."""
    from pyarrow import parquet

    names = parquet.read_schema(one.path).names
    for key in keys:
        if key not in names:
            raise Refused(f"{one.path}: has no column {key!r}; it has {', '.join(names)} (--jsonl-keys)")


def collect(words, keys, remote):
    """The inputs, in the order of the words, and what is left out of folders. `remote(word)`: both, of a URL."""
    inputs, left_out = [], []
    for word in words:
        if is_remote(word):
            found, others = remote(word)
            inputs += found
            left_out += others
            continue
        paths, others = find(word)
        inputs += map(look, paths)
        left_out += others
    for one in inputs:
        if one.kind == "parquet":
            check_columns(one, keys)
    return inputs, left_out


def size_and_mtime(one):
    """What they are now, of a file here."""
    status = os.stat(one.path)
    return status.st_size, status.st_mtime_ns


def check_unchanged(inputs, size_and_mtime):
    """That the files are still what they were when their parts began."""
    for one in inputs:
        if size_and_mtime(one) != (one.size, one.mtime_ns):
            raise Refused(f"{one.path}: has changed while it was read; nothing was written, run it again")
