"""A small DDP training on gloo that saves by phalanx.checkpoint, and reports each step's loss to the last bit.

Python's, NumPy's and torch's random numbers, dropout and a shuffled loader's position all go into the loss, so that a
life which restores less than everything is seen at its first step.
"""

import argparse
import hashlib
import os
import random
import time

import faults
import numpy
import torch
import torch.distributed as dist
from leaving import leave_group
from phalanx.checkpoint import Checkpointer, DataPosition, Storage, ddp
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

report("main")  # behind the imports, as scripts have them: what stands before them keeps them from being made ahead
parser = argparse.ArgumentParser()
parser.add_argument("directory")
parser.add_argument("--steps", type=int, default=0, help="end after so many; 0: when the stop file appears")
parser.add_argument("--step-ms", type=float, default=0)
parser.add_argument("--width", type=int, default=16, help="of the model: 1024 makes a state of 12 MiB")
parser.add_argument("--ddp", action="store_true", help="save by phalanx.checkpoint.ddp")
parser.add_argument("--memory-every", type=int, default=3)
parser.add_argument("--disk-every", type=int, default=0)
parser.add_argument("--wait", choices=("no", "committed", "stored"), default="committed", help="at the next step")
parser.add_argument("--layout", default="torch")
parser.add_argument("--keep-last", type=int)
parser.add_argument("--keep-every", type=int)
parser.add_argument("--archive")
parser.add_argument("--archive-every", type=int)
parser.add_argument("--memory-budget", type=int)
parser.add_argument("--slots", type=int, default=3)
parser.add_argument("--at-breakpoint", action="store_true")
parser.add_argument("--seed", type=int, default=0, help="each life ends somewhere in or behind one of its saves")
parser.add_argument("--deaths", type=int, default=0, help="lives that end so")
faults.add_argument(parser)  # phases: forward-N, update-N, saved-N (behind the return of save)
options = parser.parse_args()
faults.use(options.fault)

LIFE = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
SAMPLES, BATCH = 44, 4
# The slowest of what a random death is to hit, a store of the state behind save(), takes about so long.
SAVING_US = 60_000


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return torch.linspace(0, index + 1, options.width)


class Training:
    """All that is saved, and what is drawn from it."""

    def __init__(self, rank):
        random.seed(rank)
        numpy.random.seed(rank)
        torch.manual_seed(0)  # of the model: the same on all ranks
        width = options.width
        layers = [nn.Linear(width, width), nn.ReLU(), nn.BatchNorm1d(width), nn.Dropout(0.3), nn.Linear(width, 4)]
        self.module = nn.Sequential(*layers)
        self.model = DistributedDataParallel(self.module)
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 10, 0.9)
        torch.manual_seed(1 + rank)
        self.position = DataPosition()
        loader = torch.utils.data.DataLoader(Samples(), BATCH, shuffle=True)
        self.loader, self.batches = loader, None

    def state(self, step):
        return {
            "model": self.module,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "position": self.position,
            "step": step,
            "rng": True,
        }

    def digest(self):
        """Of what is the same on all ranks: statistics of batches are each rank's own until the next step."""
        found = hashlib.sha256()
        states = self.optimizer.state_dict()["state"]
        moments = [value for _, state in sorted(states.items()) for _, value in sorted(state.items())]
        for value in (*self.module.parameters(), *moments):
            found.update(value.detach().numpy().tobytes())
        return found.hexdigest()[:16]

    def restore(self, state):
        self.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.position.load_state_dict(state["position"])

    def next_batch(self):
        while True:
            if self.batches is None:
                self.batches = self.position.batches(self.loader)
            batch = next(self.batches, None)
            if batch is not None:
                return batch * (1 + random.random()) + float(numpy.random.standard_normal())
            self.batches = None

    def loss_of(self, batch):
        self.optimizer.zero_grad()
        loss = self.model(batch).square().mean()
        loss.backward()
        return loss.item()

    def update(self):
        self.optimizer.step()
        self.scheduler.step()


