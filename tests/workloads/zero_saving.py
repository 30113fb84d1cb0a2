"""Trains a small model by DeepSpeed on the CPU, and saves it: by phalanx.checkpoint.adapters.deepspeed, by DeepSpeed
itself, or by DeepSpeed with our checkpoint engine. Says which loss each step has, and what all of the state is.

`A --then B` is one after the other, each with an engine of its own, as two jobs would be: DeepSpeed takes longer to be
imported than to do what is tested here. Later lives play the last one alone."""

import argparse
import contextlib
import errno
import hashlib
import os
import sys
import tempfile

import deepspeed
import pausing
import preparing
import report as events
import torch
import torch.distributed as dist
from leaving import leave_group
from phalanx.checkpoint import Storage
from phalanx.checkpoint.adapters import deepspeed as adapter

events.report("main")
parser = argparse.ArgumentParser()
parser.add_argument("--dir", required=True)
parser.add_argument("--stage", type=int, default=1)
parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
parser.add_argument("--save", choices=["ours", "stock", "engine", "dlrover"], default="ours")
parser.add_argument("--load", choices=["ours", "stock", "engine", "universal", "dlrover", "none"], default="ours")
parser.add_argument("--steps", type=int, default=6, help="0: until the stop file appears")
parser.add_argument("--disk-every", type=int, default=0)
pausing.add_option(parser)
parser.add_argument("--width", type=int, default=24)
parser.add_argument("--keep-last", type=int)
parser.add_argument("--twice-at", type=int, default=0, help="save this step once more, by the tag `again`")
parser.add_argument("--again", action="store_true", help="save once more what was loaded, as it is")
parser.add_argument("--universal", action="store_true", help="the engine loads universal checkpoints alone")
parser.add_argument("--odd", action="store_true", help="parameters that no two ranks can halve, some of them frozen")
parser.add_argument("--groups", type=int, default=1, help="of parameters")
parser.add_argument("--meddle-every", type=int, default=0, help="write weights while they are copied, at such steps")
OUTPUTS = 6  # each parameter has two halves: what ZeRO 3 pads with is what memory happened to hold


options = None  # those of this act, and its number
act = 0


def acts(arguments):
    """[options], of each act."""
    parts = [[]]
    for argument in arguments:
        if argument == "--then":
            parts.append([])
        else:
            parts[-1].append(argument)
    return [parser.parse_args(part) for part in parts]


def report(event, **fields):
    events.report(event, act=act, **fields)


def config():
    found = {
        "train_batch_size": 4 * dist.get_world_size(),
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": options.stage, "stage3_param_persistence_threshold": 30},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": options.precision == "bf16"},
    }
    if options.universal or options.load == "universal":
        found["checkpoint"] = {"load_universal": True}
    return found


