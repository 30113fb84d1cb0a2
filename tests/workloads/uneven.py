"""DDP whose ranks work for unequal times: uneven.py PLACE MS, of each step in this rank's forward pass. It ends when
there is a file PLACE.stop."""

import os
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.set_num_threads(1)
place, work_s = sys.argv[1], int(sys.argv[2]) / 1000


class Working(torch.nn.Linear):
    def forward(self, batch):
        time.sleep(work_s)
        return super().forward(batch)


model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(Working(8, 8), torch.nn.Linear(8, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
stop = torch.zeros(1)
while not stop.item():
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    stop[0] = os.path.exists(f"{place}.stop")
    dist.all_reduce(stop)
dist.destroy_process_group()
