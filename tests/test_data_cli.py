"""`phalanx data`: merge, verify, info, head."""

import json
import os
import struct
import subprocess
import tempfile
import zlib
from pathlib import Path

import pytest
from data_parts import write_parts
from harness import command_path
from phalanx.data import IndexedDataset, native

FIRST = [[[1, 2, 3]], [], [[4], [], [5, 6]]]
SECOND = [[[7]], [[8, 9]], []]


def phalanx_data(*arguments, code=0):
    done = subprocess.run([command_path("phalanx"), "data", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == code, done.stderr + done.stdout
    return done.stdout if code < 2 else done.stderr


def tokenizer(letter):
    return {"type": "HFTokenizer", "fingerprint": f"sha256:{letter * 64}", "vocab_size": 50257, "eod": 0}


def make(prefix, documents, made_by=None, dtype="uint16", impl="mmap"):
    """A dataset as a preparation leaves it; without a tokenizer it has no sidecar."""
    parts = write_parts(prefix.parent / f"{prefix.name}.parts", documents, dtype, 2)
    with native.Join(prefix, parts, impl) as joined:
        counts = joined.counts
        sidecar = {
            "format": "phalanx-dataset",
            "version": 1,
            "dataset_impl": impl,
            "dtype": dtype,
            "documents": counts.documents,
            "sequences": counts.sequences,
            "tokens": counts.tokens,
            "bin": {"bytes": counts.bin_bytes, "crc32": counts.bin_crc32},
            "idx": {"bytes": counts.idx_bytes, "crc32": counts.idx_crc32},
            "tokenizer": made_by,
            "options": {"append_eod": True},
            "inputs": [{"path": "in.jsonl"}],
            "versions": {},
        }
        joined.publish(json.dumps(sidecar).encode())
    if made_by is None:
        os.unlink(f"{prefix}.json")


def change_sidecar(prefix, **fields):
    path = prefix.with_suffix(".json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def documents_of(prefix):
    return json.loads(phalanx_data("head", prefix, "-n", 1000, "--json"))["documents"]


@pytest.fixture
def two(tmp_path):
    make(tmp_path / "a", FIRST, tokenizer("a"))
    make(tmp_path / "b", SECOND, tokenizer("a"), impl="lazy")
    return tmp_path / "a", tmp_path / "b"


@pytest.mark.parametrize("impl", ["mmap", "lazy", "cached"])
def test_merge(tmp_path, two, impl):
    out = tmp_path / "out"
    told = phalanx_data("merge", out, *two, "--dataset-impl", impl)
    assert told.startswith(f"{out}: 6 documents, 9 tokens, ")
    assert documents_of(out) == FIRST + SECOND
    assert phalanx_data("verify", out, *two).endswith("3 intact, 0 damaged\n")
    sidecar = json.loads(out.with_suffix(".json").read_text())
    assert sidecar["dataset_impl"] == ("mmap" if impl == "mmap" else "lazy")
    assert sidecar["tokenizer"] == tokenizer("a") and sidecar["options"] == {"append_eod": True}
    assert [(entry["path"], entry["documents"]) for entry in sidecar["inputs"]] == [(f"{p}.bin", 3) for p in two]
    assert sidecar["bin"]["crc32"] == zlib.crc32(out.with_suffix(".bin").read_bytes())
    assert sidecar["idx"]["crc32"] == zlib.crc32(out.with_suffix(".idx").read_bytes())


def test_parts_are_merged_as_well(tmp_path):
    write_parts(tmp_path / "x.parts", FIRST + SECOND, "int32", 4)
    phalanx_data("merge", tmp_path / "out", tmp_path / "x.parts")
    assert documents_of(tmp_path / "out") == FIRST + SECOND
    os.unlink(tmp_path / "x.parts" / "00003.part")
    told = phalanx_data("merge", tmp_path / "more", tmp_path / "x.parts", code=2)
    assert "is part 0 of 4, where part 0 of 3 was to come" in told


def test_tokenizers_are_not_mixed(tmp_path, two):
    make(tmp_path / "c", SECOND, tokenizer("c"))
    told = phalanx_data("merge", tmp_path / "out", *two, tmp_path / "c", code=2)
    assert f"{tmp_path}/a.json and {tmp_path}/c.json were made by different tokenizers" in told
    assert not (tmp_path / "out.bin").exists()
    make(tmp_path / "plain", SECOND)
    phalanx_data("merge", tmp_path / "out", *two, tmp_path / "plain")
    sidecar = json.loads((tmp_path / "out.json").read_text())
    assert sidecar["tokenizer"] is None and sidecar["options"] == {}


def test_merge_refuses_what_does_not_go_together(tmp_path, two):
    make(tmp_path / "wide", SECOND, dtype="int32")
    told = phalanx_data("merge", tmp_path / "out", *two, tmp_path / "wide", code=2)
    assert "wide.bin has tokens of type int32, " in told and "of type uint16" in told
    assert "a.idx is there already" in phalanx_data("merge", two[0], two[1], code=2)
    assert "--dataset-impl is 'fast'" in phalanx_data("merge", tmp_path / "out", *two, "--dataset-impl", "fast", code=2)
    assert "none.idx: open: No such file" in phalanx_data("merge", tmp_path / "out", tmp_path / "none", code=2)
    assert "no/out.bin.writing: open: No such file" in phalanx_data("merge", tmp_path / "no" / "out", *two, code=2)
    phalanx_data("merge", tmp_path / "out", two[0])
    phalanx_data("merge", tmp_path / "out", two[1], "--force")
    assert documents_of(tmp_path / "out") == SECOND
    phalanx_data("merge", tmp_path / "out", tmp_path / "out", two[0], "--force")
    assert documents_of(tmp_path / "out") == SECOND + FIRST


def test_merge_does_not_pass_damage_on(tmp_path, two):
    data = bytearray(two[1].with_suffix(".bin").read_bytes())
    data[0] ^= 1
    two[1].with_suffix(".bin").write_bytes(data)
    assert "b.bin: its tokens are damaged" in phalanx_data("merge", tmp_path / "out", *two, code=2)
    assert sorted(os.listdir(tmp_path)) == [
        "a.bin",
        "a.idx",
        "a.json",
        "a.parts",
        "b.bin",
        "b.idx",
        "b.json",
        "b.parts",
    ]


# In the `.idx` of FIRST: lengths 3 1 0 2 at 34, offsets 0 6 8 8 at 50, boundaries 0 1 1 4 at 82.
@pytest.mark.parametrize(
    "file, at, value, why",
    [
        ("bin", 0, 99, "a.json: the CRC of .bin is"),
        ("idx", 0, 0, "a.idx: it is no index of a dataset"),
        ("idx", 9, 2, "a.idx: its version is 2: 1 is known"),
        ("idx", 17, 7, "a.idx: token type 7 is floating point"),
        ("idx", 18, 5, "a.idx: it has 114 bytes, but 5 sequences and 3 documents take 126"),
        ("idx", 37, 128, "a.idx: sequence 0 has a length of -2147483645"),
        ("idx", 34, 2, "a.idx: sequence 1 is said to begin at byte 6, but those before it end at 4"),
        ("idx", 46, 3, "a.idx: sequence 3 ends at token 7, but"),
        ("idx", 46, 1, "a.idx add up to 5 tokens, but"),
        ("idx", 58, 7, "a.idx: sequence 1 is said to begin at byte 7, but those before it end at 6"),
        ("idx", 82, 1, "a.idx: the first document begins at sequence 1 instead of 0"),
        ("idx", 90, 3, "a.idx: document 1 ends at sequence 1, before it begins at 3"),
        ("idx", 106, 3, "a.idx: the last document ends at sequence 3, but there are 4"),
    ],
)
def test_verify_says_what_is_wrong(two, file, at, value, why):
    path = two[0].with_suffix(f".{file}")
    data = bytearray(path.read_bytes())
    data[at] = value
    path.write_bytes(data)
    told = phalanx_data("verify", *two, code=1)
    assert why in told and told.endswith("1 intact, 1 damaged\n")
    answer = json.loads(phalanx_data("verify", *two, "--json", code=1))
    assert answer["damaged"] == 1 and why in answer["datasets"][0]["why"][0] and answer["datasets"][1]["why"] == []


@pytest.mark.parametrize(
    "fields, why",
    [
        ({"documents": 4}, "3 documents are there instead of 4"),
        ({"dtype": "int16"}, "tokens are uint16 instead of int16"),
        ({"dtype": "float"}, "'dtype' is 'float', which no tokens have"),
        ({"dataset_impl": "lazy"}, "the layout is mmap instead of lazy"),
        ({"bin": {"bytes": 14, "crc32": 0}}, "12 bytes of .bin are there instead of 14"),
        ({"bin": 3}, "'bin' is missing or not an object"),
        ({"tokens": -1}, "'tokens' is -1, out of its range"),
        ({"version": 2}, "version 2, where 1 is known"),
        ({"format": "zip"}, "'format' is 'zip' instead of 'phalanx-dataset'"),
        ({"tokenizer": {"type": 1}}, "'type' is missing or not a text"),
        ({"options": [[[]]]}, "'options' is missing or not an object"),
        ({"options": json.loads("[" * 40 + "]" * 40)}, "JSON of more than 32 levels"),
    ],
)
def test_verify_reads_the_sidecar(two, fields, why):
    change_sidecar(two[0], **fields)
    assert why in phalanx_data("verify", two[0], code=1)


def test_a_file_cut_short_or_missing(two):
    os.truncate(two[0].with_suffix(".bin"), 10)
    assert "12 bytes of .bin" not in phalanx_data("verify", two[0], code=1)
    assert "5 tokens are there instead of 6" in phalanx_data("verify", two[0], code=1)
    os.unlink(two[0].with_suffix(".json"))
    assert "a.idx: sequence 3 ends at token 6, but" in phalanx_data("verify", two[0], code=1)
    os.truncate(two[0].with_suffix(".bin"), 11)
    assert "which are no whole tokens of 2 bytes (uint16)" in phalanx_data("verify", two[0], code=1)
    os.unlink(two[0].with_suffix(".bin"))
    assert "a.bin: open: No such file or directory" in phalanx_data("verify", two[0], code=1)


def test_info(two):
    told = phalanx_data("info", *two).splitlines()
    assert told[0].split() == ["IMPL", "DTYPE", "DOCUMENTS", "SEQUENCES", "TOKENS", "SIZE", "TOKENIZER", "PREFIX"]
    assert told[1].split()[:5] == ["mmap", "uint16", "3", "4", "6"] and told[1].split()[-2:] == [
        "HFTokenizer",
        str(two[0]),
    ]
    assert told[2].split()[0] == "lazy"
    answer = json.loads(phalanx_data("info", f"{two[0]}.idx", "--json"))["datasets"]
    assert answer[0]["tokens"] == 6 and answer[0]["sidecar"]["tokenizer"] == tokenizer("a")


def test_head(tmp_path, two):
    for prefix in two:
        told = phalanx_data("head", prefix)
        documents = FIRST if prefix == two[0] else SECOND
        assert documents_of(prefix) == documents
    assert told == "0: 7\n1: 8 9\n2: (empty)\n"
    assert phalanx_data("head", two[0], "-n", 3).splitlines()[2] == "2: 4 |  | 5 6"
    make(tmp_path / "long", [[list(range(100))]])
    assert phalanx_data("head", tmp_path / "long").endswith(" 62 63 .. 36 more\n")


@pytest.mark.slow
def test_large_offsets():
    """Tokens past 2^31 bytes, of a file with a hole; in memory, as no hole is left in what comes of it."""
    lengths = [1 << 30, (1 << 30) + 5]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        large, small, out = (Path(folder) / name for name in ("large", "small", "out"))
        with open(large.with_suffix(".bin"), "wb") as file:
            file.seek(sum(lengths) - 1)
            file.write(b"a")
        tables = struct.pack("<9sQBQQ2i2q2q", b"MMIDIDX", 1, 1, 2, 2, *lengths, 0, lengths[0], 0, 2)
        large.with_suffix(".idx").write_bytes(tables)
        make(small, [[[1, 2]], [[3]]], dtype="uint8")
        phalanx_data("merge", out, large, small, small)
        with IndexedDataset(out) as dataset:
            assert dataset.sequence_lengths.tolist() == [*lengths, 2, 1, 2, 1]
            assert dataset.get(1, lengths[1] - 1).tolist() == [ord("a")]
            assert [sequence.tolist() for sequence in dataset[2:]] == [[1, 2], [3], [1, 2], [3]]
        assert phalanx_data("verify", out).endswith("1 intact, 0 damaged\n")
