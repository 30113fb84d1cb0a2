"""States that ranks share out, which they save and load together: `what` rank 0 does alone. It "saves" the first step,
or a "later" one, or one whose state is "changed", takes a "writer" for one, or "loads", perhaps as a "later load"; the
others come behind it. Where they "skip" two steps, or a load ("skip load"), they never come to them; where one "loads,
others save" they do at the same time. Where the second rank "fails" in a load that all come to, the first goes on.
Where gloo waits for less long than ranks do, the group has "ended"."""

import argparse
import contextlib
import io

import torch
import torch.distributed as dist
from leaving import leave_group
from phalanx.checkpoint import Storage, dcp, files
from phalanx.checkpoint.ranks import peers, together
from report import report

parser = argparse.ArgumentParser()
parser.add_argument("directory")
FIRST = ("saves", "writer", "loads")
BEHIND_A_SAVE = (
    "all save",
    "later",
    "changed",
    "skip",
    "ended",
    "later load",
    "skip load",
    "loads, others save",
    "fails",
)
parser.add_argument("what", choices=(*FIRST, *BEHIND_A_SAVE))
parser.add_argument("kind", choices=("dcp", "files"))
options = parser.parse_args()

WITHIN_S = 3


def state_of(count):
    values = {f"weight{number}": torch.full((1 << 10,), float(number)) for number in range(count)}
    return {f"state_{dist.get_rank()}.pt": values} if options.kind == "files" else values


def save(checkpointer, step, state, storage=Storage.MEMORY):
    handle = checkpointer.save(step, state, storage)
    kept = handle.wait_stored() if storage is Storage.DISK else handle.wait_committed()
    report("saved", n=step, kept=kept, why=handle.why)


def attempt(call, *arguments):
    told = io.StringIO()
    with contextlib.redirect_stderr(told):
        try:
            call(*arguments)
            why = None
        except RuntimeError as error:
            why = str(error)
    report("called", why=why, told=told.getvalue().splitlines())


def fail(found):
    raise RuntimeError("the agent is gone")


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if options.what == "ended":
        peers.GROUP_S = WITHIN_S - 1
    checkpointer = (dcp if options.kind == "dcp" else files).Checkpointer(options.directory)
    state = state_of(2)
    if options.what in BEHIND_A_SAVE:
        save(checkpointer, 5, state, Storage.DISK)
    if options.what == "changed":
        state = {**state_of(5), f"more_{dist.get_rank()}": b"file" if options.kind == "files" else torch.ones(4)}
    if options.what != "all save":
        peers.SAVE_S = peers.LOAD_S = WITHIN_S
        together.NOTICE_S = WITHIN_S - 1
        at_once = options.what in ("loads, others save", "fails")
        if options.what == "fails" and dist.get_rank() == 1:
            checkpointer.get_storage_reader = fail
        for is_mine in (dist.get_rank() == 0, dist.get_rank() != 0):
            if not at_once:
                dist.barrier()
            if is_mine and options.what in ("loads", "later load", "fails"):
                attempt(checkpointer.load, state)
            elif is_mine and options.what in ("skip load", "loads, others save"):
                if dist.get_rank() == 0:
                    attempt(checkpointer.load, state)
                elif at_once:
                    save(checkpointer, 10, state)
            elif is_mine and options.what == "writer":
                attempt(checkpointer.get_storage_writer, 10)
            elif is_mine and options.what == "skip":
                for step in (9, 10) if dist.get_rank() == 0 else ():
                    save(checkpointer, step, state)
            elif is_mine:
                save(checkpointer, 10, state)
        dist.barrier()
        peers.SAVE_S = peers.LOAD_S = 300
        save(checkpointer, 11, state)
    dist.barrier()
    leave_group()


main()
