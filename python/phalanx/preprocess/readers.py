"""The records of a split, one after the other, in memory that does not grow with the file.

A reader is iterated for (line, record): the line counts from 0 at the split's beginning, the record is what
documents.texts takes. `position()` tells how much of the split's bytes is behind it, for the progress. `lines` is how
many lines it has seen. Raises Refused where the rest of a file cannot be read.
"""

import gzip
import io
import json
import tarfile
import zlib

from phalanx.preprocess.refusal import Refused

BUFFER_BYTES = 1 << 20
# Of packed bytes: what becomes of them at once may be a thousand times as much.
PACKED_BYTES = 1 << 14
ROWS_AT_ONCE = 256
DAT_LENGTH_DIGITS = 16
UTF8_MARK = b"\xef\xbb\xbf"


def open_split(one, split, keys):
    if one.is_remote:
        return Handed((), at_file_start=True)  # an empty file: the lines of others come from Spark
    if one.kind == "jsonl":
        return TextRange(one, split)
    if one.kind == "parquet":
        return Rows(one, split, keys)
    return Packed(one, PACKED[one.kind])


def is_blank(line):
    return not line.strip()


def lines_before(path, end):
    """How many lines end in the first `end` bytes of a file, where a line begins at or behind `end`."""
    lines = left = 0
    with open(path, "rb") as file:
        while file.tell() < end:
            block = file.read(min(1 << 22, end - file.tell()))
            if not block:
                break
            lines += block.count(b"\n")
            left = block[-1:] != b"\n"
    return lines + left


class TextRange:
    """The lines that begin in [start, end) of a plain file: each line of a file belongs to just one of its splits."""

    def __init__(self, one, split):
        self.one, self.split, self.lines, self.at = one, split, 0, split.start

    def position(self):
        return min(self.at, self.split.end) - self.split.start

    def __iter__(self):
        with open(self.one.path, "rb", buffering=BUFFER_BYTES) as file:
            self.find_first(file)
            while self.at < self.split.end:
                line = file.readline()
                if not line:
                    raise Refused(f"{self.one.path}: ends at byte {self.at}; it was {self.one.size} bytes long before")
                if self.at == 0:
                    line = line[len(UTF8_MARK) :] if line.startswith(UTF8_MARK) else line
                self.at = file.tell()
                self.lines += 1
                if not is_blank(line):
                    yield self.lines - 1, line

    def find_first(self, file):
        """A line that begins before the split is its predecessor's: the byte before tells whether one begins here."""
        if self.split.start > 0:
            file.seek(self.split.start - 1)
            file.readline()
            self.at = file.tell()


class Handed:
    """Records that somebody else reads: lines of bytes, or mappings."""

    def __init__(self, records, at_file_start):
        self.records, self.at_file_start, self.lines, self.bytes = records, at_file_start, 0, 0

    def position(self):
        return self.bytes

    def __iter__(self):
        for record in self.records:
            self.lines += 1
            if isinstance(record, bytes):
                self.bytes += len(record) + 1
                if self.lines == 1 and self.at_file_start and record.startswith(UTF8_MARK):
                    record = record[len(UTF8_MARK) :]
                if is_blank(record):
                    continue
            yield self.lines - 1, record


class Packed:
    """A file that can only be read from its beginning."""

    def __init__(self, one, documents):
        self.one, self.documents, self.lines, self.file = one, documents, 0, None

    def position(self):
        return self.file.tell() if self.file and not self.file.closed else self.one.size

    def __iter__(self):
        damage = damages()
        with open(self.one.path, "rb") as self.file:
            try:
                for record in self.documents(self.file):
                    self.lines += 1
                    if not (isinstance(record, bytes) and is_blank(record)):
                        yield self.lines - 1, record
            except damage as error:
                raise Refused(
                    f"{self.one.path}: is damaged, or not complete, behind line {self.lines}: {error}"
                ) from None


def damages():
    """What the libraries raise for archives that are broken."""
    kinds = [EOFError, gzip.BadGzipFile, zlib.error, tarfile.TarError, json.JSONDecodeError, UnicodeDecodeError]
    try:
        import zstandard
    except ImportError:
        return tuple(kinds)
    return (*kinds, zstandard.ZstdError)


