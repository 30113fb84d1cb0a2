"""Trains the GPT of tiny_megatron.py, loads it and saves it as Megatron-LM's own checkpointing does, with nothing of
ours: at the places where that looks, by torch.load and torch.save, or by megatron-core's dist_checkpointing."""

import argparse
import os
import random

import numpy
import tiny_megatron
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, mpu, tensor_parallel
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.dist_checkpointing.serialization import get_default_save_sharded_strategy
from report import report

parser = argparse.ArgumentParser()
parser.add_argument("--save")
parser.add_argument("--load")
parser.add_argument("--tp", type=int, default=2)
parser.add_argument("--pp", type=int, default=2)
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--distributed", action="store_true")
parser.add_argument("--ckpt-format", default="torch")
parser.add_argument("--no-load-rng", action="store_true")
options = parser.parse_args()
METADATA = {
    "singleton_local_shards": False,
    "chained_optim_avoid_prefix": True,
    "distrib_optim_sharding_type": "fully_reshardable",
    "distrib_optim_fully_reshardable_mem_efficient": True,
}


def folder_of(directory, iteration):
    return os.path.join(directory, f"iter_{iteration:07d}")


def file_of(directory, iteration, name="model_optim_rng.pt"):
    stage = f"_{mpu.get_pipeline_model_parallel_rank():03d}" if options.pp > 1 else ""
    part = f"mp_rank_{mpu.get_tensor_model_parallel_rank():02d}{stage}"
    return os.path.join(folder_of(directory, iteration), part, name)


def random_states():
    return {
        "random_rng_state": random.getstate(),
        "np_rng_state": numpy.random.get_state(),
        "torch_rng_state": torch.get_rng_state(),
        "cuda_rng_state": torch.cuda.get_rng_state(),
        "rng_tracker_states": tracker().get_states(),
    }


def tracker():
    return tensor_parallel.get_cuda_rng_tracker()


def state_of(iteration, model, optimizer, scheduler, is_loading=False):
    """Of dist_checkpointing."""
    metadata = {**METADATA, "dp_cp_group": mpu.get_data_parallel_group(with_context_parallel=True)}
    state = {"checkpoint_version": 3.0, "iteration": iteration, "num_floating_point_operations_so_far": 7}
    state["model"] = model[0].module.sharded_state_dict(metadata=metadata)
    state["optimizer"] = optimizer.sharded_state_dict(state, is_loading=is_loading, metadata=metadata)
    state["opt_param_scheduler"] = scheduler.state_dict()
    if is_loading and options.no_load_rng:
        return state
    place = mpu.get_pipeline_model_parallel_rank(), mpu.get_tensor_model_parallel_rank()
    replica = mpu.get_data_parallel_rank(with_context_parallel=True)
    state["rng_state"] = ShardedObject(
        "rng_state", [random_states()], (options.pp, options.tp), place, replica_id=replica
    )
    return state


def save(iteration, model, optimizer, scheduler):
    if options.ckpt_format == "torch_dist":
        folder = folder_of(options.save, iteration)
        os.makedirs(folder, exist_ok=True)
        dist.barrier()
        state = state_of(iteration, model, optimizer, scheduler)
        dist_checkpointing.save(state, folder, get_default_save_sharded_strategy(), content_metadata=METADATA)
    else:
        path = file_of(options.save, iteration)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if options.distributed:
            optimizer.save_parameter_state(file_of(options.save, iteration, "distrib_optim.pt"))
        state = {"checkpoint_version": 3.0, "iteration": iteration, "num_floating_point_operations_so_far": 7}
        state["model"] = model[0].module.state_dict_for_save_checkpoint()
        state["optimizer"] = optimizer.state_dict()
        state["opt_param_scheduler"] = scheduler.state_dict()
        state["rng_state"] = [random_states()]
        if mpu.get_data_parallel_rank() == 0:
            torch.save(state, path)
    dist.barrier()
    if dist.get_rank() == 0:
        with open(os.path.join(options.save, "latest_checkpointed_iteration.txt"), "w") as file:
            file.write(str(iteration))


@torch.no_grad()  # megatron-core writes into weights in fp32
def load(model, optimizer, scheduler):
    with open(os.path.join(options.load, "latest_checkpointed_iteration.txt")) as file:
        iteration = int(file.read().strip())
    if options.ckpt_format == "torch_dist":
        wanted = state_of(0, model, optimizer, scheduler, is_loading=True)
        state = dist_checkpointing.load(wanted, folder_of(options.load, iteration))
    else:
        state = torch.load(file_of(options.load, iteration), map_location="cpu", weights_only=False)
    model[0].load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    if options.distributed and options.ckpt_format == "torch":
        optimizer.load_parameter_state(file_of(options.load, iteration, "distrib_optim.pt"))
    scheduler.load_state_dict(state["opt_param_scheduler"])
    if "rng_state" in state:
        random.setstate(state["rng_state"][0]["random_rng_state"])
        torch.set_rng_state(state["rng_state"][0]["torch_rng_state"])
        tracker().set_states(state["rng_state"][0]["rng_tracker_states"])
    return state["iteration"]


def main():
    report("main")
    tiny_megatron.begin(options.tp, options.pp)
    of_training = tiny_megatron.make(options.distributed)
    step = load(*of_training) if options.load else 0
    report("loaded", n=step, state=tiny_megatron.digest(*of_training))
    while step < options.steps:
        step += 1
        loss = tiny_megatron.train_step(*of_training, step)
        report("step", n=step, loss=loss, state=tiny_megatron.digest(*of_training))
    if options.save:
        save(step, *of_training)
    report("done", state=tiny_megatron.digest(*of_training))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":  # of a save, megatron-core starts processes that import this
    main()
