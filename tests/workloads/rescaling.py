"""A training on gloo that saves and goes on elsewhere when its job is about to change its size.

How it hears of that: callback (phalanx.on_rescale), optimizer (the same, and it never calls phalanx.step), exit (a
callback that ends the process with 0), signal (SIGUSR1, agreed upon by an all_reduce, then exit code 0), slow (a
callback that never returns), none.
"""

import os
import signal
import sys
import time

from report import report

report("main")
import phalanx  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

how = sys.argv[1]
path = os.path.join(os.environ["PHALANX_TEST_FOLDER"], "saved_step")
told = torch.zeros(1)
flags = torch.zeros(2)


def save(step):
    """A collective one: it works only where all ranks do it behind the same step."""
    steps = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(steps, torch.tensor([float(step)]))
    assert {int(tensor.item()) for tensor in steps} == {step}, steps
    if dist.get_rank() == 0:
        with open(path + ".new", "w") as file:
            file.write(str(step))
        os.replace(path + ".new", path)
    report("saved", n=step)


def on_rescale():
    report("asked", n=step)
    if how == "slow":
        time.sleep(600)
    save(step)
    if how == "exit":
        sys.exit(0)


def on_signal(_number, _frame):
    told.fill_(1)


if how in ("callback", "optimizer", "exit", "slow"):
    phalanx.on_rescale(on_rescale)
if how == "signal":
    signal.signal(signal.SIGUSR1, on_signal)
torch.set_num_threads(1)
dist.init_process_group("gloo")
step = 0
if os.path.exists(path):
    with open(path) as file:
        step = int(file.read())
parameter = torch.nn.Parameter(torch.zeros(4))
optimizer = torch.optim.SGD([parameter], lr=0.1)
report("begin", n=step)
while not flags[0]:
    flags[0] = os.path.exists(os.environ["PHALANX_TEST_STOP"])
    flags[1] = told.item()
    dist.all_reduce(flags)
    if flags[1]:
        save(step)
        sys.exit(0)
    parameter.grad = torch.ones(4)
    step += 1
    optimizer.step()
    if how != "optimizer":
        phalanx.step(step)
    if step % 10 == 1 or step < 3:
        report("step", n=step)
    time.sleep(0.01)
save(step)
dist.destroy_process_group()
report("done", n=step)
