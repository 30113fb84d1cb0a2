"""Not all ranks save: `who` says what rank 0 does alone ("makes" a Checkpointer, "saves", saves "later", when all have
saved before, "restores"), or that the last rank's state "cannot" be saved. Whoever has saved waits until all have."""

import argparse

import torch
import torch.distributed as dist
from leaving import leave_group
from phalanx.checkpoint import CannotSave, Checkpointer, Storage, ddp
from phalanx.checkpoint.link import absent
from report import report

parser = argparse.ArgumentParser()
parser.add_argument("directory")
parser.add_argument("who", choices=("makes", "saves", "later", "restores", "cannot"))
parser.add_argument("kind", choices=("full", "ddp"))
parser.add_argument("--timeout", type=float, help="seconds of each wait")
parser.add_argument("--others", type=float, help="seconds that ranks of other nodes are waited for")
parser.add_argument("--stored", action="store_true", help="saves to disk, and waits for that")
parser.add_argument("--after-all", action="store_true", help="the others save when rank 0 has waited in vain")
options = parser.parse_args()


def wait_for(handle, name):
    wait = handle.wait_stored if options.stored else handle.wait_committed
    try:
        report(name, committed=wait(options.timeout), why=handle.why)
    except TimeoutError as error:
        report(name, committed=None, why=str(error))


def main():
    torch.set_num_threads(1)
    if options.others is not None:
        absent.OTHERS_S = options.others
    dist.init_process_group("gloo")
    is_first, is_last = dist.get_rank() == 0, dist.get_rank() == dist.get_world_size() - 1
    state = {"weight": torch.zeros(1 << 16), "rng": True}
    storage = Storage.DISK if options.stored else Storage.MEMORY
    if options.who == "cannot" and is_last:
        state["bad"] = torch.zeros(4).to_sparse()
    if is_first or options.who != "makes":
        checkpointer = (ddp.Checkpointer if options.kind == "ddp" else Checkpointer)(options.directory)
    if options.who in ("later", "restores"):
        handle = checkpointer.save(5, state, storage)
        assert handle.wait_stored() if options.stored else handle.wait_committed()
    dist.barrier()
    if is_first and options.who == "restores":
        report("loaded", n=checkpointer.load()[1], why=checkpointer.why)
    elif is_first or options.who == "cannot":
        try:
            handle = checkpointer.save(10, state, storage)
            wait_for(handle, "waited")
        except CannotSave as error:
            report("refused", why=str(error))
    dist.barrier()
    if options.after_all:
        if not is_first:
            handle = checkpointer.save(10, state, storage)
        wait_for(handle, "waited after all")
        dist.barrier()
    leave_group()


main()