class Fading(torch.nn.Module):
    """Has a buffer that counts, and lasts, as BatchNorm's do; the same on all ranks, of which one saves it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, values):
        self.seen += 1
        return torch.tanh(values) / self.seen.to(values.dtype)


def make_engine():
    torch.manual_seed(3)
    outputs = OUTPUTS - 1 if options.odd else OUTPUTS
    width = options.width
    model = torch.nn.Sequential(torch.nn.Linear(width, width), Fading(), torch.nn.Linear(width, outputs))
    if options.odd:
        model.append(torch.nn.Linear(outputs, 3))
        model[2].bias.requires_grad_(False)
    trained = [each for each in model.parameters() if each.requires_grad]
    groups = [{"params": trained[number :: options.groups]} for number in range(options.groups)]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=scheduler, config=config())
    return engine


def digest(engine):
    """Of all that this rank has."""
    found = hashlib.sha256()
    zero = engine.optimizer
    names = ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups", "fp32_groups_flat_partition")
    partitions = next(filter(None, (getattr(zero, name, None) for name in names)))
    weights = [getattr(each, "ds_tensor", each) for each in engine.module.parameters()]
    moments = [value for _, state in sorted_states(engine) for _, value in sorted(state.items())]
    for value in (*weights, *engine.module.buffers(), *partitions, *moments):
        found.update(value.detach().float().numpy().tobytes())
    found.update(repr((engine.global_steps, engine.lr_scheduler.state_dict())).encode())
    return found.hexdigest()[:16]


def sorted_states(engine):
    """Of flat partitions, by their order."""
    return list(enumerate(engine.basic_optimizer.state.values()))


def train(engine, step):
    torch.manual_seed(1000 * step + dist.get_rank())
    kind = torch.bfloat16 if options.precision == "bf16" else torch.float32
    loss = engine(torch.randn(4, options.width).to(kind)).float().square().mean()
    engine.backward(loss)
    engine.step()
    return loss.item()


def load(engine, ckpt):
    if options.load == "none":
        return {}, 0, None
    if options.load == "dlrover":
        path, client_state = ckpt.load_checkpoint(options.dir)
        return client_state or {}, engine.global_steps, path
    if options.load == "ours":
        client_state, step = ckpt.load()
        return client_state, step, ckpt.source
    path, client_state = engine.load_checkpoint(options.dir)
    return client_state or {}, engine.global_steps, path and "disk"


def save(engine, ckpt, step):
    client_state = {"note": f"step {step}"}
    if options.save == "dlrover":
        ckpt.save_checkpoint(options.dir, client_state=client_state)
        ckpt.wait_latest_checkpoint()
        return True, None
    if options.save != "ours":
        engine.save_checkpoint(options.dir, client_state=client_state)
        if step == options.twice_at:
            save_again(engine)
        return True, None
    storage = Storage.DISK if options.disk_every and step % options.disk_every == 0 else Storage.MEMORY
    with no_place():
        handle = ckpt.save(client_state, storage=storage)
    if options.meddle_every and step % options.meddle_every == 0:
        meddle(engine)
    kept = handle.wait_stored() if storage is Storage.DISK else handle.wait_committed()
    while meddled:
        partition, before = meddled.pop()
        partition.data.copy_(before)
    return kept, handle.why


@contextlib.contextmanager
def no_place():
    """As on a node whose disks are full: a save needs no folder of its own."""

    def full(*given, **named):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    places = ((tempfile, "mkdtemp"), (deepspeed.runtime.engine, "copyfile"))
    before = [getattr(module, name) for module, name in places]
    for module, name in places:
        setattr(module, name, full)
    try:
        yield
    finally:
        for (module, name), function in zip(places, before):
            setattr(module, name, function)


def save_again(engine):
    try:
        engine.save_checkpoint(options.dir, tag="again", client_state={"note": "again"})
    except RuntimeError as error:
        report("refused", why=str(error))
        raise
    engine.save_checkpoint(options.dir, tag="aside", save_latest=False)
    engine.save_16bit_model(os.path.join(options.dir, "final"))  # it is no step
    report("weights", names=sorted(engine.module.state_dict()))


meddled = []  # [(partition, what was in it)]


def meddle(engine):
    """Writes what only steps write, without one."""
    for partition in engine.optimizer.single_partition_of_fp32_groups:
        before = partition.detach().clone()
        partition.data.add_(1)
        meddled.append((partition, before))


def is_over(step):
    if options.steps:
        return step >= options.steps
    stop = torch.tensor(int(os.path.exists(os.environ["PHALANX_TEST_STOP"])))
    dist.all_reduce(stop)
    return stop.item() > 0


def play():
    engine = make_engine()
    ckpt = None
    if "ours" in (options.save, options.load):
        ckpt = adapter.Checkpointer(engine, options.dir, keep_last=options.keep_last)
    if "dlrover" in (options.save, options.load):
        from dlrover.trainer.torch.flash_checkpoint.deepspeed import DeepSpeedCheckpointer

        ckpt = DeepSpeedCheckpointer(engine, options.dir)
    if "engine" in (options.save, options.load):
        engine.checkpoint_engine = adapter.PhalanxCheckpointEngine(engine, options.dir, keep_last=options.keep_last)
    client_state, step, source = load(engine, ckpt)
    why = getattr(ckpt, "why", None)
    state = digest(engine) if step else None
    report("loaded", n=step, source=source, state=state, note=client_state.get("note"), why=why)
    if options.again:
        kept, why = save(engine, ckpt, step)
        report("again", n=step, kept=kept, why=why)
    while not is_over(step):
        step += 1
        loss = train(engine, step)
        report("step", n=step, loss=loss, state=digest(engine))
        kept, why = save(engine, ckpt, step)
        report("saved", n=step, kept=kept, why=why)
        if pausing.is_due(step, options.pause_at):
            pausing.wait_to_be_killed()
    if hasattr(ckpt, "close"):
        ckpt.close()
    report("done", state=digest(engine))


def main():
    global options, act
    played = acts(sys.argv[1:])
    # A faster all-reduce, which would be compiled for a minute.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    torch.set_num_threads(1)
    preparing.tell()
    dist.init_process_group("gloo")
    first = 0 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else len(played) - 1
    for number, of_act in list(enumerate(played))[first:]:
        act, options = number, of_act
        play()
        dist.barrier()  # what comes next reads what all have written
    sys.stdout.flush()
    leave_group()


if __name__ == "__main__":
    main()
