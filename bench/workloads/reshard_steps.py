"""Sharded state of BENCH_MIB, saved once to memory and to disk. A life that finds it loads it thrice: by
phalanx.checkpoint.dcp, by stock dcp.load() from disk, whose files are dropped from the page cache before, and once
more by that, from the page cache: what torch's planner and copies take when no byte has to be fetched.

Events: saved, loaded (seconds, source), stock (seconds), bound (seconds), each when all ranks have come so far.
"""

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as stock
from phalanx.checkpoint import Storage
from phalanx.checkpoint.dcp import Checkpointer
from tell import tell
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

WIDTH = 1024
LAYER_MIB = WIDTH * WIDTH * 4 >> 20


def made():
    layers = int(os.environ["BENCH_MIB"]) // LAYER_MIB
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def timed(what):
    dist.barrier()
    began = time.monotonic()
    what()
    dist.barrier()
    return time.monotonic() - began


def drop_from_page_cache(folder):
    for path in folder.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = made()
    directory = Path(os.environ["BENCH_DIRECTORY"])
    ckpt = Checkpointer(directory)
    state, found = {"model": model}, []
    seconds = timed(lambda: found.append(ckpt.load(state)))
    if found[0] == 0:
        assert ckpt.save(1, state, storage=Storage.DISK).wait_stored()
        dist.barrier()
        tell("saved")
        signal.pause()
    tell("loaded", seconds=seconds, source=ckpt.source)
    if dist.get_rank() == 0:
        drop_from_page_cache(directory / "1")
    loaded = {"model": get_model_state_dict(model)}
    for name in ("stock", "bound"):
        tell(name, seconds=timed(lambda: stock.load(loaded, checkpoint_id=directory / "1")))
    signal.pause()


if __name__ == "__main__":
    main()
