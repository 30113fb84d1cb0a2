"""Training that tells its steps, keeps a checkpoint every few of them by torch.save and goes on from the last one.

Gradient and optimizer are real, the model is one number.
"""

import going_on

going_on.begin()

import torch  # noqa: E402 - the launcher sees the rank before its imports
import torch.distributed as dist  # noqa: E402
from leaving import leave_group  # noqa: E402


class TorchTraining(going_on.Training):
    def join(self):
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.weight = torch.ones(1, requires_grad=True)
        self.optimizer = torch.optim.SGD([self.weight], lr=0.01)
        self.flag = torch.zeros(1)

    def stand_at(self, step):
        """Nothing to say: the launcher counts the optimizer's steps beside those it is told."""

    def step(self):
        self.optimizer.zero_grad()
        self.weight.square().sum().backward()
        dist.all_reduce(self.weight.grad)
        self.optimizer.step()

    def save(self, file, step):
        kept = {"weight": self.weight.detach(), "step": step}
        torch.save(kept, file, _use_new_zipfile_serialization=False)

    def load(self, path):
        kept = torch.load(path)
        self.weight.data.copy_(kept["weight"])
        return kept["step"]

    def any_rank(self, flag):
        self.flag.fill_(flag)
        dist.all_reduce(self.flag)
        return self.flag.item() > 0

    def leave(self):
        leave_group()


if __name__ == "__main__":
    going_on.run(TorchTraining())
