#!/usr/bin/env python3
"""A corpus of made-up words to .bin and .idx: phalanx-preprocess with both engines, pools with one writer as those of
Megatron-LM (transformers, its own builder) and gpt-neox (tokenizers), and the tokenizers library alone; in turn, on the
same files, whose results must be the same bytes.

    python bench/data_prep.py [--megabytes 30] [--rounds 3] [--json out.json]
"""

import argparse
import itertools
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from support.arguments import count
from support.peers import transformers_environment
from support.results import Results, finish

HERE = Path(__file__).resolve().parent
CORES = len(os.sched_getaffinity(0))
VOCABULARY = 32_000


def write_corpus(path, megabytes, seed=7):
    """Words whose frequencies fall as those of a language do, 2.6 kB a document."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 10))) for _ in range(60_000)]
    weights = list(itertools.accumulate(1 / (rank + 1) for rank in range(len(words))))
    with open(path, "w") as file:
        while file.tell() < megabytes * 1e6:
            text = " ".join(rng.choices(words, cum_weights=weights, k=rng.randint(50, 750)))
            file.write(json.dumps({"text": text}) + "\n")


def train(corpus, path):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=["<|endoftext|>"], show_progress=False)
    with open(corpus) as lines:
        texts = [json.loads(line)["text"] for line in itertools.islice(lines, 3000)]
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))


class Measured:
    """A finished command: its seconds, those of CPUs (of all its processes), what it said."""

    def __init__(self, command):
        began = time.monotonic()
        environment = dict(os.environ, PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True, env=environment)
        self.said = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        self.seconds, self.cpu_s = time.monotonic() - began, usage.ru_utime + usage.ru_stime
        if status:
            raise SystemExit(f"{' '.join(map(str, command))}: {self.said}")

    def figure(self, pattern):
        return float(re.search(pattern, self.said)[1])


class Bench:
    def __init__(self, folder):
        self.folder, self.results = folder, {}

    def phalanx(self, engine, corpus="corpus.jsonl"):
        prefix = self.folder / engine
        program = Path(sys.executable).parent / "phalanx-preprocess"
        command = [program, "--input", self.folder / corpus, "--output-prefix", prefix, "--engine", engine]
        command += ["--vocab", self.folder / "tok.json", "--tokenizer-type=HFTokenizer", "--append-eod"]
        measured = Measured([*command, "--workers", CORES])
        self.keep(corpus, f"{prefix}_text_document")
        return measured

    def one_writer(self):
        prefix = self.folder / "one"
        script = HERE / "workloads/one_writer.py"
        measured = Measured(
            [sys.executable, script, self.folder / "corpus.jsonl", self.folder / "tok.json", prefix, CORES]
        )
        self.keep("corpus.jsonl", prefix)
        return measured

    def megatron(self):
        prefix = self.folder / "megatron"
        python, script = transformers_environment() / "bin/python", HERE / "workloads/megatron_pipeline.py"
        measured = Measured([python, script, self.folder / "corpus.jsonl", self.folder / "tok.json", prefix, CORES])
        self.keep("corpus.jsonl", prefix)
        return measured

    def keep(self, corpus, prefix):
        """All ways must come to the same bytes."""
        content = [Path(f"{prefix}.{end}").read_bytes() for end in ("bin", "idx")]
        if self.results.setdefault(corpus, content) != content:
            raise SystemExit(f"{prefix}: other bytes than those of the first way")

    def library(self):
        """(seconds, those of a CPU)"""
        script, corpus, tokenizer = (
            HERE / "workloads/batch_rate.py",
            self.folder / "corpus.jsonl",
            self.folder / "tok.json",
        )
        answer = subprocess.run([sys.executable, script, corpus, tokenizer], check=True, capture_output=True, text=True)
        return tuple(map(float, answer.stdout.split()))


AT_WORK = r"tokenized in .*?\(([\d.]+) MB/s"
START_UP = r"start-up ([\d.]+) s"
LARGEST = r"largest process ([\d,]+) MiB"
ONE_WRITER = f"a pool of {CORES} as gpt-neox's (tokenizers)"
MEGATRON = f"a pool of {CORES} as Megatron-LM's (transformers)"
NOTE = (
    "On a machine that is busy with other things one thread gets more of a CPU than each of two: compare CPU seconds."
)
LIBRARY = f"the library alone, one thread, x {CORES} cores"


def collect(bench, megabytes, rounds):
    rate, cpu, start, memory = Results("MB/s"), Results("CPU s"), Results("s"), Results("MiB")
    for _ in range(rounds):
        megatron, one, threads = bench.megatron(), bench.one_writer(), bench.phalanx("threads")
        library_s, library_cpu_s = bench.library()
        spark, more = bench.phalanx("spark"), bench.phalanx("threads", "four.jsonl")
        rate.add("whole command, from start to end", ONE_WRITER, megabytes / one.seconds)
        rate.add("whole command, from start to end", MEGATRON, megabytes / megatron.seconds)
        rate.add("whole command, from start to end", "phalanx, threads", megabytes / threads.seconds)
        rate.add("at work", MEGATRON, megabytes / megatron.figure(r"at work ([\d.]+) s"))
        rate.add("at work", ONE_WRITER, megabytes / one.figure(r"at work ([\d.]+) s"))
        rate.add("at work", "phalanx, threads", threads.figure(AT_WORK))
        rate.add("at work", LIBRARY, megabytes / library_s * CORES)
        rate.add("at work", "Spark local[*] with phalanx", spark.figure(AT_WORK))
        cpu.add(f"{megabytes} MB, all processes", ONE_WRITER, one.cpu_s)
        cpu.add(f"{megabytes} MB, all processes", MEGATRON, megatron.cpu_s)
        cpu.add(f"{megabytes} MB, all processes", "phalanx, threads", threads.cpu_s)
        cpu.add(f"{megabytes} MB, all processes", "the library alone", library_cpu_s)
        start.add("start-up", MEGATRON, megatron.figure(START_UP))
        start.add("start-up", "phalanx, threads", threads.figure(START_UP))
        start.add("start-up", "Spark local[*] with phalanx", spark.figure(START_UP))
        memory.add(f"largest process, {megabytes} MB of input", "phalanx, threads", threads.figure(LARGEST))
        memory.add(f"largest process, {megabytes} MB of input", ONE_WRITER, one.figure(LARGEST))
        memory.add(f"largest process, {4 * megabytes} MB of input", "phalanx, threads", more.figure(LARGEST))
    return rate, cpu, start, memory


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=count, default=30)
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--json", type=Path, help="write the numbers here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="data-prep-", dir=HERE.parent / "build") as name:
        folder = Path(name)
        write_corpus(folder / "corpus.jsonl", args.megabytes)
        with open(folder / "four.jsonl", "wb") as four:
            for _ in range(4):
                four.write((folder / "corpus.jsonl").read_bytes())
        train(folder / "corpus.jsonl", folder / "tok.json")
        results = collect(Bench(folder), args.megabytes, args.rounds)
    finish(args.json, "data_prep", *results, notes=[NOTE])


if __name__ == "__main__":
    main()
