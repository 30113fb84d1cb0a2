"""Saves without phalanx-run. Does in each life what it is told: "load", "disk:STEP" (a save, and nobody waits),
"save:STEP" to memory, "wait" for the last save, "refuse" a state that one rank cannot save, "late:STEP" and
"forget:STEP" a save to which the last rank does not come, "kill_host" of that one, "die". It prints what came of it, a
JSON object a line."""

import argparse
import json
import os
import signal
import sys

import torch
import torch.distributed as dist
from phalanx.checkpoint import CannotSave, Checkpointer, Storage, dcp, ddp
from phalanx.checkpoint.ranks import together

KINDS = {"full": Checkpointer, "ddp": ddp.Checkpointer, "dcp": dcp.Checkpointer}

parser = argparse.ArgumentParser()
parser.add_argument("kinds", help="full, ddp, dcp, or several with commas between: each in a folder of its name")
parser.add_argument("directory")
parser.add_argument("lives", nargs="+")
parser.add_argument("--keep-last", type=int)
parser.add_argument("--meet-s", type=float, default=together.MEET_S)
parser.add_argument("--fails-at-the-end", action="store_true")
options = parser.parse_args()


class Life:
    def __init__(self, kind):
        self.kind = kind
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.checkpointer = KINDS[kind](os.path.join(options.directory, kind), keep_last=options.keep_last)
        self.weight = self.make_weight()
        self.state = {"weight": self.weight, "rng": True}
        self.handle = None

    def make_weight(self):
        if self.kind != "dcp":
            return torch.zeros(1 << 16)
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        return distribute_tensor(torch.zeros(1 << 16), init_device_mesh("cpu", (self.world,)), [Shard(0)])

    def say(self, event, **fields):
        sys.stdout.write(json.dumps({"ev": event, "rank": self.rank, "kind": self.kind, **fields}) + "\n")
        sys.stdout.flush()

    def local(self):
        return self.weight.to_local() if self.kind == "dcp" else self.weight

    def load(self, _):
        if self.kind == "dcp":
            step = self.checkpointer.load(self.state)
        else:
            loaded, step = self.checkpointer.load()
            if loaded is not None:
                self.weight.copy_(loaded["weight"])
        values = self.local().unique().tolist()
        self.say("loaded", step=step, values=values, source=self.checkpointer.source)

    def value_of(self, step):
        return step + (0.5 * self.rank if self.kind == "full" else 0)

    def disk(self, step):
        self.local().fill_(self.value_of(int(step)))
        self.handle = self.checkpointer.save(int(step), self.state, storage=Storage.DISK)

    def save(self, step):
        self.handle = self.checkpointer.save(int(step), self.state)

    def wait(self, _):
        stored = self.handle.wait_stored()
        committed = self.handle.wait_committed()
        self.say("waited", step=self.handle.step, committed=committed, stored=stored, why=self.handle.why)

    def refuse(self, step):
        if self.rank == self.world - 1:
            self.state["bad"] = torch.zeros(4).to_sparse()
        try:
            self.handle = self.checkpointer.save(int(step), self.state, storage=Storage.DISK)
        except CannotSave as error:
            self.say("refused", why=str(error))
        self.state.pop("bad", None)

    def late(self, step):
        if self.rank != self.world - 1:
            self.disk(step)
            self.wait(None)

    def forget(self, step):
        """All but the last rank save that step."""
        if self.rank != self.world - 1:
            self.disk(step)

    def kill_host(self, _):
        if self.rank == self.world - 1:
            for child in open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read().split():
                if b"host" in open(f"/proc/{child}/cmdline", "rb").read().split(b"\0"):
                    os.kill(int(child), signal.SIGKILL)

    def die(self, _):
        if self.rank == self.world - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()


def main():
    torch.set_num_threads(1)
    together.MEET_S = options.meet_s
    dist.init_process_group("gloo")
    lives = [Life(kind) for kind in options.kinds.split(",")]
    for word in options.lives[int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))].split():
        what, _, step = word.partition(":")
        for life in lives:
            getattr(life, what)(step)
        dist.barrier()
    dist.destroy_process_group()
    if options.fails_at_the_end:
        raise RuntimeError("as asked for")


main()
