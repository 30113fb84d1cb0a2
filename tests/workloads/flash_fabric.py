"""A loop of Lightning Fabric's with dropout, saved for by phalanx.checkpoint.adapters.fabric, or by Fabric alone
(--stock). Tells the loss of each step, and what the weights are at the end."""

import argparse
import functools
import os
import signal

import torch
from flash_files import die_at_file, digest_of, files_now
from lightning.fabric import Fabric
from report import report
from torch.distributed.optim import ZeroRedundancyOptimizer

parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--save-steps", type=int, default=4, help="each of these by fabric.save(), all others to memory")
parser.add_argument("--name", default="step-{}.ckpt", help="of the files that are saved")
parser.add_argument("--stock", action="store_true")
parser.add_argument("--load", help="the file that fabric.load() reads at the beginning, before flash.load()")
parser.add_argument("--no-flash-load", action="store_true", help="fabric.load() alone says what is gone on from")
parser.add_argument("--die-at", type=int, default=-1, help="in the first life, rank 1 behind that step")
parser.add_argument("--die-publishing", help="rank 0, in the first life, before a file of that name appears")
parser.add_argument("--also", action="store_true", help="what is no whole state, what is saved twice, and what is read")
parser.add_argument("--redundant", action="store_true", help="an optimizer that shards its state")
parser.add_argument("--just-ends", action="store_true", help="without close()")
options = parser.parse_args()
FIRST_LIFE = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"


torch.set_num_threads(1)
report("main")
fabric = Fabric(accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy="ddp")
fabric.launch()
fabric.seed_everything(3)
model = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 1))
kind = functools.partial(ZeroRedundancyOptimizer, optimizer_class=torch.optim.AdamW)
optimizer = (kind if options.redundant else torch.optim.AdamW)(model.parameters(), lr=0.01)
model, optimizer = fabric.setup(model, optimizer)
state = {"model": model, "optimizer": optimizer, "step": 0, "best": [1.5]}
flash = None
if not options.stock:
    from phalanx.checkpoint.adapters.fabric import FlashCheckpoint

    flash = FlashCheckpoint(fabric, options.folder)
    if FIRST_LIFE and options.die_publishing:
        die_at_file(options.die_publishing, options.folder)
if options.load and os.path.exists(options.load):
    fabric.load(options.load, state)
    report("loaded", n=state["step"], source=getattr(flash, "source", None))
if flash is not None and not options.no_flash_load:
    flash.load(state)
report("begin", n=state["step"], source=getattr(flash, "source", None), files=files_now(options.folder))


def save():
    path = os.path.join(options.folder, options.name.format(state["step"]))
    if state["step"] % options.save_steps == 0:
        fabric.save(path, state)
    if flash is not None:
        committed = flash.save(state).wait_committed()  # a step that is saved already is not saved again
        assert committed, flash.save(state).why


while state["step"] < options.steps:
    if FIRST_LIFE and fabric.global_rank == 1 and state["step"] == options.die_at:
        os.kill(os.getpid(), signal.SIGKILL)
    x = torch.rand(4, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    fabric.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    report("loss", n=state["step"], loss=loss.item())
    state["step"] += 1
    save()


def also():
    """What is not stored behind the training, and what is read from where it was saved a moment ago."""
    place = os.path.join(options.folder, "{}.ckpt").format
    fabric.save(place("weights"), {"model": model, "step": state["step"]})
    fabric.save(place("filtered"), state, filter={"model": lambda name, value: name.endswith("weight")})
    fabric.save(place("counted"), {**state, "step": "many"})
    state["best"] = [0.5]
    fabric.save(place("other"), state)  # another state of this step
    report("at-once", files=files_now(options.folder))
    optimizer.zero_grad()
    state["step"] += 1
    fabric.save(place("next"), state)
    fabric.save(place("again"), state)
    wanted = digest_of(model.state_dict())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    rest = fabric.load(place("next"), {"model": model, "optimizer": optimizer, "step": 0}, strict=False)
    report("read", is_same=digest_of(model.state_dict()) == wanted, rest=rest, source=flash.source)


if options.also:
    also()
if flash is not None and not options.just_ends:
    flash.close()
    report("closed", files=files_now(options.folder))
report("done", n=state["step"], weights=digest_of(model.state_dict()))
