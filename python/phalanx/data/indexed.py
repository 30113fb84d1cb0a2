"""A dataset's tokens as they lie in its file: mapped, never copied. numpy is imported with the first array that is
asked for; who asks for memoryviews alone does not need it."""

import mmap
import operator
import os
import struct

_MMAP_MAGIC, _MMAP_HEADER = b"MMIDIDX\0\0", struct.Struct("<9xQBQQ")
_LAZY_MAGIC, _LAZY_HEADER = b"TNTIDX\0\0", struct.Struct("<8xQQQQQQ")
_VERSION = 1
# code: (numpy's name, the letter in struct and memoryview)
_DTYPES = {
    1: ("uint8", "B"),
    2: ("int8", "b"),
    3: ("int16", "h"),
    4: ("int32", "i"),
    5: ("int64", "q"),
    8: ("uint16", "H"),
}


class DatasetError(ValueError):
    """The files are no dataset, or do not belong together."""


class _Table:
    """Numbers in a row in the mapped index."""

    def __init__(self, index, at, count, letter):
        self._index, self._at, self._count = index, at, count
        self._one = struct.Struct("<" + letter)

    def __getitem__(self, i):
        return self._one.unpack_from(self._index, self._at + i * self._one.size)[0]

    def array(self):
        import numpy

        return numpy.frombuffer(self._index, "<" + self._one.format[1:], self._count, self._at)


