"""The second example of DLRover's guide (3.1.4.2), call for call: FSDP, saved and loaded by the functions of torch that
it calls; with --modules by the signature of DLRover's own documentation (compat/dlrover)."""

import argparse
import os
import signal
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dist_cp
from dlrover.trainer.torch.flash_checkpoint.fsdp import (
    FsdpShardCheckpointer,
    StorageType,
)
from leaving import leave_group
from report import report
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType

report("main")
parser = argparse.ArgumentParser()
parser.add_argument("--dir", required=True)
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--memory-every", type=int, default=1)
parser.add_argument("--storage-every", type=int, default=2)
parser.add_argument("--pause-at", type=int, default=0, help="in the first life, wait to be killed behind this step")
parser.add_argument("--modules", action="store_true", help="save_checkpoint(step, model, optimizer, extra_sd)")
options = parser.parse_args()
checkpoint_dir = options.dir
save_memory_interval, save_storage_interval = options.memory_every, options.storage_every
warnings.simplefilter("ignore")  # torch's, of the functions that the guide calls

dist.init_process_group("gloo")
checkpointer = FsdpShardCheckpointer(checkpoint_dir)


def load(model, optimizer):
    """As in the guide. The step."""
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state_dict = {
            "model": model.state_dict(),
            "step": 0,
        }
        storage_reader = checkpointer.get_storage_reader()
        if not storage_reader:
            return 0
        dist_cp.load_state_dict(
            state_dict=state_dict,
            storage_reader=storage_reader,
        )
        model.load_state_dict(state_dict["model"])

        optim_state = load_sharded_optimizer_state_dict(
            model_state_dict=state_dict["model"],
            optimizer_key="optim",
            storage_reader=storage_reader,
        )

        flattened_osd = FSDP.optim_state_dict_to_load(model, optimizer, optim_state["optim"])
        optimizer.load_state_dict(flattened_osd)
        return state_dict["step"]


def save(step, model, optimizer):
    """As in the guide."""
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state_dict = {
            "model": model.state_dict(),
            "optim": FSDP.optim_state_dict(model, optimizer),
            "step": step,
        }
        ckpt_dir = os.path.join(checkpoint_dir, str(step))
        if step % save_memory_interval == 0:
            checkpointer.save_checkpoint(step, state_dict, ckpt_dir, storage_type=StorageType.MEMORY)
        if step % save_storage_interval == 0:
            checkpointer.save_checkpoint(step, state_dict, ckpt_dir, storage_type=StorageType.DISK)


def save_modules(step, model, optimizer):
    to = StorageType.DISK if step % save_storage_interval == 0 else StorageType.MEMORY
    checkpointer.save_checkpoint(step, model, optimizer, {"step": step, "names": ["a"] * step}, storage_type=to)


def load_modules(model, optimizer):
    extra = checkpointer.load_checkpoint(model, optimizer)
    assert extra.get("names", []) == ["a"] * extra.get("step", 0)
    return extra.get("step", 0)


def train():
    torch.manual_seed(1)
    model = FSDP(torch.nn.Linear(64, 64), device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step = (load_modules if options.modules else load)(model, optimizer)
    report("begins", n=step, source=checkpointer._checkpointer.source)
    while step < options.steps:
        torch.manual_seed(100 + step)  # the same on all ranks, in a world of any size
        loss = model(torch.randn(8, 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        report("step", n=step, loss=round(loss.item(), 5))
        (save_modules if options.modules else save)(step, model, optimizer)
        if step == options.pause_at and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            checkpointer._last.wait_committed()
            report("pausing")
            dist.barrier()
            signal.pause()
    checkpointer.wait_latest_checkpoint()


train()
leave_group()
