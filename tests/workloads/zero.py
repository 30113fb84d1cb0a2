"""A few steps of ZeRO-1 on the CPU with the DeepSpeed config of a file. Rank 0 says which batch it trains with, and
which one it should, asked as ms-swift does."""

import json
import sys

import deepspeed
import torch
import torch.distributed as dist
from leaving import leave_group


def expected(path):
    from deepspeed.elasticity import compute_elastic_config
    from deepspeed.git_version_info import version

    with open(path) as file:
        config = json.load(file)
    size = dist.get_world_size()
    batch, _, micro_batch = compute_elastic_config(config, version, world_size=size)
    return [batch, micro_batch, max(1, batch // (micro_batch * size))]


def main(path, steps):
    # A faster all-reduce, which would be compiled for a minute.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=path)
    micro_batch, accumulation = engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps()
    for _ in range(steps * accumulation):
        engine.backward(engine(torch.randn(micro_batch, 8)).square().mean())
        engine.step()
    told = {
        "version": deepspeed.__version__,
        "batch": [engine.train_batch_size(), micro_batch, accumulation],
        "expected": expected(path),
        "steps": engine.global_steps,
        "zero": engine.zero_optimization_stage(),
    }
    if dist.get_rank() == 0:
        print(json.dumps(told), flush=True)  # leave_group() flushes nothing
    del engine, optimizer, model  # the group that they use goes
    leave_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
