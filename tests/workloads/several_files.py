"""Saves named files by phalanx.checkpoint.files: the model, which all ranks have, an optimizer of each rank, and a text
of rank 0's. Loads all files that there are, whosever they are."""

import argparse
import hashlib
import os

import pausing
import torch
from phalanx.checkpoint import Storage
from phalanx.checkpoint.files import Checkpointer
from report import report

report("main")
parser = argparse.ArgumentParser()
parser.add_argument("--dir", required=True)
parser.add_argument("--steps", type=int, default=6, help="0: until the stop file appears")
parser.add_argument("--disk-every", type=int, default=0)
pausing.add_option(parser)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--more", type=int, default=0, help="so many small files more of rank 1")
parser.add_argument("--idle", action="store_true", help="rank 1 saves no file")
parser.add_argument("--group", action="store_true", help="make a process group, as ranks without an agent must")
options = parser.parse_args()

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def digest(state):
    found = hashlib.sha256()
    for name, value in sorted(state.items()):
        found.update(
            name.encode() + (value.numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode())
        )
    return found.hexdigest()[:16]


def state_of(rank, step):
    """What the optimizer of that rank is at that step."""
    values = torch.arange(float(options.width * options.width)) + 1000 * rank + step
    return {"moments": values, "step": step, "note": "n" * step * 100}


def files_at(step):
    if options.idle and RANK == 1:
        return {}
    files = {"model.pt": {"weights": torch.full((options.width, 64), float(step)), "step": step}}
    files[f"optimizer_{RANK}.pt"] = state_of(RANK, step)
    if RANK == 1:
        files.update({f"more_{number}": b"%d" % number for number in range(options.more)})
    if RANK == 0:
        files["config.json"] = b'{"step": %d}' % step
    return files


def is_over(step):
    if options.steps:
        return step >= options.steps
    stop = torch.tensor(int(os.path.exists(os.environ["PHALANX_TEST_STOP"])))
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(stop)
    return stop.item() > 0


def run():
    ckpt = Checkpointer(options.dir)
    files, step = ckpt.load(default={})
    loaded = {name: digest(files[name]) for name in files if name.endswith(".pt")}
    right = {name: digest(state_of(int(name[10:-3]), step)) for name in loaded if name.startswith("optimizer")}
    config = files.read("config.json").decode() if files else ""
    right = {name: loaded[name] == value for name, value in right.items()}
    report("loaded", n=step, source=ckpt.source, names=sorted(files), right=right, config=config, why=ckpt.why)
    while not is_over(step):
        step += 1
        storage = Storage.DISK if options.disk_every and step % options.disk_every == 0 else Storage.MEMORY
        handle = ckpt.save(step, files_at(step), storage=storage)
        kept = handle.wait_stored() if storage is Storage.DISK else handle.wait_committed()
        report("saved", n=step, kept=kept, why=handle.why)
        if pausing.is_due(step, options.pause_at):
            pausing.wait_to_be_killed()
    ckpt.close()


torch.set_num_threads(1)
if WORLD > 1 or options.group:
    torch.distributed.init_process_group("gloo")
run()
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
report("done")
