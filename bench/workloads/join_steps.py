"""A DDP training on gloo with a state of BENCH_MIB beside its model, saved to memory at each 50th step.

Where BENCH_SAVES is 0 it neither saves nor loads: what a join costs without checkpoints. Events: main, restored (step,
source), committed, step (n=1: the first of a life), done.
"""

import os

import torch
import torch.distributed as dist
from phalanx.checkpoint.ddp import Checkpointer
from tell import tell
from torch import nn
from torch.nn.parallel import DistributedDataParallel

tell("main")


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    saves = os.environ["BENCH_SAVES"] == "1"
    model = DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    weights = {"weights": torch.ones(int(os.environ["BENCH_MIB"]) << 18)}
    ckpt, step = Checkpointer(os.environ["BENCH_DIRECTORY"]), 0
    if saves:
        state, step = ckpt.load()
        if state is not None:
            weights["weights"] = state["weights"]
        tell("restored", step=step, source=ckpt.source)
    stop, count = torch.zeros(1), 0
    while stop.item() == 0:
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        step, count = step + 1, count + 1
        if saves and step % 50 == 0 and ckpt.save(step, {**weights, "step": step}).wait_committed():
            tell("committed", step=step)
        if count == 1:
            tell("step", n=1)
        stop.fill_(os.path.exists(os.environ["BENCH_STOP"]))
        dist.all_reduce(stop)
    tell("done")


if __name__ == "__main__":
    main()
