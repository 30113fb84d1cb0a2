#!/usr/bin/env python3
"""A small DDP training on gloo that saves each 10th step to memory and begins each life where the last save was.

BENCH_GOODPUT, JSON: mib of the state, step_ms, every (steps), directory; disk_every, optional: steps between saves that
go to disk as well. Events: main, restored (n, source, why), step
(the first three of a life, then each 25th; n is the step, first 1), done.
"""

import json
import os
import select
import time

from tell import tell

tell("main")

import phalanx  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from phalanx.checkpoint import Storage  # noqa: E402
from phalanx.checkpoint.ddp import Checkpointer  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

MIB = 1 << 20


class Model(nn.Module):
    """A few layers that are trained, and a table of the size that is asked for: the optimizer writes all of it."""

    def __init__(self, mib):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
        self.table = nn.Parameter(torch.zeros(max(1, mib * MIB // 12 // 64), 64))

    def forward(self, data):
        return self.layers(data + self.table[0])


def train(model, optimizer, checkpointer, done, settings):
    state = {"model": model.module, "optimizer": optimizer, "rng": True}
    data, labels = torch.randn(32, 64), torch.randint(0, 10, (32,))
    stop, steps_here = torch.zeros(1), 0
    while not stop.item():
        began = time.monotonic()
        nn.functional.cross_entropy(model(data), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        stop[0] = os.path.exists(os.environ["BENCH_STOP"])
        dist.all_reduce(stop)
        done, steps_here = done + 1, steps_here + 1
        phalanx.step(done)
        if steps_here <= 3 or steps_here % 25 == 0:
            tell("step", n=steps_here, at_step=done)
        if done % settings["every"] == 0:
            to_disk = "disk_every" in settings and done % settings["disk_every"] == 0
            checkpointer.save(done, state, storage=Storage.DISK if to_disk else Storage.MEMORY)
        left_s = settings["step_ms"] / 1000 - (time.monotonic() - began)
        select.select([], [], [], max(0.0, left_s))  # as long as a larger model takes
    return done


def main():
    settings = json.loads(os.environ["BENCH_GOODPUT"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(settings["mib"]))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    checkpointer = Checkpointer(settings["directory"])
    state, done = checkpointer.load()
    if state is not None:
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    tell("restored", n=done, source=checkpointer.source, why=checkpointer.why)
    phalanx.step(done)
    done = train(model, optimizer, checkpointer, done, settings)
    checkpointer.close()
    dist.destroy_process_group()
    tell("done", at_step=done)


if __name__ == "__main__":
    main()
