"""Our datasets against those of megatron-core's builder, and as its reader reads them."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from data_parts import write_parts
from harness import command_path
from phalanx.data import IndexedDataset, native

ORACLE = Path(__file__).resolve().parent / "megatron_oracle.py"
DTYPES = {50257: "uint16", 65499: "uint16", 65500: "int32", 256000: "int32"}  # by vocabulary
EMPTY = {"nothing": [], "no_tokens": [[], [], []]}  # whose `.bin` has no bytes, which its reader cannot map


def random_documents(rng, vocab_size):
    """Every length, document and sequence of which is empty now and then."""
    lengths = (0, 1, 2, 31, 1000)
    return [
        [[rng.randrange(vocab_size) for _ in range(rng.choice(lengths))] for _ in range(rng.choice((0, 0, 1, 1, 2, 5)))]
        for _ in range(rng.randrange(1, 120))
    ]


@pytest.fixture(scope="module")
def megatron(tmp_path_factory):
    """{name: (folder with `ours` and `theirs`, documents, vocabulary)}, and what the oracle answered of each."""
    folder = tmp_path_factory.mktemp("megatron")
    rng = random.Random(11)
    cases = {f"random{i}": (random_documents(rng, vocab), vocab) for i, vocab in enumerate(sorted(DTYPES) * 3)}
    cases.update({name: (documents, 50257) for name, documents in EMPTY.items()})
    asked = {"build": [], "merge": {}, "read": []}
    for name, (documents, vocab_size) in cases.items():
        home = folder / name
        parts = write_parts(home / "parts", documents, DTYPES[vocab_size], rng.randrange(1, 9))
        with native.Join(home / "ours", parts) as joined:
            joined.publish(b"{}")
        asked["build"].append({"prefix": f"{home}/theirs", "vocab_size": vocab_size, "documents": documents})
        if name not in EMPTY:
            asked["read"] += [f"{home}/ours", f"{home}/theirs"]
    small = [f"{folder}/{name}/theirs" for name, (_, vocab) in cases.items() if vocab == 50257]
    asked["merge"][f"{folder}/merged_theirs"] = small
    (folder / "asked.json").write_text(json.dumps(asked))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", ORACLE, folder / "asked.json"], stdout=subprocess.PIPE, text=True, check=True
    )
    answer = json.loads(done.stdout.splitlines()[-1])
    return folder, cases, asked, answer


def files(prefix):
    return [Path(f"{prefix}.{suffix}").read_bytes() for suffix in ("bin", "idx")]


def test_the_type_of_tokens_is_theirs(megatron):
    _, cases, _, answer = megatron
    assert answer["dtypes"] == [DTYPES[vocab_size] for _, vocab_size in cases.values()]


def test_both_files_are_equal_byte_for_byte(megatron):
    folder, cases, _, _ = megatron
    for name in cases:
        ours = files(folder / name / "ours")
        assert ours == files(folder / name / "theirs"), name
        assert ours == files(folder / name / "theirs.by_item"), name


def test_megatron_reads_ours(megatron):
    _, cases, asked, answer = megatron
    wanted = [documents for name, (documents, _) in cases.items() if name not in EMPTY for _ in range(2)]
    assert len(wanted) == len(asked["read"])
    assert answer["documents"] == wanted


def test_we_read_theirs(megatron):
    folder, cases, _, _ = megatron
    for name, (documents, _) in cases.items():
        with IndexedDataset(folder / name / "theirs") as dataset:
            ends = dataset.document_indices.tolist()
            sequences = [sequence.tolist() for sequence in dataset[:]]
        assert [sequences[begin:end] for begin, end in zip(ends, ends[1:])] == documents, name
        native.check(folder / name / "theirs")


def test_a_merge_is_theirs_too(megatron):
    folder, _, asked, _ = megatron
    ((theirs, sources),) = asked["merge"].items()
    command = [command_path("phalanx"), "data", "merge", folder / "merged_ours", *sources]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert files(folder / "merged_ours") == files(theirs)
