#!/usr/bin/env python3
"""Saves a state over and over and tells each: BENCH_SAVES, JSON: mib, saves, disk_every, directory. Events: main, saved
(n, to_disk, why), done."""

import json
import os

import torch
from phalanx.checkpoint import Checkpointer, Storage
from tell import tell

MIB = 1 << 20
TENSORS = 30


def main():
    tell("main")
    settings = json.loads(os.environ["BENCH_SAVES"])
    torch.set_num_threads(1)
    model = torch.nn.ParameterList(torch.rand(settings["mib"] * MIB // 12 // TENSORS) for _ in range(TENSORS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    checkpointer = Checkpointer(settings["directory"], keep_last=2)
    for number in range(1, settings["saves"] + 1):
        optimizer.step()
        to_disk = number % settings["disk_every"] == 0
        to = Storage.DISK if to_disk else Storage.MEMORY
        handle = checkpointer.save(number, {"model": model, "optimizer": optimizer, "rng": True}, storage=to)
        done = handle.wait_stored() if to_disk else handle.wait_committed()
        tell("saved", n=number, to_disk=to_disk, done=done, why=handle.why)
    checkpointer.close()
    tell("done")


if __name__ == "__main__":
    main()
