"""Corpora, tokenizers and runs for the tests of data preparation, and what they should come to, found the plain way."""

import array
import contextlib
import json
import os
import random
import struct
import subprocess
import sys
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

BIN = Path(sys.executable).parent
EOD = "<|endoftext|>"
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def texts(count, seed=1, words=40):
    """Documents of made-up words; some empty, some beyond ASCII, some with a special token's name in them."""
    rng = random.Random(seed)
    vocabulary = ["".join(rng.choices(LETTERS, k=rng.randint(1, 9))) for _ in range(2000)]
    made = []
    for number in range(count):
        text = " ".join(rng.choices(vocabulary, k=rng.randint(0, 2 * words)))
        if number % 11 == 0:
            text += " Größe 漢字 😀\n\ttab  and   spaces "
        if number % 37 == 0:
            text = ""
        if number % 53 == 1:
            text += f" {EOD} in the midst"
        made.append(text)
    return made


def write_jsonl(path, documents, key="text"):
    with open(path, "w", encoding="utf-8") as file:
        for number, text in enumerate(documents):
            file.write(json.dumps({"id": number, key: text}, ensure_ascii=number % 2 == 0) + "\n")
    return path


def train_bpe(vocab_size=600):
    """A byte-level BPE in the manner of GPT-NeoX's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOD, "<|padding|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(300, seed=5), trainer)
    return tokenizer


def expected_files(documents, typecode="H"):
    """(.bin, .idx) of documents that are lists of sequences of ids, as Megatron's builder writes them."""
    code = {"H": 8, "i": 4}[typecode]
    lengths, boundaries, tokens = [], [0], bytearray()
    for sequences in documents:
        for ids in sequences:
            lengths.append(len(ids))
            tokens += array.array(typecode, ids).tobytes()
        boundaries.append(len(lengths))
    width, at, pointers = array.array(typecode).itemsize, 0, []
    for length in lengths:
        pointers.append(at)
        at += length * width
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(lengths), len(boundaries))
    index += array.array("i", lengths).tobytes() + array.array("q", pointers).tobytes()
    return bytes(tokens), index + array.array("q", boundaries).tobytes()


def tokenized(tokenizer, documents, eod=True):
    """One by one, one sequence a document; none where there are no tokens."""
    end = [tokenizer.token_to_id(EOD)] if eod else []
    encoded = (tokenizer.encode(text).ids for text in documents)
    return [[ids + end] if ids else [] for ids in encoded]


def files_of(prefix, key="text"):
    return tuple(Path(f"{prefix}_{key}_document.{end}").read_bytes() for end in ("bin", "idx"))


def command(*arguments):
    return [str(BIN / "phalanx-preprocess"), *map(str, arguments)]


def environment(**more):
    """With the environment's own commands first, as in a shell where it is active. A JVM that lives for seconds is not
    to compile for hours, nor to collect with threads for each processor."""
    java = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    return dict(os.environ, PATH=f"{BIN}{os.pathsep}{os.environ['PATH']}", **{"JAVA_TOOL_OPTIONS": java, **more})


def run(*arguments, engine="threads", timeout=100, **more):
    """The finished process; what it says is text."""
    return subprocess.run(
        command(*arguments, f"--engine={engine}"),
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment(**more),
    )


@contextlib.contextmanager
def started(*arguments):
    """In a session of its own; whatever of it is left at the end is killed."""
    process = subprocess.Popen(command(*arguments), stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


class SparkRuns:
    """Runs on Spark in one JVM for all: preprocess_server.py. Two tasks work at once, on however many processors."""

    def __init__(self, folder):
        self.log = folder / "log"
        self.start()

    def start(self):
        program = Path(__file__).with_name("preprocess_server.py")
        with open(self.log, "ab") as said:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig=KILL", sys.executable, program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                bufsize=1,
                env=environment(PYSPARK_SUBMIT_ARGS="--master local[2] pyspark-shell"),
            )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.end()

    def end(self):
        self.process.kill()  # its JVM ends with the pipe that it holds
        self.process.communicate()

    def ask(self, **request):
        """(the answer, what was said meanwhile)"""
        before = self.log.stat().st_size
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            answer = self.process.stdout.readline()
        except BaseException:  # of pytest's time limit, too: the answer would come to the next test
            self.end()
            self.start()
            raise
        said = self.log.read_bytes()[before:].decode()
        assert answer, f"the server of runs has ended: {said}"
        return json.loads(answer), said

    def run(self, *arguments):
        """As `run` has it, which starts a process and a JVM for each."""
        answer, said = self.ask(run=[*map(str, arguments), "--engine=spark"])
        return subprocess.CompletedProcess(arguments, answer["returncode"], stderr=said)
