"""A small DDP training on gloo that reports each phase and can be told to die in any of them."""

import argparse

import faults
import stepping

parser = argparse.ArgumentParser()
parser.add_argument("--data-worker", action="store_true", help="take each batch from a DataLoader with one process")
stepping.begin(parser)

import torch  # noqa: E402 - a death before this is one of the phases
import torch.distributed as dist  # noqa: E402
from leaving import leave_group  # noqa: E402
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


class TorchTraining(stepping.Training):
    """A small model under DistributedDataParallel."""

    def join(self):
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        return dist.get_world_size()

    def prepare(self):
        torch.manual_seed(0)
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def batches(self):
        while not stepping.options.data_worker:
            yield torch.randn(8, 64)
        yield from torch.utils.data.DataLoader(Batches(dist.get_rank()), batch_size=8, num_workers=1)

    def step(self, batch, number):
        self.optimizer.zero_grad()
        self.model(batch).square().mean().backward()
        self.optimizer.step()

    def any_rank(self, flag):
        stop_flag.fill_(flag)
        dist.all_reduce(stop_flag)
        return stop_flag.item() > 0

    def reduce_megabytes(self):
        dist.all_reduce(torch.ones(16 << 20))

    def begin_to_reduce_megabytes(self):
        self.under_way = dist.all_reduce(torch.ones(16 << 20), async_op=True)

    def leave(self):
        self.model = self.optimizer = None  # the group that they use goes
        if stepping.options.data_worker:
            dist.barrier()
            dist.destroy_process_group()
        else:
            leave_group()


if __name__ == "__main__":
    stepping.run(TorchTraining())
