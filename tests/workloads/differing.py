"""Saves four times a state in which, from the second on, one rank has another value than the others."""

import argparse
import importlib
import os

import torch
import torch.distributed as dist
from leaving import leave_group
from phalanx.checkpoint import PerRank
from report import report

parser = argparse.ArgumentParser()
parser.add_argument("directory")
parser.add_argument("kind", choices=["ddp", "dcp"])
options = parser.parse_args()
RANK = int(os.environ["RANK"])


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    checkpoint = importlib.import_module(f"phalanx.checkpoint.{options.kind}")
    with checkpoint.Checkpointer(options.directory) as checkpointer:
        for step in range(1, 5):
            best = 0.5 if step > 1 and RANK == 3 else 0.25
            state = {"weight": torch.full((64,), float(step)), "step": step, "best": best, "names": {"a": [1, None]}}
            state["seen"] = PerRank(RANK)  # which is not compared
            assert checkpointer.save(step, state).wait_committed()
            report("saved", n=step)
    dist.barrier()
    leave_group()


main()
