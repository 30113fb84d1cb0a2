"""The tokenizers that gpt-neox has, by the libraries that it has them from: same ids, same <eod>, same vocabulary size.

A Recipe is all that a tokenizer is made of, as bytes: read once, where the files are, and sent to whoever tokenizes.
"""

import array
import dataclasses
import functools
import hashlib
import json
import os
from typing import Tuple

from phalanx.preprocess import words
from phalanx.preprocess.refusal import Refused, need

EOD = "<|endoftext|>"
PAD = "<|padding|>"
CHARACTERS = 512
# The builder of gpt-neox and Megatron takes u16 below this.
SMALL_VOCABULARY = 65_500


@dataclasses.dataclass(frozen=True)
class Recipe:
    kind: str
    files: Tuple[Tuple[str, bytes], ...]

    @property
    def fingerprint(self):
        """Equal: the same text gives the same tokens."""
        digest = hashlib.sha256(f"{self.kind}\n".encode())
        for name, content in self.files:
            digest.update(f"{name} {len(content)}\n".encode())
            digest.update(content)
        return f"sha256:{digest.hexdigest()}"


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """`encode(texts, typecode)`: the ids of each, as an array of that type. OverflowError where one does not fit."""

    encode: object
    vocab_size: int
    eod: int


def read_recipe(kind, vocab_file, merge_file):
    """What the options name, read. Raises Refused."""
    if merge_file is not None and kind != "GPT2BPETokenizer":
        raise Refused(f"--merge-file {merge_file}: {kind} has none; leave it out")
    if kind == "CharLevelTokenizer":
        if vocab_file is not None:
            raise Refused(f"--vocab-file {vocab_file}: CharLevelTokenizer has none; leave it out")
        return Recipe(kind, ())
    if kind == "HFGPT2Tokenizer":
        return Recipe(kind, gpt2_files(vocab_file or "gpt2"))
    if vocab_file is None:
        raise Refused(f"--tokenizer-type {kind} needs --vocab-file")
    if kind == "TiktokenTokenizer":
        return Recipe(kind, tiktoken_files(vocab_file))
    if kind == "HFTokenizer":
        return Recipe(kind, (("tokenizer.json", read_file("--vocab-file", vocab_file)),))
    if merge_file is None:
        raise Refused(f"--tokenizer-type {kind} needs --merge-file beside --vocab-file")
    vocab = read_file("--vocab-file", vocab_file)
    return Recipe(kind, (("vocab.json", vocab), ("merges.txt", read_file("--merge-file", merge_file))))


