"""How data preparation reads: every record once, wherever files are cut and whatever they are packed in."""

import gzip
import io
import json
import random
import tarfile

import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from phalanx.preprocess import inputs, plan, readers
from phalanx.preprocess.refusal import Refused


def records(path, size=1 << 30, keys=("text",)):
    """What all splits of a file give, in order, and the number of the line of each."""
    one = inputs.look(str(path))
    found, line = [], 0
    for split in plan.cut([one], size):
        reader = readers.open_split(one, split, list(keys))
        found += [(line + number, record) for number, record in reader]
        line += reader.lines
        assert reader.position() == plan.weight([one], split) or one.kind != "jsonl"
    return found


def test_each_line_is_in_one_split(tmp_path):
    """Splits of every size: borders within lines, at their ends, between \\r and \\n, and lines longer than splits."""
    rng = random.Random(1)
    for case in range(30):
        ends = [b"\n", b"\r\n"][case % 2]
        lines = [b"x" * rng.choice([0, 1, 2, 5, 40]) for _ in range(rng.randint(1, 12))]
        path = tmp_path / f"{case}.jsonl"
        path.write_bytes(ends.join(lines) + (ends if case % 3 else b""))
        wanted = [(number, line) for number, line in enumerate(lines) if line]
        for size in range(1, path.stat().st_size + 2):
            found = [(number, line.rstrip(b"\r\n")) for number, line in records(path, size)]
            assert found == wanted, (case, size)


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf{}\n")
    assert records(tmp_path / "a.jsonl") == [(0, b"{}\n")]


def test_a_file_that_shrank_is_noticed(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{}\n" * 9)
    one = inputs.look(str(path))
    path.write_bytes(b"{}\n" * 3)
    (split,) = plan.cut([one], 1 << 30)
    with pytest.raises(Refused, match="ends at byte 9; it was 27 bytes long"):
        list(readers.open_split(one, split, ["text"]))


LINES = [json.dumps({"text": f"document {number}"}).encode() + b"\n" for number in range(500)]


def archives(folder):
    """The layouts of lm_dataformat, as its archives write them, and the usual ones."""
    plain, half = b"".join(LINES), b"".join(LINES[:250])
    frames = zstandard.compress(half) + zstandard.compress(plain[len(half) :])
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        for name, content in (("one.jsonl.zst", half), ("two.jsonl.zst", plain[len(half) :])):
            member = tarfile.TarInfo(name)
            packed = zstandard.compress(content)
            member.size = len(packed)
            archive.addfile(member, io.BytesIO(packed))
    documents = [json.loads(line)["text"] for line in LINES]
    dat = b"".join(b"%016d" % len(text.encode()) + text.encode() for text in documents)
    contents = {
        "a.jsonl.gz": gzip.compress(plain),
        "data_0_time1_default.jsonl.zst": frames,
        "a.jsonl.zst.tar": tar.getvalue(),
        "data_0_1.dat.zst": zstandard.compress(dat),
        "data_0_1.json.zst": zstandard.compress(json.dumps(documents).encode()),
        "packed_without_saying_so": gzip.compress(plain),
        "unpacked.jsonl.gz": plain,
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return contents


def test_archives(tmp_path):
    for name in archives(tmp_path):
        found = records(tmp_path / name)
        texts = [record if isinstance(record, str) else json.loads(record)["text"] for _, record in found]
        assert texts == [f"document {number}" for number in range(500)], name
        assert [number for number, _ in found] == list(range(500)), name


@pytest.mark.parametrize("cut", [1, 9, 400])
def test_an_archive_that_ends_too_early_is_damaged(tmp_path, cut):
    for name, content in archives(tmp_path).items():
        if name != "unpacked.jsonl.gz":
            (tmp_path / name).write_bytes(content[:-cut] if "tar" not in name else content[:700])
            with pytest.raises(Refused, match="is damaged, or not complete"):
                records(tmp_path / name)


@pytest.mark.parametrize("size", [1, 3000, 1 << 30])
def test_parquet(tmp_path, size):
    table = pyarrow.table({"id": range(500), "text": [f"document {number}" for number in range(500)]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=70)
    found = records(tmp_path / "a.parquet", size)
    assert found == [(number, {"text": f"document {number}"}) for number in range(500)]
    inputs.check_columns(inputs.look(str(tmp_path / "a.parquet")), ["text"])
    with pytest.raises(Refused, match="has no column 'body'; it has id, text"):
        inputs.check_columns(inputs.look(str(tmp_path / "a.parquet")), ["body"])


def test_a_parquet_file_without_rows(tmp_path):
    pyarrow.parquet.write_table(pyarrow.table({"text": pyarrow.array([], pyarrow.string())}), tmp_path / "a.parquet")
    assert records(tmp_path / "a.parquet") == []


def test_the_size_of_pieces_follows_that_of_the_input_alone():
    def pieces(total):
        one = inputs.Input("a", "jsonl", total, 0)
        return plan.split_bytes([one]), len(plan.cut([one], plan.split_bytes([one])))

    mib = 1 << 20
    assert pieces(1000) == (mib, 1)
    assert pieces(50 * mib) == (mib, 50)
    assert pieces(16 << 30) == (64 * mib, 256)
    assert pieces(100 << 40)[1] <= plan.MOST_SPLITS
