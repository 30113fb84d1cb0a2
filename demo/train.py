"""A small real DDP training: gloo, CPU, a checkpoint each ten steps. Any script that runs under torchrun runs here."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

try:
    from phalanx import step as tell_step  # optional: what Phalanx says of steps then counts on after a restart
except ImportError:
    tell_step = int


def load(path, model, optimizer):
    if not os.path.exists(path):
        return 0
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


def save(path, model, optimizer, step):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, path + ".tmp")
    os.replace(path + ".tmp", path)


def main():
    path = sys.argv[1]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with open(f"{path}.rank{dist.get_rank()}.pid", "w") as file:  # so that the demo finds its victim
        file.write(str(os.getpid()))
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = load(path, model, optimizer)
    data, labels = torch.randn(32, 64), torch.randint(0, 10, (32,))
    stop = torch.zeros(1)
    while not stop.item():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data), labels)
        loss.backward()
        optimizer.step()
        step += 1
        tell_step(step)
        if step % 10 == 0 and dist.get_rank() == 0:
            save(path, model, optimizer, step)
        stop[0] = os.path.exists(path + ".stop")
        dist.all_reduce(stop)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