def read_file(option, path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise Refused(f"{option} {path}: cannot be read: {error.strerror}") from None


def gpt2_files(place):
    """Of a folder, or of a repository's name (`gpt2`), which Hugging Face's client fetches and keeps."""
    if os.path.isdir(place):
        if os.path.exists(os.path.join(place, "tokenizer.json")):
            return (("tokenizer.json", read_file("--vocab-file", os.path.join(place, "tokenizer.json"))),)
        names = ("vocab.json", "merges.txt")
        return tuple((name, read_file("--vocab-file", os.path.join(place, name))) for name in names)
    if os.path.exists(place):
        raise Refused(
            f"--vocab-file {place}: HFGPT2Tokenizer takes a folder with tokenizer.json, or vocab.json and merges.txt"
        )
    hub = need("huggingface_hub", "huggingface_hub", f"--vocab-file {place}: no such folder; to fetch it by that name")
    from huggingface_hub import errors

    try:
        path = hub.hf_hub_download(place, "tokenizer.json")
    except (OSError, ValueError, errors.HfHubHTTPError) as error:
        raise Refused(
            f"--vocab-file {place}: there is no such folder, and it cannot be fetched by that name: {error}"
        ) from None
    return (("tokenizer.json", read_file("--vocab-file", path)),)


def tiktoken_files(name):
    tiktoken = need("tiktoken", "tiktoken", "TiktokenTokenizer")
    try:
        encoding = tiktoken.get_encoding(name)
    except ValueError:
        names = ", ".join(tiktoken.list_encoding_names())
        raise Refused(f"--vocab-file {name}: tiktoken has no encoding of that name; it has {names}") from None
    except OSError as error:  # of the client that fetches the ranks
        raise Refused(f"--vocab-file {name}: tiktoken cannot fetch it: {error}") from None
    ranks = sorted(encoding._mergeable_ranks.items(), key=lambda item: item[1])
    table = {
        "pattern": encoding._pat_str,
        "special": encoding._special_tokens,
        "ranks": [[token.hex(), rank] for token, rank in ranks],
    }
    return (("encoding.json", json.dumps(table, sort_keys=True).encode()),)


@functools.lru_cache(maxsize=1)
def build(recipe):
    """The tokenizer. Once a process: a Spark executor's Python works on many splits. Raises Refused."""
    makers = {
        "CharLevelTokenizer": lambda _files: Tokenizer(encode_characters, CHARACTERS, 0),
        "TiktokenTokenizer": build_tiktoken,
        "HFTokenizer": build_hf,
        "HFGPT2Tokenizer": build_hf_gpt2,
        "GPT2BPETokenizer": build_gpt2_bpe,
    }
    return makers[recipe.kind](dict(recipe.files))


def encode_characters(texts, typecode):
    return [array.array(typecode, list(text.encode("utf-8"))) for text in texts]


def build_tiktoken(files):
    tiktoken = need("tiktoken", "tiktoken", "TiktokenTokenizer")
    table = json.loads(files["encoding.json"])
    ranks = {bytes.fromhex(token): rank for token, rank in table["ranks"]}
    encoding = tiktoken.Encoding(
        "of-recipe", pat_str=table["pattern"], mergeable_ranks=ranks, special_tokens=table["special"]
    )

    def encode(texts, typecode):
        # Names of special tokens in a text are text: it comes from anywhere.
        return [array.array(typecode, encoding.encode_ordinary(text)) for text in texts]

    return Tokenizer(encode, encoding.n_vocab, table["special"].get(EOD))


def parse_hf(content):
    tokenizers = need("tokenizers", "tokenizers", "this tokenizer")
    try:
        return tokenizers.Tokenizer.from_buffer(content)
    except ValueError as error:
        raise Refused(f"--vocab-file: is no tokenizer.json that the tokenizers library can read: {error}") from None


def finish_hf(tokenizer):
    """Ours whole: documents are neither cut nor filled up, whatever the file says of a model's inputs."""
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def encode(texts, typecode):
        return [array.array(typecode, encoding.ids) for encoding in tokenizer.encode_batch_fast(texts)]

    if words.can_cut(tokenizer):
        encode = words.Words(encode).encode
    return Tokenizer(encode, tokenizer.get_vocab_size(), tokenizer.token_to_id(EOD))


def build_hf(files):
    return finish_hf(parse_hf(files["tokenizer.json"]))


def build_hf_gpt2(files):
    """With the special tokens that GPT2TokenizerFast and gpt-neox add, in that order."""
    tokenizer = parse_hf(files["tokenizer.json"]) if "tokenizer.json" in files else byte_level_bpe(files)
    tokenizer.add_special_tokens([EOD, PAD])
    return finish_hf(tokenizer)


def build_gpt2_bpe(files):
    """As it was in GPT-2: <|endoftext|> in a text is text."""
    tokenizer = byte_level_bpe(files)
    finished = finish_hf(tokenizer)
    if finished.eod is None:
        raise Refused(f"--vocab-file: the vocabulary has no {EOD}, which GPT2BPETokenizer ends documents with")
    return finished


def byte_level_bpe(files):
    tokenizers = need("tokenizers", "tokenizers", "this tokenizer")
    vocab, merges = parse_bpe(files["vocab.json"], files["merges.txt"])
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def parse_bpe(vocab_json, merges_txt):
    """Checked as far as the library would fail over it."""
    try:
        vocab = json.loads(vocab_json)
        lines = merges_txt.decode("utf-8").split("\n")
    except ValueError as error:
        raise Refused(f"--vocab-file, --merge-file: are JSON and text in UTF-8, but: {error}") from None
    if not isinstance(vocab, dict) or not all(isinstance(number, int) and number >= 0 for number in vocab.values()):
        raise Refused("--vocab-file: is no JSON object of tokens and their numbers")
    merges = []
    for number, line in enumerate(lines, 1):
        pieces = tuple(line.split())
        if not pieces or line.startswith("#version"):
            continue
        if len(pieces) != 2 or not {*pieces, "".join(pieces)} <= vocab.keys():
            raise Refused(f"--merge-file, line {number}: {line!r} is not two tokens that make one, all in --vocab-file")
        merges.append(pieces)
    return vocab, merges


def token_type(vocab_size, dataset_impl):
    """The name of the .bin's type. gpt-neox's builder of lazy and cached datasets has but one."""
    return "uint16" if vocab_size < SMALL_VOCABULARY and dataset_impl == "mmap" else "int32"
