"""The command line of data preparation: the guide's, and what is said at the door."""

import gzip
import json
import os
import subprocess
import sys

import pytest
from phalanx.preprocess import options
from preparation import run, train_bpe, write_jsonl

GUIDE = (
    "--input $DATA/stackexchange_aa.jsonl --output-prefix $DATA/output/result --vocab $DATA/20B_tokenizer.json "
    "--tokenizer-type HFTokenizer --append-eod --jsonl-keys text --workers 64 --append-eod"
).split()


def test_the_guides_command_is_understood():
    chosen = options.parser("p").parse_args(GUIDE)
    assert chosen.vocab_file == "$DATA/20B_tokenizer.json"
    assert (chosen.workers, chosen.append_eod, chosen.jsonl_keys) == (64, True, ["text"])


@pytest.mark.parametrize(
    "text, words",
    [
        ("a, b", ["a", "b"]),
        ("hdfs://h/{a,b}/x*,c", ["hdfs://h/{a,b}/x*", "c"]),
        ("c,hdfs://h/{a,{b,c}}/x*", ["c", "hdfs://h/{a,{b,c}}/x*"]),
        ("a{,b", ["a{", "b"]),
    ],
)
def test_commas_separate_but_in_patterns(text, words):
    assert options.input_words(text) == words


def test_defaults_are_those_of_the_guide():
    chosen = vars(options.parser("p").parse_args(["--input=a", "--tokenizer-type=HFTokenizer", "--output-prefix=b"]))
    guide = {
        "input": "a",
        "jsonl_keys": ["text"],
        "num_docs": None,
        "tokenizer_type": "HFTokenizer",
        "vocab_file": None,
        "merge_file": None,
        "append_eod": False,
        "ftfy": False,
        "output_prefix": "b",
        "dataset_impl": "mmap",
        "workers": 1,
        "log_interval": 100,
    }
    ours = {"engine": "spark", "on_error": "fail", "resume": False, "split_bytes": None}
    assert chosen == {**guide, **ours}


def test_every_abbreviation_of_the_guides_options_stays_one():
    """As long as it has three letters: --o.. may be --output-prefix or --on-error."""
    parser = options.parser("p")
    names = "input jsonl-keys num-docs tokenizer-type vocab-file merge-file append-eod ftfy output-prefix dataset-impl"
    for name in (names + " workers log-interval").split():
        for length in range(3, len(name)):
            found = parser._get_option_tuples(f"--{name[:length]}")
            assert [action.dest for action, *_ in found] == [name.replace("-", "_")], name[:length]


@pytest.fixture
def there(tmp_path):
    """A folder with a corpus and a tokenizer."""
    write_jsonl(tmp_path / "data.jsonl", ["a few words", "and more"])
    train_bpe().save(str(tmp_path / "tok.json"))
    (tmp_path / "out").mkdir()
    return tmp_path


def refused(there, *changes, kind="HFTokenizer", vocab="tok.json", data="data.jsonl", prefix="out/r"):
    """What is said of a command, which must end with 1 and leave nothing."""
    vocab = [] if vocab is None else ["--vocab-file", there / vocab]
    answer = run(
        "--input", data if "://" in data else there / data, "--output-prefix", f"{there}/{prefix}",
        "--tokenizer-type", kind, *vocab, *changes,
    )  # fmt: skip
    assert answer.returncode == 1, answer.stderr
    assert "Traceback" not in answer.stderr
    assert not os.listdir(there / "out")
    return answer.stderr


def test_what_is_missing_is_named(there):
    assert "there is no such file" in refused(there, data="none.jsonl")
    assert "matches none as a pattern" in refused(there, data="none-*.jsonl")
    assert f"there is no folder {there}/nowhere" in refused(there, prefix="nowhere/r")
    assert "a file name must follow" in refused(there, prefix="out/")
    assert "none.json: cannot be read: No such file" in refused(there, vocab="none.json")
    assert "needs --vocab-file" in refused(there, vocab=None)
    assert "needs --merge-file" in refused(there, kind="GPT2BPETokenizer")
    assert "leave it out" in refused(there, kind="CharLevelTokenizer")
    assert "has no encoding of that name" in refused(there, kind="TiktokenTokenizer")
    assert "--engine spark" in refused(there, data="hdfs://name/data.jsonl")


def test_what_is_wrong_is_named(there):
    assert "is no tokenizer.json" in refused(there, vocab="data.jsonl")
    assert "--workers 0: must be at least 1" in refused(there, "--workers=0")
    assert "a key stands there twice" in refused(there, "--jsonl-keys", "text", "text")
    assert "hold a slash" in refused(there, "--jsonl-keys", "a/b")
    (there / "utf16.jsonl").write_text('{"text": "a"}\n', encoding="utf-16")
    assert "is UTF-16" in refused(there, data="utf16.jsonl")
    (there / "empty").mkdir()
    assert "the folder has no file of" in refused(there, data="empty")
    (there / "a.zip").write_bytes(b"PK\3\4")
    assert "this kind of archive is not read" in refused(there, data="a.zip")
    (there / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n' * 99)[:-9])
    assert "is damaged, or not complete" in refused(there, data="cut.jsonl.gz")
    (there / "no.parquet").write_bytes(b"PAR1 and no more")
    assert "is no readable parquet file" in refused(there, data="no.parquet")


def test_a_tokenizer_without_an_end_of_documents(there):
    content = json.loads((there / "tok.json").read_text())
    content["added_tokens"] = []
    content["model"]["vocab"] = {k: v for k, v in content["model"]["vocab"].items() if k != "<|endoftext|>"}
    (there / "plain.json").write_text(json.dumps(content))
    assert "has no token <|endoftext|>" in refused(there, "--append-eod", vocab="plain.json")


def test_a_missing_library_is_named_with_what_brings_it(there):
    """Python is told that the module does not exist, as where it is not installed."""
    program = "import sys; sys.modules['tokenizers'] = None; from phalanx.preprocess.run import main; sys.exit(main())"
    arguments = ["--input", there / "data.jsonl", "--output-prefix", there / "out" / "r", "--engine=threads"]
    arguments += ["--tokenizer-type=HFTokenizer", "--vocab-file", there / "tok.json"]
    answer = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)
    assert answer.returncode == 1
    assert "pip install 'phalanx[data]'" in answer.stderr


def test_the_package_alone_is_light():
    """Whoever imports it pays for no tokenizer, no Spark, no torch before they are used."""
    program = "import phalanx.preprocess.run, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"tokenizers", "tiktoken", "pyspark", "pyarrow", "zstandard", "ftfy", "numpy", "torch"} & set(loaded)
