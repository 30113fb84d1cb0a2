#!/usr/bin/env python3
"""A slot of 1 GiB from shared memory to disk, synced: Phalanx beside the same disk written raw (O_DIRECT, the same
blocks and depth, nothing else), dd and torch.save, in turn. Files that are written over and new ones are told apart: a
disk takes the former faster.

    python bench/checkpoint_disk.py [--dir FOLDER_ON_THE_DISK] [--rounds 5] [--json out.json]
"""

import argparse
import contextlib
import json
import mmap
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import torch
from support.arguments import count
from support.disk import BLOCK, write_raw
from support.results import Results, finish

ROOT = Path(__file__).resolve().parent.parent
GIB = 1 << 30


class Bench:
    def __init__(self, folder, memory, program):
        self.folder, self.slot, self.program = folder, memory / "slot", program
        piece = os.urandom(64 << 20)
        with open(self.slot, "wb") as slot:
            for _ in range(GIB // len(piece)):
                slot.write(piece)
        self.step = 0
        floats = BLOCK  # of 4 bytes: 16 MiB a tensor
        self.state = {str(i): torch.rand(floats) for i in range(GIB // (4 * floats))}

    def phalanx(self, name, keep, *flags):
        """Seconds that WriteShard took. With `keep` there is a recycled file from the third step on."""
        directory = self.folder / name
        directory.mkdir(exist_ok=True)
        self.step += 1
        keeping = [f"--keep-last={keep}"] if keep else []
        command = [self.program, f"--dir={directory}", f"--step={self.step}", f"--slot={self.slot}", *keeping, *flags]
        out = subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout
        if not keep:
            shutil.rmtree(directory)
        return json.loads(out)["write_ns"] / 1e9

    def raw(self, name, again):
        with open(self.slot, "rb") as slot, contextlib.ExitStack() as stack:
            view = memoryview(stack.enter_context(mmap.mmap(slot.fileno(), GIB, prot=mmap.PROT_READ)))
            took = write_raw(self.folder / name, view, again)
            view.release()
        return took

    def dd(self):
        """Its own blocks of zeros, over the same file each time."""
        command = ["dd", "if=/dev/zero", f"of={self.folder / 'dd'}", "bs=4M", f"count={GIB // BLOCK}"]
        began = time.monotonic()
        subprocess.run([*command, "oflag=direct", "conv=notrunc,fsync"], check=True, capture_output=True)
        return time.monotonic() - began

    def torch_save(self):
        path = self.folder / "torch.pt"
        began = time.monotonic()
        with open(path, "wb") as file:
            torch.save(self.state, file)
            file.flush()
            os.fsync(file.fileno())
        took = time.monotonic() - began
        path.unlink()
        return took


def collect(bench, rounds):
    ways = {
        ("over an old file", "phalanx"): lambda: bench.phalanx("run", 1),
        ("over an old file", "phalanx, threads"): lambda: bench.phalanx("threads", 1, "--no-ring"),
        ("over an old file", "raw O_DIRECT, 8 under way"): lambda: bench.raw("raw", again=True),
        ("over an old file", "dd oflag=direct, zeros"): bench.dd,
        ("a new file", "phalanx"): lambda: bench.phalanx("new", 0),
        ("a new file", "raw O_DIRECT, 8 under way"): lambda: bench.raw("raw-new", again=False),
        ("a new file", "torch.save + fsync"): bench.torch_save,
    }
    for _ in range(2):  # from here on there is a file to be written over
        bench.phalanx("run", 1)
        bench.phalanx("threads", 1, "--no-ring")
    bench.raw("raw", again=True)
    bench.dd()
    results = Results("s")
    for round_number in range(rounds):
        order = list(ways) if round_number % 2 == 0 else list(reversed(ways))
        for what, who in order:
            results.add(f"1 GiB to disk, {what}", who, ways[what, who]())
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, default=ROOT / "build", help="a folder on the disk to measure")
    parser.add_argument("--bin", type=Path, default=ROOT / "build/release/bin", help="folder of our commands")
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--json", type=Path, help="write the numbers here")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="checkpoint-disk-", dir=args.dir)))
        memory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="phalanx-bench-", dir="/dev/shm")))
        results = collect(Bench(folder, memory, args.bin / "phalanx-checkpoint-persist"), args.rounds)
    finish(args.json, "checkpoint_disk", results)


if __name__ == "__main__":
    main()
