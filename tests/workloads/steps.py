"""A small DDP training on gloo that reports each phase and can be told to die in any of them."""

import argparse
import atexit
import os
import time

import faults
from report import report

report("main", store=os.environ.get("MASTER_ADDR"))
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=0, help="end after so many; 0: when the stop file appears")
parser.add_argument("--step-ms", type=float, default=5)
parser.add_argument("--quiet-after", type=int, default=3, help="report every 20th step after so many")
parser.add_argument("--data-worker", action="store_true", help="take each batch from a DataLoader with one process")
faults.add_argument(parser)
options = parser.parse_args()
faults.use(options.fault)
faults.pass_by("import")

import torch  # noqa: E402 - a death before this is one of the phases
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

# Kept to the end: gloo of torch 2.2 waits for its thread under a lock that freeing a tensor of Python's needs there.
stop_flag = torch.zeros(1)


class Batches(torch.utils.data.Dataset):
    """Batches that a process of the DataLoader makes; the planned one kills that process."""

    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        if index == 3:
            faults.pass_by("dataloader")
        return torch.ones(64) * self.rank


def batches():
    rank = dist.get_rank()
    if not options.data_worker:
        while True:
            yield torch.randn(8, 64)
    yield from torch.utils.data.DataLoader(Batches(rank), batch_size=8, num_workers=1)


def one_step(model, optimizer, batch):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()


def all_reduce_and_die(how):
    """Dies while megabytes of an all_reduce are under way."""
    dist.all_reduce(torch.ones(16 << 20), async_op=True)
    faults.die(how, "all_reduce")


def agreed_to_stop(step):
    stop_flag.fill_(os.path.exists(os.environ["PHALANX_TEST_STOP"]))
    how = faults.planned("all_reduce") if step == 2 else None
    if how:
        all_reduce_and_die(how)
    if step == 2 and faults.planned_for_anybody("all_reduce"):
        dist.all_reduce(torch.ones(16 << 20))
    dist.all_reduce(stop_flag)
    return stop_flag.item() > 0


def train():
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    report("model")
    for step, batch in enumerate(batches(), start=1):
        began = time.monotonic()
        if step == 1:
            faults.pass_by("first_step")
        one_step(model, optimizer, batch)
        if step <= options.quiet_after or step % 20 == 0:
            report("step", n=step)
        if agreed_to_stop(step) or step == options.steps:
            return
        time.sleep(max(0.0, options.step_ms / 1000 - (time.monotonic() - began)))


def main():
    torch.set_num_threads(1)
    faults.pass_by("before_init")
    dist.init_process_group("gloo")
    report("group", world=dist.get_world_size())
    faults.pass_by("after_init")
    train()
    dist.barrier()
    dist.destroy_process_group()
    report("done")
    faults.pass_by("end")
    atexit.register(faults.pass_by, "exiting")


if __name__ == "__main__":
    main()
