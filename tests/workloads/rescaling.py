"""A training on gloo that saves and goes on elsewhere when its job is about to change its size: changing_size.py."""

from report import report

report("main")

import changing_size  # noqa: E402 - the launcher sees the rank before its imports
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from leaving import leave_group  # noqa: E402


class TorchTraining(changing_size.Training):
    def join(self):
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.flag = torch.zeros(1)
        self.parameter = torch.nn.Parameter(torch.zeros(4))
        self.optimizer = torch.optim.SGD([self.parameter], lr=0.1)

    def step(self):
        self.parameter.grad = torch.ones(4)
        self.optimizer.step()

    def all_ranks(self, number):
        found = [torch.zeros(1) for _ in range(dist.get_world_size())]
        dist.all_gather(found, torch.tensor([float(number)]))
        return [int(tensor.item()) for tensor in found]

    def any_rank(self, flag):
        self.flag.fill_(flag)
        dist.all_reduce(self.flag)
        return self.flag.item() > 0

    def leave(self):
        leave_group()


if __name__ == "__main__":
    changing_size.run(TorchTraining())
