"""The command line: that of the guide's `pyspark_preprocess.py`, to the letter, and what we have beside it."""

import argparse
import glob
import os

from phalanx.preprocess.refusal import Refused

TOKENIZERS = ("HFGPT2Tokenizer", "HFTokenizer", "GPT2BPETokenizer", "CharLevelTokenizer", "TiktokenTokenizer")


def parser(prog):
    """Abbreviations count (`--vocab` is `--vocab-file`), so a new option must not begin as an old one does."""
    made = argparse.ArgumentParser(
        prog=prog, description="Tokenizes documents into the .bin and .idx that Megatron-LM and gpt-neox train on."
    )
    add_input(made.add_argument_group(title="input data"))
    add_tokenizer(made.add_argument_group(title="tokenizer"))
    add_output(made.add_argument_group(title="output data"))
    add_runtime(made.add_argument_group(title="runtime"))
    return made


def add_input(group):
    group.add_argument(
        "--input",
        required=True,
        help="jsonl (also .gz, .zst), parquet or lm_dataformat archives: files, patterns or folders, separated by "
        "commas; with --engine spark also hdfs:// and s3a://",
    )
    group.add_argument("--jsonl-keys", nargs="+", default=["text"], help="keys to take from each document")
    group.add_argument("--num-docs", type=int, default=None, help="documents in the input, if known, for the progress")


def add_tokenizer(group):
    group.add_argument("--tokenizer-type", required=True, choices=TOKENIZERS)
    group.add_argument("--vocab-file", default=None, help="tokenizer.json, vocab.json, or what the tokenizer has")
    group.add_argument("--merge-file", default=None, help="merges.txt, for GPT2BPETokenizer")
    group.add_argument("--append-eod", action="store_true", help="end each document that is not empty with <eod>")
    group.add_argument("--ftfy", action="store_true", help="repair broken encodings with ftfy first")


def add_output(group):
    group.add_argument("--output-prefix", required=True, help="PREFIX of PREFIX_<key>_document.bin and .idx")
    group.add_argument(
        "--dataset-impl",
        default="mmap",
        choices=["lazy", "cached", "mmap"],
        help="the layout of the .idx (default: mmap, what Megatron-LM reads)",
    )


def add_runtime(group):
    group.add_argument("--workers", type=int, default=1, help="processes of --engine threads, at most the CPUs here")
    group.add_argument("--log-interval", type=int, default=100, help="documents between two words of progress")
    group.add_argument(
        "--engine",
        choices=["spark", "threads"],
        default="spark",
        help="spark: as spark-submit says, else local[*]; threads: processes of this machine, no JVM",
    )
    group.add_argument(
        "--on-error",
        choices=["fail", "skip"],
        default="fail",
        help="what follows a line that is no document; skip lists it in PREFIX.errors.jsonl",
    )
    group.add_argument("--resume", action="store_true", help="go on from the parts that a killed run has left")
    group.add_argument(
        "--split-bytes",
        type=int,
        default=None,
        help="cut plain jsonl files (and parquet, by row groups) into pieces of this size (default: by size of the "
        "input, 1 to 64 MiB)",
    )


def check(options):
    """Whatever can be known to be wrong before any work is done. Raises Refused."""
    for name in ("workers", "log_interval", "num_docs", "split_bytes"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise Refused(f"--{name.replace('_', '-')} {value}: must be at least 1")
    if len(set(options.jsonl_keys)) != len(options.jsonl_keys):
        raise Refused(f"--jsonl-keys {' '.join(options.jsonl_keys)}: a key stands there twice")
    for key in options.jsonl_keys:
        if not key or "/" in key or "\0" in key:
            raise Refused(f"--jsonl-keys {key!r}: becomes part of a file name, and cannot be empty or hold a slash")
    check_prefix(options.output_prefix)


def check_prefix(prefix):
    if "://" in prefix:
        raise Refused(f"--output-prefix {prefix}: must lie on a file system that all workers and this process share")
    folder, name = os.path.split(prefix)
    if not name:
        raise Refused(f"--output-prefix {prefix}: ends with a slash; a file name must follow, such as {prefix}data")
    if folder and not os.path.isdir(folder):
        raise Refused(f"--output-prefix {prefix}: there is no folder {folder}")
    if not os.access(folder or ".", os.W_OK):
        raise Refused(f"--output-prefix {prefix}: the folder {folder or '.'} cannot be written to")


def is_remote(word):
    return "://" in word


def split_at_commas(text):
    """Not at those in braces, which are of a pattern of Hadoop's."""
    if text.count("{") != text.count("}"):
        return text.split(",")
    pieces, depth = [""], 0
    for letter in text:
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth <= 0:
            pieces.append("")
        else:
            pieces[-1] += letter
    return pieces


def input_words(text):
    """The paths, patterns and folders of --input. A comma separates, unless all of it is one name that is there."""
    if not is_remote(text) and (os.path.exists(text) or glob.glob(text)):
        return [text]
    words = [word.strip() for word in split_at_commas(text)]
    if not all(words):
        raise Refused(f"--input {text!r}: an empty name; separate several inputs by single commas")
    return words
