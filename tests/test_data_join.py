"""Parts to datasets, and datasets as `phalanx.data` reads them."""

import json
import os
import random
import subprocess
import sys
import zlib

import numpy
import pytest
from data_parts import CODES, part_bytes, write_parts
from phalanx.data import DatasetError, IndexedDataset, native

DOCUMENTS = [[[1, 2, 3]], [], [[4], [], [5, 6]], [], [[65535]]]


def random_documents(seed, count=200, top=65000):
    rng = random.Random(seed)
    return [
        [[rng.randrange(top) for _ in range(rng.choice((0, 1, 7, 300)))] for _ in range(rng.choice((0, 1, 1, 1, 3)))]
        for _ in range(count)
    ]


def join(prefix, parts, **options):
    with native.Join(prefix, parts, **options) as joined:
        joined.publish(b"{}")
        return joined.counts


def read_back(prefix):
    """The documents of a dataset, by its boundaries."""
    with IndexedDataset(prefix) as dataset:
        sequences = [sequence.tolist() for sequence in dataset[:]]
        ends = dataset.document_indices.tolist()
    return [sequences[begin:end] for begin, end in zip(ends, ends[1:])]


@pytest.mark.parametrize("impl", ["mmap", "lazy", "cached"])
@pytest.mark.parametrize("count", [1, 3, 17])
def test_parts_become_what_they_were_made_of(tmp_path, impl, count):
    documents = random_documents(count)
    parts = write_parts(tmp_path / "parts", documents, "uint16", count)
    counts = join(tmp_path / "out", parts, dataset_impl=impl)
    assert read_back(tmp_path / "out") == documents
    for file, size, crc in (("bin", counts.bin_bytes, counts.bin_crc32), ("idx", counts.idx_bytes, counts.idx_crc32)):
        data = (tmp_path / f"out.{file}").read_bytes()
        assert (size, crc) == (len(data), zlib.crc32(data))
    assert sorted(os.listdir(tmp_path)) == ["out.bin", "out.idx", "out.json", "parts"]


@pytest.mark.parametrize("impl", ["mmap", "lazy"])
def test_how_the_input_was_cut_leaves_no_trace(tmp_path, impl):
    documents = random_documents(5)
    written = set()
    for count in (1, 2, 7, 200, 300):
        prefix = tmp_path / f"out{count}"
        join(prefix, write_parts(tmp_path / f"parts{count}", documents, "int32", count), dataset_impl=impl)
        written.add((prefix.with_suffix(".bin").read_bytes(), prefix.with_suffix(".idx").read_bytes()))
    assert len(written) == 1


def lazy_index(documents, dtype):
    """As the builder of old gpt-neox writes it: docs/formats/indexed-dataset.md."""
    sizes = [len(sequence) for document in documents for sequence in document]
    header = (1, CODES[dtype], numpy.dtype(dtype).itemsize, len(sizes), len(sizes), len(documents) + 1)
    tables = (range(len(sizes) + 1), numpy.cumsum([0, *sizes]), sizes, numpy.cumsum([0, *map(len, documents)]))
    return b"TNTIDX\0\0" + b"".join(numpy.array(numbers, "<i8").tobytes() for numbers in (header, *tables))


@pytest.mark.parametrize("seed", range(5))
def test_the_older_layout_is_that_of_its_builder(tmp_path, seed):
    documents = random_documents(seed, count=seed * 40, top=200_000)
    join(tmp_path / "out", write_parts(tmp_path / "parts", documents, "int32", 3), dataset_impl="lazy")
    assert (tmp_path / "out.idx").read_bytes() == lazy_index(documents, "int32")
    tokens = [token for document in documents for sequence in document for token in sequence]
    assert (tmp_path / "out.bin").read_bytes() == numpy.array(tokens, "<i4").tobytes()


def test_the_import_brings_nothing_heavy():
    code = "import sys, phalanx.data.native; print({'numpy', 'torch'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


@pytest.mark.parametrize("documents", [[], [[]], [[[]]], [[], [], []]])
def test_no_tokens_at_all(tmp_path, documents):
    join(tmp_path / "out", write_parts(tmp_path / "parts", documents, "int32", 2))
    assert read_back(tmp_path / "out") == documents
    assert native.check(tmp_path / "out").documents == len(documents)


def test_reads_pieces_and_views_of_the_file_itself(tmp_path):
    join(tmp_path / "out", write_parts(tmp_path / "parts", DOCUMENTS, "uint16", 2))
    with IndexedDataset(tmp_path / "out") as dataset:
        assert len(dataset) == 5
        assert dataset[0].dtype == numpy.uint16
        assert not dataset[0].flags.owndata and not dataset[0].flags.writeable
        assert dataset[-1].tolist() == [65535]
        assert dataset.get(0, 1).tolist() == [2, 3]
        assert dataset.get(0, offset=1, length=1).tolist() == [2]
        assert dataset.view(3, 1).tolist() == [6]
        assert [sequence.tolist() for sequence in dataset[1:4]] == [[4], [], [5, 6]]
        assert dataset.document_indices.tolist() == [0, 1, 1, 4, 4, 5]
        assert dataset.sequence_lengths.tolist() == [3, 1, 0, 2, 1]
        for wrong in (
            lambda: dataset[5],
            lambda: dataset[-6],
            lambda: dataset.get(0, 2, 2),
            lambda: dataset.get(0, -1),
        ):
            with pytest.raises(IndexError):
                wrong()
        kept = dataset[0]
    assert kept.tolist() == [1, 2, 3]


