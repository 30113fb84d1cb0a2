#!/usr/bin/env python3
"""Four datasets of 256 MiB to one, synced: `phalanx data merge` beside cp of the same files and megatron-core's own
merge, in turn; and the memory that a merge takes, of one dataset and of all.

    python bench/data_merge.py [--dir FOLDER_ON_THE_DISK] [--rounds 5] [--json out.json]
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy
from support.arguments import count
from support.results import Results, finish

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20
DATASETS, BYTES, SEQUENCE = 4, 256 * MIB, 600  # tokens of 2 bytes

# A process inherits its parent's peak of memory: the merge gets a small parent, which tells of it.
SMALL_PARENT = """
import os, sys
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(pid, 0)
assert status == 0
print(usage.ru_maxrss / 1024)
"""
NOTE = "A peak of memory below that of the small Python that starts the merge, some 10 MiB, does not show."

# Its import takes many seconds, which are none of the merge's: one process for all rounds.
MEGATRON = """
import os, sys, time, warnings
warnings.simplefilter("ignore")
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
out, *sources = sys.argv[1:]
print("ready", flush=True)
for _ in sys.stdin:
    began = time.monotonic()
    builder = IndexedDatasetBuilder(out + ".bin", dtype=IndexedDataset(sources[0]).index.dtype)
    for source in sources:
        builder.add_index(source)
    builder.finalize(out + ".idx")
    for suffix in (".bin", ".idx"):
        with open(out + suffix, "rb+") as file:
            os.fsync(file.fileno())
    print(time.monotonic() - began, flush=True)
    os.unlink(out + ".bin")
"""


def make_dataset(prefix, seed):
    """As Megatron would write it; documents of one sequence."""
    tokens = numpy.random.default_rng(seed).integers(50000, size=BYTES // 2, dtype=numpy.uint16)
    tokens.tofile(f"{prefix}.bin")
    lengths = numpy.full(tokens.size // SEQUENCE + 1, SEQUENCE, numpy.int32)
    lengths[-1] = tokens.size - (lengths.size - 1) * SEQUENCE
    ends = numpy.concatenate([[0], numpy.cumsum(lengths, dtype=numpy.int64)])
    with open(f"{prefix}.idx", "wb") as file:
        counts = lengths.size.to_bytes(8, "little") + (lengths.size + 1).to_bytes(8, "little")
        file.write(b"MMIDIDX\0\0" + (1).to_bytes(8, "little") + b"\x08" + counts)
        for table in (lengths, ends[:-1] * 2, numpy.arange(lengths.size + 1, dtype=numpy.int64)):
            table.tofile(file)


class Bench:
    def __init__(self, folder, program):
        self.folder, self.program = folder, program
        self.sources = [folder / f"source{i}" for i in range(DATASETS)]
        for i, prefix in enumerate(self.sources):
            make_dataset(prefix, i)
        os.sync()
        command = [sys.executable, "-c", MEGATRON, folder / "theirs", *self.sources]
        self.megatron_core = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.megatron_core.stdout.readline() == "ready\n"

    def phalanx(self):
        began = time.monotonic()
        subprocess.run(self.merge(self.sources), stdout=subprocess.DEVNULL, check=True)
        took_s = time.monotonic() - began
        self.clear()
        return took_s

    def memory_mib(self, sources):
        """The most that a merge took at a time."""
        command = [sys.executable, "-S", "-E", "-c", SMALL_PARENT, *self.merge(sources)]
        told = subprocess.run(command, capture_output=True, check=True, text=True).stdout
        self.clear()
        return float(told.splitlines()[-1])

    def merge(self, sources):
        return [self.program, "data", "merge", self.folder / "ours", *sources]

    def clear(self):
        for suffix in ("bin", "idx", "json"):
            os.unlink(self.folder / f"ours.{suffix}")

    def cp(self):
        target = self.folder / "copies"
        target.mkdir()
        files = [f"{prefix}.{suffix}" for prefix in self.sources for suffix in ("bin", "idx")]
        began = time.monotonic()
        subprocess.run(["cp", "--reflink=never", *files, target], check=True)
        subprocess.run(["sync", *target.iterdir()], check=True)
        took_s = time.monotonic() - began
        for file in target.iterdir():
            file.unlink()
        target.rmdir()
        return took_s

    def megatron(self):
        self.megatron_core.stdin.write("\n")
        self.megatron_core.stdin.flush()
        return float(self.megatron_core.stdout.readline())

    def close(self):
        self.megatron_core.stdin.close()
        self.megatron_core.wait()


def collect(bench, rounds):
    seconds, memory = Results("s"), Results("MiB")
    ways = {"phalanx": bench.phalanx, "cp and sync": bench.cp, "megatron-core, synced": bench.megatron}
    for way in ways.values():  # the first time may be another
        way()
    for round_number in range(rounds):
        for who in list(ways) if round_number % 2 == 0 else list(reversed(ways)):
            seconds.add("1 GiB of datasets", who, ways[who]())
    for what, sources in (("256 MiB", bench.sources[:1]), ("1 GiB", bench.sources)):
        for _ in range(3):
            memory.add(f"peak memory of a merge of {what}", "phalanx", bench.memory_mib(sources))
    return [seconds, memory]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, default=ROOT / "build", help="a folder on the disk to measure")
    parser.add_argument("--bin", type=Path, default=ROOT / "build/release/bin", help="folder of our commands")
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--json", type=Path, help="write the numbers here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="data-merge-", dir=args.dir) as folder:
        bench = Bench(Path(folder), args.bin / "phalanx")
        results = collect(bench, args.rounds)
        bench.close()
    finish(args.json, "data_merge", *results, notes=[NOTE])


if __name__ == "__main__":
    main()