def gz_lines(file):
    with gzip.GzipFile(fileobj=file) as unpacked:
        yield from io.BufferedReader(unpacked, BUFFER_BYTES)


def unpack_zst(file):
    """A file of one or many frames, as lm_dataformat's archives are. An unfinished last frame is an error."""
    import zstandard

    return io.BufferedReader(WholeFrames(file, zstandard.ZstdDecompressor()), BUFFER_BYTES)


class WholeFrames(io.RawIOBase):
    """zstandard's own reader takes the end of the file in the midst of a frame for the end of the data."""

    def __init__(self, file, decompressor):
        self.file, self.decompressor, self.frame, self.ready, self.packed = file, decompressor, None, b"", b""

    def readable(self):
        return True

    def readinto(self, target):
        while not self.ready and self.unpack_more():
            pass
        taken = self.ready[: len(target)]
        target[: len(taken)] = taken
        self.ready = self.ready[len(taken) :]
        return len(taken)

    def unpack_more(self):
        """Whether there was anything more to unpack."""
        self.packed = self.packed or self.file.read(PACKED_BYTES)
        if not self.packed:
            if self.frame is not None:
                raise EOFError("the last zstd frame has no end")
            return False
        self.frame = self.frame or self.decompressor.decompressobj()
        self.ready = memoryview(self.frame.decompress(self.packed))
        self.packed = b""
        if self.frame.eof:
            self.packed, self.frame = self.frame.unused_data, None
        return True


def zst_lines(file):
    yield from unpack_zst(file)


def tar_lines(file):
    with tarfile.open(fileobj=file, mode="r|") as archive:
        for member in archive:
            if member.isfile() and member.size:
                yield from unpack_zst(archive.extractfile(member))


def dat_documents(file):
    """Documents of text, each behind its length in 16 decimal digits."""
    unpacked = unpack_zst(file)
    while True:
        digits = unpacked.read(DAT_LENGTH_DIGITS)
        if not digits:
            return
        if len(digits) != DAT_LENGTH_DIGITS or not digits.isdigit():
            raise EOFError(f"a document's length is 16 digits, not {digits!r}")
        document = unpacked.read(int(digits))
        if len(document) != int(digits):
            raise EOFError(f"the last document has {len(document)} bytes of {int(digits)}")
        yield document.decode("utf-8")


def json_documents(file):
    """One JSON list of texts: lm_dataformat's layout, which cannot be read but in one piece."""
    documents = json.loads(unpack_zst(file).read())
    if not isinstance(documents, list):
        raise EOFError("a .json.zst archive holds one JSON list of texts")
    yield from documents


PACKED = {
    "jsonl.gz": gz_lines,
    "jsonl.zst": zst_lines,
    "jsonl.zst.tar": tar_lines,
    "dat.zst": dat_documents,
    "json.zst": json_documents,
}


class Rows:
    """Row groups of a parquet file."""

    def __init__(self, one, split, keys):
        self.one, self.split, self.keys, self.lines = one, split, keys, 0
        self.rows = sum(rows for _, rows in one.pieces[split.start : split.end])
        self.bytes = sum(group_bytes for group_bytes, _ in one.pieces[split.start : split.end])

    def position(self):
        return self.bytes * self.lines // self.rows if self.rows else self.bytes

    def __iter__(self):
        import pyarrow
        from pyarrow import parquet

        groups = list(range(self.split.start, self.split.end))
        try:
            with parquet.ParquetFile(self.one.path) as file:
                batches = file.iter_batches(ROWS_AT_ONCE, row_groups=groups, columns=self.keys, use_threads=False)
                for batch in batches if groups else ():
                    for row in batch.to_pylist():
                        self.lines += 1
                        yield self.lines - 1, row
        except (pyarrow.ArrowException, OSError) as error:
            raise Refused(f"{self.one.path}: is damaged, or changed, behind row {self.lines}: {error}") from None
