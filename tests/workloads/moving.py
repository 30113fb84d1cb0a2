"""Saves to memory what is each rank's own, in each step, until the stop file appears; tells on which node it was
restored."""

import argparse
import os

import torch
import torch.distributed as dist
from leaving import leave_group
from phalanx.checkpoint import Checkpointer, PerRank, ddp
from report import report

report("main")
parser = argparse.ArgumentParser()
parser.add_argument("directory")
parser.add_argument("kind", choices=("full", "ddp"))
options = parser.parse_args()


def state_of(rank, step):
    own = {"own": float(1000 * rank + step)}
    if options.kind == "ddp":
        return {"shared": torch.full((1 << 16,), float(step)), "own": PerRank(own["own"])}
    return {"shared": torch.full((1 << 16,), own["own"]), "own": own["own"]}


def is_over():
    stop = torch.tensor(int(os.path.exists(os.environ["PHALANX_TEST_STOP"])))
    dist.all_reduce(stop)
    return stop.item() > 0


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    checkpointer = (ddp.Checkpointer if options.kind == "ddp" else Checkpointer)(options.directory)
    state, step = checkpointer.load()
    if state is not None:
        own = state["own"].value if options.kind == "ddp" else state["own"]
        shared = [value.item() for value in torch.aminmax(state["shared"])]
        node = int(os.environ["GROUP_RANK"])
        report("restored", n=step, source=checkpointer.source, own=own, shared=shared, node=node, why=checkpointer.why)
    while not is_over():
        step += 1
        handle = checkpointer.save(step, state_of(rank, step))
        if handle.wait_committed():
            report("committed", n=step)
    leave_group()


main()