def test_a_dataset_that_is_there_stays_unless_it_is_to_be_replaced(tmp_path):
    join(tmp_path / "out", write_parts(tmp_path / "a", [[[1]]], "int32", 1))
    new = write_parts(tmp_path / "b", [[[2]]], "int32", 1)
    with pytest.raises(native.DataError, match=r"out\.idx is there already"):
        join(tmp_path / "out", new)
    assert read_back(tmp_path / "out") == [[[1]]]
    join(tmp_path / "out", new, replace=True)
    assert read_back(tmp_path / "out") == [[[2]]]


def test_what_is_not_published_leaves_nothing(tmp_path):
    parts = write_parts(tmp_path / "parts", DOCUMENTS, "uint16", 2)
    with native.Join(tmp_path / "out", parts) as joined:
        assert joined.counts.documents == 5
        with pytest.raises(native.DataError, match="another process writes this dataset just now"):
            native.Join(tmp_path / "out", parts)
        assert sorted(os.listdir(tmp_path)) == ["out.bin.writing", "out.idx.writing", "parts"]
    assert os.listdir(tmp_path) == ["parts"]


def test_progress_is_told_and_can_stop_it(tmp_path):
    parts = write_parts(tmp_path / "parts", random_documents(1), "int64", 4)
    told = []
    join(tmp_path / "out", parts, progress=lambda *pair: told.append(pair))
    size = os.path.getsize(tmp_path / "out.bin")
    assert told[-1] == (size, size) and told == sorted(told)

    def stop(done_bytes, all_bytes):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        native.Join(tmp_path / "other", parts, progress=stop)
    assert sorted(os.listdir(tmp_path)) == ["out.bin", "out.idx", "out.json", "parts"]


def refused(tmp_path, parts, match):
    with pytest.raises(native.DataError, match=match):
        native.Join(tmp_path / "out", parts)
    assert not [name for name in os.listdir(tmp_path) if name.startswith("out")]


def test_parts_must_be_all_of_one_run(tmp_path):
    parts = write_parts(tmp_path / "parts", DOCUMENTS, "uint16", 3)
    refused(tmp_path, [], "nothing to join")
    refused(tmp_path, parts[:2], "is part 0 of 3, where part 0 of 2 was to come")
    refused(tmp_path, [parts[0], parts[2], parts[1]], "is part 2 of 3, where part 1 of 3 was to come")
    parts[1].write_bytes(part_bytes([], "int32", 1, 3))
    refused(tmp_path, parts, "has tokens of type int32, .* of type uint16")
    parts[1].write_bytes(part_bytes([], "uint16", 1, 3, bytes(32)))
    refused(tmp_path, parts, "made with other options than")
    parts[1].unlink()
    refused(tmp_path, parts, "00001.part: open: No such file or directory")


@pytest.mark.parametrize(
    "at, match",
    [
        (0, "does not begin with PHXPART"),
        (8, "its version is 254"),
        (70, "its header is damaged: the CRC differs"),
        (2000, "its header is damaged: there is something behind the fields"),
        (4096, "its tokens are damaged: their CRC differs"),
        (-1, "its tables are damaged: their CRC differs"),
    ],
)
def test_a_damaged_part_is_refused(tmp_path, at, match):
    (path,) = write_parts(tmp_path / "parts", DOCUMENTS, "uint16", 1)
    assert native.check_part(path).documents == 5
    data = bytearray(path.read_bytes())
    data[at] ^= 255
    path.write_bytes(data)
    with pytest.raises(native.DataError, match=match):
        native.check_part(path)
    refused(tmp_path, [path], match)


def test_a_part_tells_what_it_is(tmp_path):
    path = tmp_path / "part"
    path.write_bytes(part_bytes(DOCUMENTS, "uint16", 3, 7, bytes(range(32)), notes=b'{"lines": 5}'))
    part = native.check_part(path)
    assert (part.number, part.parts, part.fingerprint) == (3, 7, bytes(range(32)))
    assert (part.documents, part.sequences, part.tokens, part.dtype) == (5, 5, 7, 8)
    assert path.read_bytes()[part.notes_at :] == b'{"lines": 5}' and part.notes_bytes == 12


def test_a_part_that_was_never_finished_is_none(tmp_path):
    whole = part_bytes(DOCUMENTS, "uint16")
    for data, match in (
        (whole[:0], "ends within its header, after 0 of 4096 bytes"),
        (whole[:4096], "has 4096 bytes, but its header speaks of"),
        (bytes(4096) + whole[4096:], "never finished"),
    ):
        (tmp_path / "part").write_bytes(data)
        with pytest.raises(native.DataError, match=match):
            native.check_part(tmp_path / "part")


def test_files_that_do_not_fit_together_are_no_dataset(tmp_path):
    join(tmp_path / "out", write_parts(tmp_path / "parts", DOCUMENTS, "uint16", 1))
    (tmp_path / "out.bin").write_bytes((tmp_path / "out.bin").read_bytes()[:-2])
    with pytest.raises(DatasetError, match=r"out.bin has 12 bytes, but the last sequence of .*out.idx ends at 14"):
        IndexedDataset(tmp_path / "out")
    (tmp_path / "out.idx").write_bytes(b"MMIDIDX\0\0")
    with pytest.raises(DatasetError, match="ends within its header, after 9 of 34 bytes"):
        IndexedDataset(tmp_path / "out")
    (tmp_path / "out.idx").write_text(json.dumps({}))
    with pytest.raises(DatasetError, match="begins with neither MMIDIDX nor TNTIDX"):
        IndexedDataset(tmp_path / "out")
