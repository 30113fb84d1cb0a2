"""Not all ranks save: `who` says what rank 0 does alone ("makes" a Checkpointer, "saves", saves "later", when all have
saved before), or that the last rank's
state "cannot" be saved. Whoever has saved waits until all have."""

import argparse

import torch
import torch.distributed as dist
from leaving import leave_group
from phalanx.checkpoint import CannotSave, Checkpointer, ddp
from report import report

parser = argparse.ArgumentParser()
parser.add_argument("directory")
parser.add_argument("who", choices=("makes", "saves", "later", "cannot"))
parser.add_argument("kind", choices=("full", "ddp"))
options = parser.parse_args()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    is_first, is_last = dist.get_rank() == 0, dist.get_rank() == dist.get_world_size() - 1
    state = {"weight": torch.zeros(1 << 16), "rng": True}
    if options.who == "cannot" and is_last:
        state["bad"] = torch.zeros(4).to_sparse()
    if is_first or options.who != "makes":
        checkpointer = (ddp.Checkpointer if options.kind == "ddp" else Checkpointer)(options.directory)
    if options.who == "later":
        assert checkpointer.save(5, state).wait_committed()
    dist.barrier()
    if is_first or options.who == "cannot":
        try:
            handle = checkpointer.save(10, state)
            report("waited", committed=handle.wait_committed(), why=handle.why)
        except CannotSave as error:
            report("refused", why=str(error))
    dist.barrier()
    leave_group()


main()
