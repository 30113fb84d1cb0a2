"""The tokenizers of data preparation, each beside the library that gpt-neox has it from."""

import array
import json
import random

import pytest
import tokenizers
from phalanx.preprocess import tokenization, words
from phalanx.preprocess.refusal import Refused
from preparation import EOD, expected_files, files_of, run, texts, train_bpe, write_jsonl

TEXTS = [*texts(60), "", "  ", "\n"]


@pytest.fixture(scope="module")
def bpe():
    return train_bpe()


@pytest.fixture
def files(bpe, tmp_path):
    """One vocabulary in the files that the different tokenizers take."""
    bpe.save(str(tmp_path / "tokenizer.json"))
    folder = tmp_path / "gpt2"
    folder.mkdir()
    bpe.model.save(str(folder))
    return tmp_path


def built(kind, vocab, merges=None):
    return tokenization.build(tokenization.read_recipe(kind, vocab and str(vocab), merges and str(merges)))


def ids(ours, found):
    return [list(tokens) for tokens in ours.encode(found, "i")]


def arrays(tokenizer, found, typecode):
    return [array.array(typecode, encoding.ids) for encoding in tokenizer.encode_batch(found)]


def test_hf(bpe, files):
    ours = built("HFTokenizer", files / "tokenizer.json")
    assert ids(ours, TEXTS) == [bpe.encode(text).ids for text in TEXTS]
    assert (ours.eod, ours.vocab_size) == (bpe.token_to_id(EOD), bpe.get_vocab_size())


def nasty_texts(count, seed):
    """Of all that a pattern could trip over: every kind of white space, contractions, marks, special tokens."""
    rng = random.Random(seed)
    pool = [
        " ",
        "  ",
        "\n",
        "\t",
        "\r\n",
        "\xa0",
        "\u2003",
        "\x1c",
        "\x85",
        "\u0301",
        "a",
        "Be",
        "don't",
        "'s",
        "7",
        "12",
    ]
    pool += ["!", "?!", "(", "é", "e\u0301", "漢", "字", "😀", "\u200d", "\x00", EOD, "<|", "word", "another", "    "]
    return ["".join(rng.choices(pool, k=rng.randint(0, 25))) for _ in range(count)]


@pytest.mark.parametrize("normalizer", [None, tokenizers.normalizers.NFC()])
def test_word_by_word_is_as_in_one_piece(bpe, normalizer):
    """With added tokens of spaces alone, as GPT-NeoX's has, and one that begins with a space."""
    tokenizer = tokenizers.Tokenizer.from_str(bpe.to_str())
    tokenizer.normalizer = normalizer
    tokenizer.add_tokens(["  ", "   ", "    ", " another"])
    assert words.can_cut(tokenizer)
    known = words.Words(lambda *found: arrays(tokenizer, *found))
    for text in nasty_texts(4000, 1):
        assert ids(known, [text]) == [tokenizer.encode(text).ids], repr(text)
    many = nasty_texts(3000, 2)
    assert ids(known, many) == [tokenizer.encode(text).ids for text in many]
    for text in (*many, *TEXTS):
        assert "".join(words.PIECE.findall(text)) == text


def test_what_words_are_known_is_bounded(bpe, monkeypatch):
    monkeypatch.setattr(words, "KNOWN_PIECES", 50)
    ours = words.Words(lambda *found: arrays(bpe, *found))
    for text in TEXTS:
        assert ids(ours, [text, "x" * 99]) == [bpe.encode(text).ids, bpe.encode("x" * 99).ids]
        assert len(ours.known) <= 50 + len(text)
    assert not any(len(piece) > words.LONGEST_KNOWN for piece in ours.known)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.add_tokens([tokenizers.AddedToken("x", lstrip=True)]),
        lambda t: t.add_tokens([tokenizers.AddedToken("x", single_word=True)]),
        lambda t: t.add_tokens(["New York"]),
        lambda t: setattr(t, "pre_tokenizer", tokenizers.pre_tokenizers.Metaspace()),
        lambda t: setattr(t, "pre_tokenizer", tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)),
        lambda t: setattr(t, "pre_tokenizer", None),
        lambda t: setattr(t, "normalizer", tokenizers.normalizers.Strip()),
        lambda t: setattr(t, "post_processor", tokenizers.processors.TemplateProcessing(f"{EOD} $A", None, [(EOD, 0)])),
        lambda t: setattr(t.model, "dropout", 0.1),
    ],
)
def test_tokenizers_that_see_more_than_a_word_get_whole_texts(bpe, change):
    tokenizer = tokenizers.Tokenizer.from_str(bpe.to_str())
    change(tokenizer)
    assert not words.can_cut(tokenizer)


