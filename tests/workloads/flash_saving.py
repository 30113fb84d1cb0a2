"""Saves folders checkpoint-N as ms-swift's --use_flash_ckpt does, by the names of DLRover (compat/dlrover)."""

import argparse
import os
import pathlib
import threading
import time

import pausing
import torch
from dlrover.trainer.torch.flash_checkpoint.engine import CheckpointEngine
from dlrover.trainer.torch.flash_checkpoint.hf_trainer import HfDdpCheckpointer
from phalanx.checkpoint import CannotSave
from report import report

report("main")
parser = argparse.ArgumentParser()
parser.add_argument("--dir", required=True)
parser.add_argument("--steps", type=int, default=3)
pausing.add_option(parser)
parser.add_argument("--width", type=int, default=300)
parser.add_argument("--refused-at", type=int, default=0, help="give what cannot be saved with this step")
parser.add_argument("--elsewhere", action="store_true", help="give a file that is in no checkpoint-N")
options = parser.parse_args()
RANK = int(os.environ["RANK"])


class Arguments:
    """As a trainer's: pickled as they are."""

    def __init__(self, step, path):
        self.step, self._path = step, path

    def __getstate__(self):
        """When the save is under way."""
        report("copied", n=self.step, linked=os.path.islink(self._path))
        return {"step": self.step}


def give(save, folder, step):
    """What a trainer writes by torch.save while it has our function in its place."""
    save({"numbers": torch.full((9,), step * 10 + RANK)}, os.path.join(folder, f"rng_state_{RANK}.pth"))
    if RANK == 0:
        save({"moments": torch.full((options.width, 1000), float(step))}, os.path.join(folder, "optimizer.pt"))
        save({"weights": torch.full((300,), float(step))}, os.path.join(folder, "global_step", "mp_rank_00.pt"))
        path = os.path.join(folder, "training_args.bin")
        save(Arguments(step, path), path)
    if step == options.refused_at:
        save({"lock": threading.Lock()}, os.path.join(folder, f"lock_{RANK}.pt"))
    if options.elsewhere:
        save({}, os.path.join(options.dir, "other", "x.pt"))


def newest():
    try:
        with open(os.path.join(options.dir, "dlrover_latest.txt")) as file:
            return int(file.read())
    except FileNotFoundError:
        return 0


def links_in(step):
    """[whether it leads to a file] of checkpoint-N."""
    paths = pathlib.Path(options.dir, f"checkpoint-{step}").rglob("*")
    return [path.exists() for path in paths if path.is_symlink()]


def save_refused(flash, step):
    try:
        flash.save_checkpoint_to_storage(step)
    except (CannotSave, TypeError) as error:
        torch.distributed.barrier()
        report("refused", n=step, why=str(error), links=links_in(step))


def main():
    torch.distributed.init_process_group("gloo")
    step = newest()
    while options.pause_at and os.environ["TORCHELASTIC_RESTART_COUNT"] != "0" and step < options.pause_at[0]:
        time.sleep(0.05)  # the agent still stores it
        step = newest()
    report("begins", n=step, whole=all(links_in(step)))
    flash = HfDdpCheckpointer(options.dir)
    assert isinstance(flash.async_save_engine, CheckpointEngine)
    while step < options.steps:
        step += 1
        folder = os.path.join(options.dir, f"checkpoint-{step}")
        os.makedirs(folder, exist_ok=True)
        give(flash.ckpt_agent.save, folder, step)
        if step == options.refused_at:
            save_refused(flash, step)
            continue
        made = flash.save_checkpoint_to_storage(step, *([True] if step == options.steps else []))
        report("saved", n=step, made=made, newest=newest())
        if pausing.is_due(step, options.pause_at):
            pausing.wait_to_be_killed()
        time.sleep(0.3)  # of a step
    flash.async_save_engine.wait_latest_checkpoint(60, step)
    report("waited", newest=newest())
    torch.distributed.destroy_process_group()


main()
