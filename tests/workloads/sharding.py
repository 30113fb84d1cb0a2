"""Trains a sharded model that phalanx.checkpoint.dcp saves, or reads what it saved by stock dcp.load()."""

import argparse
import hashlib
import os
import warnings

import pausing
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from leaving import leave_group
from phalanx.checkpoint import CannotSave, PerRank, Storage
from phalanx.checkpoint.dcp import Checkpointer
from report import report
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

report("main")
parser = argparse.ArgumentParser()
parser.add_argument("--dir", required=True)
parser.add_argument("--kind", choices=["fsdp1", "fsdp2", "hsdp", "dtensor", "tp_dp"], default="fsdp2")
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--save-every", type=int, default=2)
parser.add_argument("--disk-every", type=int, default=0)
pausing.add_option(parser)
parser.add_argument("--fail-at", type=int, default=0, help="rank 1 cannot save this step")
parser.add_argument(
    "--grow-at", type=int, default=0, help="rank 0 has one more tensor from this step on, and a value grows at the next"
)
parser.add_argument("--load-step", type=int, help="from disk, whatever is newer")
parser.add_argument(
    "--hold", help="a FIFO: in every life but the first all ask what is restored, rank 0 when somebody writes there"
)
parser.add_argument("--stock", action="store_true", help="read --dir, a step's folder, by torch alone")
options = parser.parse_args()

WIDTH = 384
INNER = WIDTH + (options.kind != "tp_dp")  # shards of different sizes, but where FSDP shards what TP has sharded


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, INNER)
        self.second = torch.nn.Linear(INNER, WIDTH)
        self.register_buffer("forwards", torch.zeros(1000))

    def forward(self, batch):
        self.forwards += 1
        return self.second(torch.nn.functional.dropout(self.first(batch).relu(), 0.1))


def made():
    from torch.distributed.device_mesh import init_device_mesh

    torch.manual_seed(1)
    net = Net()
    if options.kind == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel(net, device_id=torch.device("cpu"), use_orig_params=True)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    if options.kind == "dtensor":
        from torch.distributed.tensor import Shard, distribute_module, distribute_tensor

        def shard(name, module, mesh):
            for key, parameter in list(module._parameters.items()):
                sharded = distribute_tensor(parameter.detach(), mesh, [Shard(parameter.dim() - 1)])
                module.register_parameter(key, torch.nn.Parameter(sharded))

        return distribute_module(net, mesh, shard)
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        from torch.distributed._composable.fsdp import fully_shard
    if options.kind == "hsdp":  # of four ranks two replicas of two shards; of fewer each rank is one
        shards = 2 if dist.get_world_size() % 4 == 0 else 1
        mesh = init_device_mesh("cpu", (dist.get_world_size() // shards, shards), mesh_dim_names=("replicate", "shard"))
    if options.kind == "tp_dp":  # both on each node
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        both = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(net, both["tp"], {"first": ColwiseParallel(), "second": RowwiseParallel()})
        mesh = both["dp"]
        tensor_group.append(both["tp"].get_group())
    for layer in (net.first, net.second):
        fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def batch_of_this_rank():
    batch = torch.randn(8, WIDTH)
    for group in tensor_group:  # its ranks have parts of one model
        dist.broadcast(batch, dist.get_global_rank(group, 0), group=group)
    if options.kind != "dtensor":
        return batch
    from torch.distributed.tensor import Replicate, distribute_tensor

    mesh = next(model.parameters()).device_mesh
    return distribute_tensor(batch, mesh, [Replicate()])


def digest(tensor):
    return hashlib.sha256(tensor.detach().reshape(-1).view(torch.uint8).numpy()).hexdigest()[:16]


def whole():
    """{name: digest} of all tensors of model and optimizer, unsharded, and what else the optimizer holds."""
    found = {}

    def add(path, value):
        if isinstance(value, dict):
            for key, inner in value.items():
                add(f"{path}.{key}", inner)
        elif isinstance(value, torch.Tensor):
            found[path] = digest(value)

    unsharded = StateDictOptions(full_state_dict=True)
    add("model", get_model_state_dict(model, options=unsharded))
    add("optimizer", get_optimizer_state_dict(model, optimizer, options=unsharded))
    return found


def train(step):
    optimizer.zero_grad()
    model(batch_of_this_rank()).square().mean().backward()
    optimizer.step()
    state["step"] = step
    state["own"].value = [dist.get_rank(), step]


def save(ckpt, step):
    before = whole()
    storage = Storage.DISK if options.disk_every and step % options.disk_every == 0 else Storage.MEMORY
    if step == options.fail_at and dist.get_rank() == 1:
        state["bad"] = torch.empty(3, device="meta")
    if options.grow_at and step >= options.grow_at:
        if dist.get_rank() == 0:
            state["only"] = torch.ones(7)
        state["note"] = "n" * (5000 if step > options.grow_at else 5)
    report("before", n=step, whole=before)
    try:
        handle = ckpt.save(step, state, storage=storage)
    except CannotSave as error:
        del state["bad"]
        report("refused", n=step, why=str(error))
        return None
    report("saving", n=step, over=handle.is_over)
    return handle, before


def settle(ckpt, saved):
    if saved is not None:
        handle, before = saved
        committed = handle.wait_stored() if handle.storage is Storage.DISK else handle.wait_committed()
        report("saved", n=handle.step, committed=committed, why=handle.why, whole=before)


def hold(ckpt):
    if dist.get_rank() == 0:
        os.close(os.open(options.hold, os.O_RDONLY))
    ckpt.get_storage_reader()
    report("found", source=ckpt.source)


def run():
    ckpt = Checkpointer(options.dir)
    if options.hold and os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
        hold(ckpt)
    try:
        step = ckpt.load(state, step=options.load_step)
    except LookupError as error:
        report("refused", n=options.load_step, why=str(error))
        return ckpt.close()
    reader = ckpt.get_storage_reader()
    names = sorted(reader.read_metadata().state_dict_metadata) if reader is not None else []
    loaded = {"note": state["note"], "counted": state["step"], "names": names, "own": state["own"].value}
    report("loaded", n=step, source=ckpt.source, why=ckpt.why, whole=whole(), **loaded)
    torch.manual_seed(dist.get_rank()) if step == 0 else None
    saved = None
    while step < options.steps:
        step += 1
        train(step)
        settle(ckpt, saved)
        saved = save(ckpt, step) if step % options.save_every == 0 else None
        if pausing.is_due(step, options.pause_at):
            settle(ckpt, saved)
            pausing.wait_to_be_killed()
    settle(ckpt, saved)
    report("trained", n=step, whole=whole(), draw=torch.rand(1).item())
    return ckpt.close()  # what it does at exit does not run behind leave_group()


def run_stock():
    loaded = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
    loaded["step"] = loaded["note"] = None
    dcp.load(loaded, checkpoint_id=options.dir)
    set_model_state_dict(model, loaded["model"])
    set_optimizer_state_dict(model, optimizer, loaded["optimizer"])
    report("read", whole=whole(), step=loaded["step"], note=loaded["note"])


warnings.simplefilter("ignore", FutureWarning)
torch.set_num_threads(1)
dist.init_process_group("gloo")
tensor_group = []
model = made()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
state = {"model": model, "optimizer": optimizer, "step": 0, "note": "short", "rng": True, "own": PerRank()}
run_stock() if options.stock else run()
model = optimizer = state = tensor_group = None  # the group that they use goes
leave_group()
report("done")
