"""Trains a sharded model that stock torch.distributed.checkpoint saves and loads, through phalanx.checkpoint.dcp."""

import argparse
import warnings

import pausing
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from leaving import leave_group
from phalanx.checkpoint import Storage
from phalanx.checkpoint.dcp import Checkpointer
from report import report
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh

report("main")
parser = argparse.ArgumentParser()
parser.add_argument("--dir", required=True)
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--disk-every", type=int, default=4)
parser.add_argument("--asynchronous", action="store_true")
pausing.add_option(parser)
parser.add_argument("--wrong", choices=["", "planner", "group"], default="", help="at the first save")
options = parser.parse_args()


class HalfPlanner(dcp.DefaultSavePlanner):
    """Of a user: what is saved of `wide` has half of its width."""

    def transform_object(self, write_item, object):
        if write_item.index.fqn == "wide":
            object = object.to(torch.float16).to(torch.float32)
        return super().transform_object(write_item, object)


class FailingPlanner(dcp.DefaultSavePlanner):
    def resolve_data(self, write_item):
        if dist.get_rank() == 1:
            raise ArithmeticError("no such data")
        return super().resolve_data(write_item)


def state_dict():
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state, "counted": counted, "wide": wide}


def digest():
    return [sum(each._local_tensor.double().sum().item() for each in model.parameters()), counted, wide[0].item()]


def settle(saving):
    if saving is None:
        return
    step, writer, future = saving
    try:
        if future is not None:
            future.result()
    except CheckpointException as error:
        return report("refused", n=step, why=str(error.__cause__ or error))
    report("saved", n=step, why=writer.handle.why, committed=writer.handle.wait_committed())


def save(step):
    """What is to be settled of it."""
    storage = Storage.DISK if options.disk_every and step % options.disk_every == 0 else Storage.MEMORY
    planner, group = HalfPlanner(), gloo
    if options.wrong and step == 2:
        planner = FailingPlanner() if options.wrong == "planner" else planner
        group = first if options.wrong == "group" else group
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            return None
    writer = made_by_all.get(step) or ckpt.get_storage_writer(step, storage)
    report("before", n=step, digest=digest())
    call = dcp.async_save if options.asynchronous else dcp.save
    try:
        found = call(state_dict(), storage_writer=writer, planner=planner, process_group=group)
    except CheckpointException as error:
        return report("refused", n=step, why=str(error))
    return step, writer, found if options.asynchronous else None


warnings.simplefilter("ignore", FutureWarning)
torch.set_num_threads(1)
dist.init_process_group("gloo")
gloo = dist.new_group(backend="gloo")
first = dist.new_group([0], backend="gloo")
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(300, 301), torch.nn.Linear(301, 5))
try:
    from torch.distributed.fsdp import fully_shard
except ImportError:
    from torch.distributed._composable.fsdp import fully_shard
fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
ckpt = Checkpointer(options.dir)
made_by_all = {2: ckpt.get_storage_writer(2)} if options.wrong == "group" else {}
counted, wide = 0, torch.full((70_000,), 1 / 3)

reader = ckpt.get_storage_reader()
if reader is not None:
    loaded = state_dict()
    dcp.load(loaded, storage_reader=reader, process_group=gloo)
    set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    counted = loaded["counted"]
    report("loaded", n=counted, source=ckpt.source, why=ckpt.why, digest=[*digest()[:2], loaded["wide"][0].item()])
    part = {"counted": None}
    dcp.load(part, storage_reader=ckpt.get_storage_reader(), no_dist=True)
    report("part", **part)

saving = None
while counted < options.steps:
    optimizer.zero_grad()
    model(torch.ones(4, 300) * counted).square().mean().backward()
    optimizer.step()
    counted += 1
    if counted % 2 == 0:
        settle(saving)
        saving = save(counted)
        if not options.asynchronous:
            settle(saving)
            saving = None
    if pausing.is_due(counted, options.pause_at):
        settle(saving)
        pausing.wait_to_be_killed()
settle(saving)
report("trained", n=counted, digest=digest())
ckpt.close()  # what it does at exit does not run behind leave_group()
model = optimizer = None
leave_group()
report("done")