def test_hf_neither_cuts_nor_fills_up(bpe, files):
    limited = tokenizers.Tokenizer.from_str(bpe.to_str())
    limited.enable_truncation(5)
    limited.enable_padding(length=50)
    limited.save(str(files / "limited.json"))
    assert ids(built("HFTokenizer", files / "limited.json"), TEXTS) == [bpe.encode(text).ids for text in TEXTS]


def test_hf_gpt2_of_a_folder(bpe, files):
    """As GPT2TokenizerFast: <|endoftext|> in a text is the token, and <|padding|> is one, too."""
    ours = built("HFGPT2Tokenizer", files / "gpt2")
    assert ids(ours, TEXTS) == [bpe.encode(text).ids for text in TEXTS]
    assert (ours.eod, ours.vocab_size) == (bpe.token_to_id(EOD), bpe.get_vocab_size())
    (files / "gpt2/tokenizer.json").write_text(bpe.to_str())
    assert ids(built("HFGPT2Tokenizer", files / "gpt2"), TEXTS) == ids(ours, TEXTS)


def test_hf_gpt2_adds_what_a_vocabulary_lacks(files):
    vocabulary = json.loads((files / "gpt2/vocab.json").read_text())
    del vocabulary["<|padding|>"]
    (files / "gpt2/vocab.json").write_text(json.dumps(vocabulary))
    assert built("HFGPT2Tokenizer", files / "gpt2").vocab_size == len(vocabulary) + 1


def test_gpt2_bpe(bpe, files):
    """As in GPT-2 itself: a special token's name in a text is text."""
    ours = built("GPT2BPETokenizer", files / "gpt2/vocab.json", files / "gpt2/merges.txt")
    plain = tokenizers.ByteLevelBPETokenizer(str(files / "gpt2/vocab.json"), str(files / "gpt2/merges.txt"))
    assert ids(ours, TEXTS) == [plain.encode(text).ids for text in TEXTS]
    (found,) = ids(ours, [f"a {EOD} b"])
    assert ours.eod == bpe.token_to_id(EOD) and ours.eod not in found


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("vocab.json", b"[1]", "is no JSON object of tokens"),
        ("vocab.json", b"{", "are JSON and text in UTF-8"),
        ("vocab.json", b'{"a": 0}', "is not two tokens that make one"),
        ("merges.txt", b"a b c\n", "--merge-file, line 1"),
    ],
)
def test_gpt2_bpe_of_broken_files(files, name, content, said):
    (files / "gpt2" / name).write_bytes(content)
    with pytest.raises(Refused, match=said):
        built("GPT2BPETokenizer", files / "gpt2/vocab.json", files / "gpt2/merges.txt")


def test_characters():
    ours = built("CharLevelTokenizer", None)
    assert ids(ours, ["aé", ""]) == [[97, 0xC3, 0xA9], []]
    assert (ours.eod, ours.vocab_size) == (0, 512)


PLUGIN = """
def tiny():
    ranks = {bytes([i]): i for i in range(256)}
    ranks[b"an"] = 256
    return {"name": "tiny", "pat_str": r"\\w+|\\W", "mergeable_ranks": ranks, "special_tokens": {"<|endoftext|>": 300}}


ENCODING_CONSTRUCTORS = {"tiny": tiny}
"""


