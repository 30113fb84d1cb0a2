#!/usr/bin/env python3
"""What counting steps on the rank board adds to optimizer.step(): one optimizer with and without the hook, in turn.

python bench/hook.py [--rounds 20] [--steps 20000] [--json F]
"""

import argparse
import os
import struct
import sys
import tempfile
import time

import torch
from support.arguments import count
from support.peers import ROOT
from support.results import Results, finish

sys.path.insert(0, str(ROOT / "python"))

from phalanx._bootstrap import board, hooks


def make_board(folder):
    """A board with one slot, as docs/formats/rank-board.md has it."""
    path = os.path.join(folder, "board")
    with open(path, "wb") as file:
        file.write(struct.pack("<8sIIIIQ32x", board.MAGIC, board.VERSION, board.SLOT_BYTES, 1, 0, 1))
        file.write(bytes(board.SLOT_BYTES))
    return path


def microseconds_a_step(optimizer, steps):
    began = time.perf_counter_ns()
    for _ in range(steps):
        optimizer.step()
    return (time.perf_counter_ns() - began) / steps / 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=count, default=20)
    parser.add_argument("--steps", type=count, default=20_000)
    parser.add_argument("--json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.01)  # without gradients: a step that does next to nothing
    results = Results("us")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        board.attach(make_board(folder), 0)
        hooks.install(lambda step: None)
        table = sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks
        hooked = dict(table)
        for _ in range(options.rounds):
            table.clear()
            without = microseconds_a_step(optimizer, options.steps)
            table.update(hooked)
            taken = microseconds_a_step(optimizer, options.steps)
            results.add("optimizer.step() without the hook", "torch", without)
            results.add("optimizer.step() with the hook", "phalanx", taken)
            results.add("the hook", "phalanx", taken - without)
        assert board.words[board.OPTIMIZER_STEPS] == options.rounds * options.steps
    finish(options.json, "hook", results)


if __name__ == "__main__":
    main()
