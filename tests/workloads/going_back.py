"""Does in each life what it is told: "load", "load:STEP" and "load:STEP@TIMELINE", "save:STEP" and "disk:STEP" of a
state that has the step in it, "tell:STEP" of what becomes of one on disk, "delete:STEP", "spoil" that state, "die" (it
is killed), "fail" (it raises)."""

import argparse
import os
import signal

import torch
import torch.distributed as dist
from leaving import leave_group
from phalanx.checkpoint import Checkpointer, Storage
from report import report

parser = argparse.ArgumentParser()
parser.add_argument("directory")
parser.add_argument("lives", nargs="+")
parser.add_argument("--keep-last", type=int)
options = parser.parse_args()
LIFE = int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def load(checkpointer, weight, wanted):
    step, _, timeline = wanted.partition("@")
    given = {name: int(text) for name, text in (("step", step), ("timeline", timeline)) if text}
    try:
        state, step = checkpointer.load(**given)
    except LookupError as error:
        return report("refused", why=str(error))
    value = None
    if state is not None:
        low, high = torch.aminmax(state["weight"])
        assert low == high, "the state of two saves"
        value = int(low)
        weight.copy_(state["weight"])
    return report("loaded", n=step, value=value, source=checkpointer.source, why=checkpointer.why)


def save(checkpointer, weight, step, storage):
    weight.fill_(step)
    handle = checkpointer.save(step, {"weight": weight}, storage=storage)
    assert handle.wait_committed(), handle.why
    if storage is Storage.DISK:
        assert handle.wait_stored(), handle.why


def tell(result):
    report("told", n=result.step, stored=result.stored, why=result.why)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    weight = torch.zeros(1 << 16)
    checkpointer = Checkpointer(options.directory, keep_last=options.keep_last)
    for word in options.lives[LIFE].split():
        what, _, step = word.partition(":")
        dist.barrier()
        if what == "load":
            load(checkpointer, weight, step)
        elif what in ("save", "disk"):
            save(checkpointer, weight, int(step), Storage.DISK if what == "disk" else Storage.MEMORY)
        elif what == "tell":
            weight.fill_(int(step))
            handle = checkpointer.save(int(step), {"weight": weight}, storage=Storage.DISK, on_stored=tell)
            assert handle.wait_committed(), handle.why
        elif what == "delete":
            report("deleted", n=int(step), own=checkpointer.delete(int(step)))
        elif what == "spoil":
            weight.fill_(float("nan"))
        elif what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "fail":
            raise RuntimeError("it is told to fail")
    checkpointer.close()
    leave_group()


main()
