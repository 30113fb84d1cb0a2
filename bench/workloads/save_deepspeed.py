"""Trains by DeepSpeed on the CPU, and saves in turn: by phalanx.checkpoint.adapters.deepspeed, and by DeepSpeed."""

import json
import os
import shutil
import statistics
import time

import deepspeed
import torch
import torch.distributed as dist
from phalanx.checkpoint.adapters import deepspeed as adapter
from tell import tell

SETTINGS = json.loads(os.environ["BENCH_SAVING"])
WIDTH, ROWS = 1024, 8
QUIET_STEPS = 4  # between two saves


def bytes_of_parameter(stage, ranks):
    """What rank 0 stores of each: AdamW's moments and the weights in fp32 are shared out, weights in bf16 are not, and
    ZeRO 3 stores none."""
    return 12 / ranks + (2 if stage < 3 else 0)


def make_engine():
    layers = SETTINGS["mib"] * (1 << 20) / bytes_of_parameter(SETTINGS["stage"], dist.get_world_size()) / WIDTH**2
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(max(1, round(layers)))))
    config = {
        "train_batch_size": ROWS * dist.get_world_size(),
        "zero_optimization": {"stage": SETTINGS["stage"]},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": True},
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def step(engine):
    """Its seconds."""
    began = time.monotonic()
    engine.backward(engine(torch.randn(ROWS, WIDTH, dtype=torch.bfloat16)).float().square().mean())
    engine.step()
    return time.monotonic() - began


def save_ours(ckpt, number):
    began = time.monotonic()
    handle = ckpt.save({"number": number}, step=number)
    return began, handle


def save_theirs(engine, number):
    """Held, and a folder that is removed again: the disk is to have room for all."""
    directory = f"{SETTINGS['directory']}/theirs"
    began = time.monotonic()
    engine.save_checkpoint(directory, tag=str(number), client_state={"number": number})
    held = time.monotonic() - began
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(directory)
    dist.barrier()
    return held


def one(engine, ckpt, number):
    is_ours = number % 2 == 0
    mib = SETTINGS["mib"]
    if not is_ours:
        held = stored = save_theirs(engine, number)
        busy, why = step(engine), None
    else:
        began, handle = save_ours(ckpt, number)
        busy = step(engine)
        handle.wait_staged()
        held = handle.held_ns / 1e9
        if not handle.wait_stored():
            raise RuntimeError(f"step {number} is not stored: {handle.why}")
        stored, why = time.monotonic() - began, handle.why
        mib = next(each.bytes for each in ckpt.steps() if each.step == number) / (1 << 20)
    quiet = [step(engine) for _ in range(QUIET_STEPS)]
    tell(
        "saved",
        n=number,
        ours=is_ours,
        held=held,
        stored=stored,
        busy=busy / statistics.median(quiet),
        why=why,
        mib=mib,
    )


def main():
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled for a minute
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    engine = make_engine()
    for _ in range(QUIET_STEPS):
        step(engine)
    with adapter.Checkpointer(engine, f"{SETTINGS['directory']}/ours", keep_last=1) as ckpt:
        ckpt.prepare()
        for number in range(2 * SETTINGS["saves"]):
            dist.barrier()
            one(engine, ckpt, number)
    del engine
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)


if __name__ == "__main__":
    main()
