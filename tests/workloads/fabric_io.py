"""Fabric with our CheckpointIO: saves one path again and again, and loads it at once on all ranks."""

import os
import sys

import torch
from lightning.fabric import Fabric
from phalanx.checkpoint.adapters.lightning_io import FlashCheckpointIO
from report import report

path = os.path.join(sys.argv[1], "newest.ckpt")
fabric = Fabric(
    accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy="ddp", plugins=[FlashCheckpointIO()]
)
fabric.launch()
model = torch.nn.Linear(1024, 1024)
model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters()))
for step in range(1, 6):
    fabric.backward(model(torch.ones(1, 1024)).sum())
    optimizer.step()
    fabric.save(path, {"model": model, "optimizer": optimizer, "step": step})
    report("loaded", n=step, step=fabric.load(path)["step"])
