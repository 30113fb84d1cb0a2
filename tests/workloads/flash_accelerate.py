"""A loop with accelerate, dropout and a schedule, saved for by phalanx.checkpoint.adapters.accelerate. Tells the loss
of each step, and what the weights are at the end."""

import argparse
import os
import signal

import torch
from accelerate import Accelerator
from flash_files import digest_of
from phalanx.checkpoint import Storage
from phalanx.checkpoint.adapters.accelerate import FlashCheckpoint
from report import report

parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--die-at", type=int, default=-1, help="in the first life, rank 1 behind that step")
parser.add_argument("--stock-load", help="a folder that accelerator.load_state reads, and nothing of ours")
options = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(1)
report("main")
accelerator = Accelerator(cpu=True)
model = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=30)
model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)


def digest():
    return digest_of(accelerator.unwrap_model(model).state_dict())


if options.stock_load:
    accelerator.load_state(options.stock_load)
    report("loaded", weights=digest())
    raise SystemExit
flash = FlashCheckpoint(accelerator, options.folder, total_limit=2)
done = flash.load_state()
report("begin", n=done, source=flash.source)
first_life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
for step in range(done, options.steps):
    if first_life and accelerator.process_index == 1 and step == options.die_at:
        os.kill(os.getpid(), signal.SIGKILL)
    loss = model(torch.randn(4, 4)).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    report("loss", n=step, loss=loss.item())
    flash.save_state(step + 1, storage=Storage.DISK if (step + 1) % 4 == 0 else Storage.MEMORY)
flash.close()
report("done", weights=digest())