class IndexedDataset:
    """Sequences of tokens by number, as read-only numpy arrays that show the file itself. Both layouts, `mmap` and
    `lazy`/`cached`. Raises DatasetError where the files' headers and lengths do not fit together; `phalanx data
    verify` reads the rest. Any thread may read. Pickled, it is opened anew by its prefix."""

    def __init__(self, prefix):
        self.prefix = os.fspath(prefix)
        self._bin = self._index = b""
        self._index = _mapped(self.prefix + ".idx")
        self._bin = _mapped(self.prefix + ".bin")
        try:
            self._read_header()
            self._compare_lengths()
        except DatasetError:
            self.close()
            raise

    def close(self):
        """Arrays and views that are still in use keep their memory until they are gone."""
        for mapped in (self._bin, self._index):
            try:
                mapped.close()
            except (AttributeError, BufferError):  # an empty file is not mapped; a view is still in use
                pass

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def __reduce__(self):
        return type(self), (self.prefix,)

    def __len__(self):
        return self._sequences

    def __getitem__(self, i):
        """Sequence i, or a list of those that a slice names."""
        if isinstance(i, slice):
            return [self.get(k) for k in range(*i.indices(len(self)))]
        return self.get(i)

    def get(self, i, offset=0, length=None):
        """Of sequence i, `length` tokens from `offset` on; without a length, all that follow."""
        import numpy

        at, count = self._piece(i, offset, length)
        return numpy.frombuffer(self._bin, numpy.dtype(self.dtype_name).newbyteorder("<"), count, at)

    def view(self, i, offset=0, length=None):
        """As get, as a memoryview."""
        at, count = self._piece(i, offset, length)
        return memoryview(self._bin)[at : at + count * self._token_bytes].cast(self._letter)

    def sequence_length(self, i):
        return self._lengths[self._number(i)]

    @property
    def sequence_lengths(self):
        """Tokens of each sequence."""
        return self._lengths.array()

    @property
    def document_indices(self):
        """The first sequence of each document, and the number of sequences: one more than there are documents."""
        return self._boundaries.array()

    @property
    def sequence_modes(self):
        """The mode of each sequence of a multimodal dataset, else None."""
        return self._modes.array() if self._modes else None

    def _number(self, i):
        i = operator.index(i)
        number = i + len(self) if i < 0 else i
        if not 0 <= number < len(self):
            raise IndexError(f"{self.prefix} has no sequence {i}: there are {len(self)}")
        return number

    def _piece(self, i, offset, length):
        """(where it begins in the file, how many tokens)"""
        number = self._number(i)
        begin, count = self._offsets[number] * self._offset_unit, self._lengths[number]
        if begin < 0 or count < 0 or begin + count * self._token_bytes > len(self._bin):
            raise DatasetError(
                f"{self.prefix}.idx: sequence {number}, {count} tokens at byte {begin}, does not lie within the "
                f"{len(self._bin)} bytes of {self.prefix}.bin"
            )
        length = count - offset if length is None else length
        if offset < 0 or length < 0 or offset + length > count:
            raise IndexError(
                f"{self.prefix}: sequence {number} has {count} tokens; {length} from {offset} on were asked for"
            )
        return begin + offset * self._token_bytes, length

    def _read_header(self):
        magic = bytes(self._index[:9])
        if magic != _MMAP_MAGIC and magic[:8] != _LAZY_MAGIC:
            raise self._wrong("it is no index of a dataset: it begins with neither MMIDIDX nor TNTIDX")
        is_mmap = magic == _MMAP_MAGIC
        header = _MMAP_HEADER if is_mmap else _LAZY_HEADER
        if len(self._index) < header.size:
            raise self._wrong(f"it ends within its header, after {len(self._index)} of {header.size} bytes")
        fields = header.unpack_from(self._index)
        if fields[0] != _VERSION:
            raise self._wrong(f"its version is {fields[0]}: {_VERSION} is known")
        if fields[1] not in _DTYPES:
            raise self._wrong(f"token type {fields[1]} is none that tokens have: {sorted(_DTYPES)} are known")
        self.dtype_name, self._letter = _DTYPES[fields[1]]
        self._token_bytes = struct.calcsize("<" + self._letter)
        if fields[-1] == 0:
            raise self._wrong("it has no document boundary, where an empty dataset has one")
        self._place_tables(*((fields[2], fields[3]) if is_mmap else self._lazy_counts(fields)), is_mmap)

    def _lazy_counts(self, fields):
        token_bytes, sequences, sizes, boundaries = fields[2:]
        if token_bytes != self._token_bytes:
            raise self._wrong(f"{self.dtype_name} with {token_bytes} bytes a token, where it has {self._token_bytes}")
        if sizes != sequences:
            raise self._wrong(f"it has {sizes} sizes for {sequences} sequences, as if they had several dimensions")
        return sequences, boundaries

    def _place_tables(self, sequences, boundaries, is_mmap):
        index = self._index
        self._sequences = sequences
        self._offset_unit = 1 if is_mmap else self._token_bytes
        if is_mmap:
            lengths_at, offsets_at = 34, 34 + 4 * sequences
            boundaries_at = offsets_at + 8 * sequences
        else:
            offsets_at, lengths_at = 56 + 8 * (sequences + 1), 56 + 16 * (sequences + 1)
            boundaries_at = lengths_at + 8 * sequences
        end = boundaries_at + 8 * boundaries
        has_modes = is_mmap and sequences > 0 and len(index) == end + sequences
        if len(index) != end and not has_modes:
            raise self._wrong(
                f"it has {len(index)} bytes, but {sequences} sequences and {boundaries - 1} documents take {end}"
            )
        self._lengths = _Table(index, lengths_at, sequences, "i" if is_mmap else "q")
        self._offsets = _Table(index, offsets_at, sequences, "q")
        self._boundaries = _Table(index, boundaries_at, boundaries, "q")
        self._modes = _Table(index, end, sequences, "b") if has_modes else None

    def _compare_lengths(self):
        last = len(self) - 1
        wanted = self._offsets[last] * self._offset_unit + self._lengths[last] * self._token_bytes if last >= 0 else 0
        if wanted != len(self._bin):
            raise DatasetError(
                f"{self.prefix}.bin has {len(self._bin)} bytes, but the last sequence of {self.prefix}.idx ends at "
                f"{wanted}: the two files do not belong together, or one is damaged"
            )

    def _wrong(self, what):
        return DatasetError(f"{self.prefix}.idx: {what}")


def _mapped(path):
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:  # which cannot be mapped
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