def test_tiktoken_from_end_to_end(tmp_path):
    """Of an encoding that comes as tiktoken's plug-ins do; workers get it from us, not from the plug-in."""
    (tmp_path / "tiktoken_ext").mkdir()
    (tmp_path / "tiktoken_ext/tiny_plugin.py").write_text(PLUGIN)
    write_jsonl(tmp_path / "data.jsonl", ["banana", f"x {EOD}"])
    given = ["--input", tmp_path / "data.jsonl", "--output-prefix", tmp_path / "r", "--append-eod"]
    answer = run(*given, "--tokenizer-type=TiktokenTokenizer", "--vocab-file=tiny", PYTHONPATH=str(tmp_path))
    assert answer.returncode == 0, answer.stderr
    plain = [[98, 256, 256, 97], list(f"x {EOD}".encode())]
    ids = [[*document, 300] for document in plain]
    assert files_of(tmp_path / "r") == expected_files([[document] for document in ids])


@pytest.mark.parametrize(
    ("size", "impl", "dtype"), [(65_499, "mmap", "uint16"), (65_500, "mmap", "int32"), (9, "lazy", "int32")]
)
def test_the_type_of_tokens(size, impl, dtype):
    assert tokenization.token_type(size, impl) == dtype


def test_a_large_vocabulary_is_written_in_four_bytes(bpe, tmp_path):
    large = tokenizers.Tokenizer.from_str(bpe.to_str())
    large.add_tokens([f"word{number}" for number in range(65_500)])
    large.save(str(tmp_path / "tok.json"))
    found = ["word65000 and more", "word1"]
    write_jsonl(tmp_path / "data.jsonl", found)
    given = ["--input", tmp_path / "data.jsonl", "--output-prefix", tmp_path / "r", "--vocab", tmp_path / "tok.json"]
    answer = run(*given, "--tokenizer-type=HFTokenizer")
    assert answer.returncode == 0, answer.stderr
    assert files_of(tmp_path / "r") == expected_files([[large.encode(text).ids] for text in found], "i")


def test_ftfy(bpe, tmp_path):
    bpe.save(str(tmp_path / "tok.json"))
    write_jsonl(tmp_path / "data.jsonl", ["l'humanitÃ©"])
    given = ["--input", tmp_path / "data.jsonl", "--output-prefix", tmp_path / "r", "--vocab", tmp_path / "tok.json"]
    answer = run(*given, "--tokenizer-type=HFTokenizer", "--ftfy")
    assert answer.returncode == 0, answer.stderr
    assert files_of(tmp_path / "r") == expected_files([[bpe.encode("l'humanité").ids]])


def a_token(model):
    model["model"]["vocab"]["a"] = 70_000


def the_end_of_documents(model):
    model["model"]["vocab"][EOD] = model["added_tokens"][0]["id"] = 70_001


@pytest.mark.parametrize("moved, said", [(a_token, "a token of 70000"), (the_end_of_documents, "a token of 70001")])
def test_ids_beyond_the_type_are_refused(bpe, tmp_path, moved, said):
    """Of a vocabulary with gaps."""
    model = json.loads(bpe.to_str())
    moved(model)
    (tmp_path / "tok.json").write_text(json.dumps(model))
    write_jsonl(tmp_path / "data.jsonl", ["a"])
    places = ("--input", tmp_path / "data.jsonl", "--output-prefix", tmp_path / "r", "--vocab", tmp_path / "tok.json")
    answer = run(*places, "--tokenizer-type=HFTokenizer", "--append-eod")
    assert answer.returncode == 1
    assert f"gave {said}" in answer.stderr, answer.stderr
    assert "Traceback" not in answer.stderr


def test_fingerprints_tell_tokenizers_apart(files):
    one = tokenization.read_recipe("HFTokenizer", str(files / "tokenizer.json"), None)
    again = tokenization.read_recipe("HFTokenizer", str(files / "tokenizer.json"), None)
    other = tokenization.Recipe("HFGPT2Tokenizer", one.files)
    changed = tokenization.Recipe("HFTokenizer", (("tokenizer.json", one.files[0][1] + b" "),))
    assert one.fingerprint == again.fingerprint
    assert len({one.fingerprint, other.fingerprint, changed.fingerprint}) == 3