class RandomDeath:
    """At a random time in or behind one of this life's saves, of one of the ranks."""

    def __init__(self, rank, world):
        self.saves_until = self.delay_us = None
        if options.deaths > LIFE:
            choose = random.Random(options.seed * 1_000_003 + LIFE)
            if choose.randrange(world) == rank:
                self.saves_until, self.delay_us = choose.randint(1, 4), int(SAVING_US * choose.random() ** 2)

    def save_begins(self):
        if self.saves_until is None:
            return
        self.saves_until -= 1
        if self.saves_until == 0:
            faults.die_in(self.delay_us)


class DdpCheckpointer(ddp.Checkpointer):
    """Passes by "shared-STEP" between the two images of local rank 0, when all others have sealed theirs."""

    def _described(self, state):
        if faults.planned_for_anybody(f"shared-{state['step']}"):
            dist.barrier()
            faults.pass_by(f"shared-{state['step']}")
        return super()._described(state)


class Saves:
    """Which steps are saved, and what becomes of them."""

    def __init__(self, checkpointer, death):
        self.checkpointer, self.death = checkpointer, death
        self.handle = None

    def settle(self):
        """Hears of the last save. What is reported here has been promised."""
        handle, self.handle = self.handle, None
        if handle is None or options.wait == "no":
            return
        if handle.wait_committed():
            report("committed", n=handle.step, why=handle.why)
        else:
            report("uncommitted", n=handle.step, why=handle.why)
        if options.wait == "stored" and handle.storage is Storage.DISK:
            report("stored" if handle.wait_stored() else "unstored", n=handle.step, why=handle.why)

    def after(self, step, training):
        to_disk = options.disk_every and step % options.disk_every == 0
        if not to_disk and (not options.memory_every or step % options.memory_every):
            return
        self.death.save_begins()
        report("saving", n=step)
        self.handle = self.checkpointer.save(
            step, training.state(step), storage=Storage.DISK if to_disk else Storage.MEMORY
        )
        report("saved", n=step)
        if options.ddp and dist.get_rank() != 0 and faults.planned_for_anybody(f"shared-{step}"):
            assert self.handle.wait_staged()
            dist.barrier()
        faults.pass_by(f"saved-{step}")


def make_checkpointer():
    return (DdpCheckpointer if options.ddp else Checkpointer)(
        options.directory,
        keep_last=options.keep_last,
        keep_every=options.keep_every,
        archive=options.archive,
        archive_every=options.archive_every,
        memory_budget=options.memory_budget,
        slots=options.slots,
        save_at_breakpoint=options.at_breakpoint,
        layout=options.layout,
    )


def train(training, saves, step):
    stop = torch.zeros(1)
    while options.steps == 0 or step < options.steps:
        step += 1
        batch = training.next_batch()
        loss = training.loss_of(batch)
        faults.pass_by(f"forward-{step}")
        saves.settle()
        training.update()
        faults.pass_by(f"update-{step}")
        report("step", n=step, loss=loss.hex())
        saves.after(step, training)
        stop.fill_(os.path.exists(os.environ["PHALANX_TEST_STOP"]))
        dist.all_reduce(stop)
        if stop.item() > 0:
            break
        time.sleep(options.step_ms / 1000)
    saves.settle()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    training = Training(dist.get_rank())
    checkpointer = make_checkpointer()
    state, step = checkpointer.load()
    if state is not None:
        assert state["step"] == step, f"the state of step {state['step']} came as that of step {step}"
        training.restore(state)
    report("restored", n=step, source=checkpointer.source, why=checkpointer.why, state=training.digest())
    del state
    train(training, Saves(checkpointer, RandomDeath(dist.get_rank(), dist.get_world_size())), step)
    checkpointer.close()  # what it does at exit does not run behind leave_group()
    del training  # the group that it uses goes
    leave_group()
    report("done")


if __name__ == "__main__":
    main()
