"""A loop as torchtitan's: Stateful objects of model, optimizer, schedule and training, which stock dcp.async_save() and
dcp.load() save and load, by the writer and the reader of phalanx.checkpoint.dcp. Tells the loss of each step."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from leaving import leave_group
from phalanx.checkpoint import Storage
from phalanx.checkpoint.dcp import Checkpointer
from report import report
from torch.distributed.checkpoint import state_dict as states
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

report("main")
parser = argparse.ArgumentParser()
parser.add_argument("--dir", required=True)
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--save-every", type=int, default=2)
parser.add_argument("--disk-every", type=int, default=4)
parser.add_argument("--die-at", type=int, default=0, help="in the first life, rank 1 behind that step")
options = parser.parse_args()
FLAT = states.StateDictOptions(flatten_optimizer_state_dict=True)


class Model(Stateful):
    def state_dict(self):
        return states.get_model_state_dict(model)

    def load_state_dict(self, state):
        states.set_model_state_dict(model, state, options=states.StateDictOptions(strict=False))


class Optimizers(Stateful):
    def state_dict(self):
        return states.get_optimizer_state_dict(model, optimizer, options=FLAT)

    def load_state_dict(self, state):
        states.set_optimizer_state_dict(model, optimizer, state, options=FLAT)


class Training(Stateful):
    step = 0

    def state_dict(self):
        return {"step": torch.tensor(self.step)}

    def load_state_dict(self, state):
        self.step = int(state["step"])


torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 65), torch.nn.ReLU(), torch.nn.Linear(65, 64))
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
for layer in (model[0], model[2]):
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
training = Training()
apart = dist.new_group(backend="gloo")  # what a thread exchanges is not to meet what the training does
of_training = {"model": Model(), "optimizer": Optimizers(), "lr_scheduler": schedule, "train_state": training}

ckpt = Checkpointer(options.dir)
reader = ckpt.get_storage_reader()
if reader is not None:
    dcp.load(of_training, storage_reader=reader)
report("loaded", n=training.step, source=ckpt.source)
under_way = None
while training.step < options.steps:
    torch.manual_seed(100 * training.step + dist.get_rank())
    loss = model(torch.randn(8, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()
    training.step += 1
    report("step", n=training.step, loss=loss.item())
    if training.step % options.save_every == 0:
        if under_way is not None:
            under_way.result()
        storage = Storage.DISK if training.step % options.disk_every == 0 else Storage.MEMORY
        writer = ckpt.get_storage_writer(training.step, storage)
        under_way = dcp.async_save(of_training, storage_writer=writer, process_group=apart)
    if training.step == options.die_at and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        under_way.result()
        dist.barrier()
        if dist.get_rank() == 1:
            os.abort()
under_way.result()
ckpt.close()
under_way = reader = writer = of_training = model = optimizer = schedule = None
leave_group()
report("done")
