"""A DDP training on gloo with a state of BENCH_MIB beside its model, saved to memory at each 50th step.

Without "saves" in BENCH_DOES it does not save, without "loads" it begins at step 0: what a join costs without
checkpoints, and what it costs where they are lost. Events: main, group, saving and committed of each save (step),
restored (step, source), step (n=1: the first of a life), done.
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
    tell("group")
    does = os.environ["BENCH_DOES"].split()
    model = DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    weights = {"weights": torch.ones(int(os.environ["BENCH_MIB"]) << 18)}
    ckpt, step = Checkpointer(os.environ["BENCH_DIRECTORY"]), 0
    if "loads" in does:
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
        if "saves" in does and step % 50 == 0:
            tell("saving", step=step)
            if ckpt.save(step, {**weights, "step": step}).wait_committed():
                tell("committed", step=step)
        if count == 1:
            tell("step", n=1)
        stop.fill_(os.path.exists(os.environ["BENCH_STOP"]))
        dist.all_reduce(stop)
    tell("done")


if __name__ == "__main__":
    main()
