"""The first example of DLRover's guide (3.1.4.1), call for call: DDP, saved to memory often and to storage seldom, each
time under a path of its own (compat/dlrover)."""

import argparse
import os
import signal

import torch
import torch.distributed as dist
from dlrover.trainer.torch.flash_checkpoint.ddp import (
    DdpCheckpointer,
    StorageType,
)
from leaving import leave_group
from report import report
from torch.nn.parallel import DistributedDataParallel

report("main")
parser = argparse.ArgumentParser()
parser.add_argument("--dir", required=True)
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--memory-every", type=int, default=1)
parser.add_argument("--storage-every", type=int, default=2)
parser.add_argument("--pause-at", type=int, default=0, help="in the first life, wait to be killed behind this step")
parser.add_argument("--keep", type=int, default=0, help="KeepLatestStepStrategy")
parser.add_argument("--own-strategy", action="store_true", help="one of the script's own, which leaves even steps")
options = parser.parse_args()
checkpoint_dir = options.dir
save_memory_interval, save_storage_interval = options.memory_every, options.storage_every


class EvenSteps:
    """A deletion strategy that DLRover does not have."""

    def clean_up(self, step, delete_func):
        if step % 2 != 0:
            delete_func(os.path.join(checkpoint_dir, str(step)))


def strategy():
    from dlrover.python.common.storage import KeepLatestStepStrategy

    if options.own_strategy:
        return EvenSteps()
    return KeepLatestStepStrategy(options.keep, checkpoint_dir) if options.keep else None


dist.init_process_group("gloo")
torch.manual_seed(1)
net = torch.nn.Linear(64, 64)
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

checkpointer = DdpCheckpointer(checkpoint_dir, deletion_strategy=strategy())
ckpt_dict = checkpointer.load_checkpoint()
step = 0
if ckpt_dict:
    model.load_state_dict(ckpt_dict["model"])
    optimizer.load_state_dict(ckpt_dict["optimizer"])
    step = ckpt_dict["step"]
report("begins", n=step)

while step < options.steps:
    torch.manual_seed(100 + step)
    loss = model(torch.randn(8, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    iter_num = step
    report("step", n=step, loss=loss.item().hex())
    state_dict = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": step,
    }
    ckpt_path = os.path.join(checkpoint_dir, f"checkpoint-{iter_num}.pt")
    if iter_num % save_memory_interval == 0:
        checkpointer.save_checkpoint(step, state_dict, ckpt_path, storage_type=StorageType.MEMORY)
    if iter_num % save_storage_interval == 0:
        checkpointer.save_checkpoint(step, state_dict, ckpt_path, storage_type=StorageType.DISK)
        checkpointer.wait_latest_checkpoint()
        if dist.get_rank() == 0:
            there = os.path.exists(ckpt_path)
            report("stored", n=step, there=there)
    if step == options.pause_at and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        checkpointer._last.wait_committed()
        report("pausing")
        dist.barrier()
        signal.pause()
leave_group()
