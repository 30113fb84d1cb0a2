#!/usr/bin/env python3
"""A small DDP training on gloo, like any user's, that tells the benchmark about its phases by datagrams.

BENCH_SOCKET: abstract Unix socket of the benchmark; BENCH_STOP: a file whose appearance ends all ranks after an agreed
step; BENCH_STEP_MS (20). Events: main (the first line ran), imported, group, model, step (the first three, then each
25th), done; each with the monotonic time, pid, rank, life.
"""

import os
import select
import time

from tell import tell

BEGAN = time.monotonic()

import torch  # noqa: E402 - its cost is one of the phases
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

tell("main", BEGAN)  # not before: a call that is not known keeps what comes behind from being imported ahead
tell("imported")


def step(model, optimizer, data, labels):
    optimizer.zero_grad(set_to_none=True)
    nn.functional.cross_entropy(model(data), labels).backward()
    optimizer.step()


def main():
    torch.set_num_threads(1)
    pause_s = float(os.environ.get("BENCH_STEP_MS", "20")) / 1000
    dist.init_process_group("gloo")
    tell("group")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data, labels = torch.randn(32, 64), torch.randint(0, 10, (32,))
    tell("model")
    stop, number = torch.zeros(1), 0
    while not stop.item():
        began = time.monotonic()
        step(model, optimizer, data, labels)
        stop[0] = os.path.exists(os.environ["BENCH_STOP"])
        dist.all_reduce(stop)
        number += 1
        if number <= 3 or number % 25 == 0:
            tell("step", n=number)
        select.select([], [], [], max(0.0, pause_s - (time.monotonic() - began)))  # as long as a larger model takes
    dist.destroy_process_group()
    tell("done")


if __name__ == "__main__":
    main()
