"""What Megatron's checkpoints hold, of megatron-core's objects: asked from them and given back to them, where there is
no megatron.training that does it."""

import random

import numpy as np
import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.optimizer import DistributedOptimizer

from phalanx.checkpoint.adapters import captured, megatron_layout

_VERSION = 3.0  # of the state: how query, key and value lie in a matrix


def chunks_of(model):
    """[module] of the virtual pipeline stages of this rank, without what wraps them."""
    chunks = list(model) if isinstance(model, (list, tuple)) else [model]
    return [_unwrapped(each) for each in chunks]


def _unwrapped(module):
    while isinstance(getattr(module, "module", None), torch.nn.Module):
        module = module.module
    return module


def synchronize(model):
    """Weights that the next forward pass would fetch from other ranks are fetched now: they are of this step."""
    for chunk in model if isinstance(model, (list, tuple)) else [model]:
        config = getattr(chunk, "ddp_config", None)
        if getattr(config, "overlap_param_gather", False):
            chunk.start_param_sync(force_sync=True)


def optimizers_of(optimizer):
    """[optimizer of megatron-core] that it chains."""
    if optimizer is None or getattr(optimizer, "is_stub_optimizer", False):
        return []
    return [each for each in getattr(optimizer, "chained_optimizers", [optimizer]) if not _is_stub(each)]


def _is_stub(optimizer):
    return getattr(optimizer, "is_stub_optimizer", False)


def torch_optimizers_of(optimizer):
    """Those that make the steps."""
    inner = [getattr(each, "optimizer", each) for each in optimizers_of(optimizer)]
    return [each for each in inner if isinstance(each, torch.optim.Optimizer)]


def written_by(expanded, modules, optimizers):
    """`expanded`, with what only steps of these optimizers write: weights are written when the inner optimizer has made
    its step on copies of them."""
    expanded.modules += modules
    expanded.optimizers += optimizers
    expanded.behind_steps = [weight for module in modules for weight in module.parameters()]
    return expanded


def is_distributed(optimizer):
    return any(isinstance(each, DistributedOptimizer) for each in optimizers_of(optimizer))


def why_not_loaded(optimizer):
    """Why megatron-core could not load what it gives for distrib_optim.pt, in a sentence, or None."""
    if not is_distributed(optimizer):
        return None
    kinds = {type(each) for each in torch_optimizers_of(optimizer)}
    if not kinds.intersection((torch.optim.Adam, torch.optim.AdamW)):
        return None
    return (
        "the distributed optimizer has torch's own Adam, whose counts of steps megatron-core cannot load from "
        "distrib_optim.pt: install apex or Transformer Engine, or do without the distributed optimizer"
    )


def layout():
    """Of this rank."""
    sizes = (
        parallel_state.get_tensor_model_parallel_world_size(),
        parallel_state.get_pipeline_model_parallel_world_size(),
        parallel_state.get_expert_model_parallel_world_size(),
    )
    return megatron_layout.Layout(
        parallel_state.get_tensor_model_parallel_rank(),
        parallel_state.get_pipeline_model_parallel_rank(),
        parallel_state.get_expert_model_parallel_rank(),
        sizes,
    )


def shapes_of(state):
    """{name: shape} of the weights in a checkpoint's state, or in a model's own."""
    found = {}
    for key, weights in state.items():
        if key == "model" or (key.startswith("model") and key[5:].isdecimal()):
            tensors = {name: value for name, value in weights.items() if isinstance(value, torch.Tensor)}
            found.update({f"{key}.{name}": tuple(value.shape) for name, value in tensors.items()})
    return {name: shape for name, shape in found.items() if not name.endswith("_extra_state")}


def weights_of(model):
    """{"model": state}, or {"model0": state, ..}, as a checkpoint names them."""
    chunks = chunks_of(model)
    names = ["model"] if len(chunks) == 1 else [f"model{i}" for i in range(len(chunks))]
    return {name: _state_of(chunk) for name, chunk in zip(names, chunks)}


def _state_of(chunk):
    ask = getattr(chunk, "state_dict_for_save_checkpoint", chunk.state_dict)
    return ask()


# --- to be saved


def collect(args, iteration, model, optimizer, scheduler, flops, folder):
    """{path below the iteration's folder: state} of the files that are this rank's. All ranks call it together.
    `folder`: an empty one, which stays so."""
    own, found = layout(), {}
    random_states = _random_states(getattr(args, "data_parallel_random_init", False))
    if is_distributed(optimizer):
        with captured.saves_below(folder) as saved:
            optimizer.save_parameter_state(f"{folder}/{own.path(megatron_layout.OPTIMIZER)}")
        found.update(saved)
    if parallel_state.get_expert_data_parallel_rank() == 0:
        state = {**_beginning(args, iteration), **weights_of(model)}
        if optimizers_of(optimizer):
            state["optimizer"] = optimizer.state_dict()
        if scheduler is not None:
            state["opt_param_scheduler"] = scheduler.state_dict()
        state["rng_state"] = random_states
        state["num_floating_point_operations_so_far"] = flops
        found[own.path(megatron_layout.MODEL)] = state
    return found


def _beginning(args, iteration):
    """Megatron compares the args with its own where there are some: what has none of a model's is left out."""
    return {
        **({"args": args} if hasattr(args, "num_layers") else {}),
        "checkpoint_version": _VERSION,
        "iteration": iteration,
    }


def content_metadata(optimizer):
    """How the state of sharded() is shared out, as it is written into a checkpoint."""
    found = {"singleton_local_shards": False, "chained_optim_avoid_prefix": True}
    if is_distributed(optimizer):
        found["distrib_optim_sharding_type"] = "fully_reshardable"
        found["distrib_optim_fully_reshardable_mem_efficient"] = not torch.cuda.is_available()
    return found


def sharded(args, iteration, model, optimizer, scheduler, flops, metadata, is_loading=False, with_random=True):
    """The state for megatron-core's dist_checkpointing: to be saved, or to be loaded into."""
    metadata = {**metadata, "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}
    state = _beginning(args, iteration)
    chunks = chunks_of(model)
    for at, chunk in enumerate(chunks):
        state["model" if len(chunks) == 1 else f"model{at}"] = chunk.sharded_state_dict(metadata=metadata)
    if optimizers_of(optimizer):
        state["optimizer"] = optimizer.sharded_state_dict(state, is_loading=is_loading, metadata=metadata)
    if scheduler is not None:
        state["opt_param_scheduler"] = scheduler.state_dict()
    if with_random:
        states = _random_states(getattr(args, "data_parallel_random_init", False))
        own, sizes = place_of_random_numbers()
        replica = parallel_state.get_data_parallel_rank(with_context_parallel=True)
        state["rng_state"] = ShardedObject("rng_state", states, sizes, own, replica_id=replica)
    state["num_floating_point_operations_so_far"] = flops
    return state


def place_of_random_numbers():
    """(this rank's, how many there are), of pipeline and tensor parallel ranks."""
    own = parallel_state.get_pipeline_model_parallel_rank(), parallel_state.get_tensor_model_parallel_rank()
    sizes = (
        parallel_state.get_pipeline_model_parallel_world_size(),
        parallel_state.get_tensor_model_parallel_world_size(),
    )
    return own, sizes


def _random_states(is_of_each_rank):
    """Of this rank; with data_parallel_random_init those of all data-parallel ranks."""
    own = {
        "random_rng_state": random.getstate(),
        "np_rng_state": np.random.get_state(),
        "torch_rng_state": torch.get_rng_state(),
        "rng_tracker_states": tensor_parallel.get_cuda_rng_tracker().get_states(),
    }
    if torch.cuda.is_available():
        own["cuda_rng_state"] = torch.cuda.get_rng_state()
    size = parallel_state.get_data_parallel_world_size()
    if not is_of_each_rank or size == 1:
        return [own]
    states = [None] * size
    torch.distributed.all_gather_object(states, own, group=parallel_state.get_data_parallel_group())
    return states


# --- and given back


def give_back(state, model, optimizer, scheduler, strict, weights_only=False, load_optimizer=None):
    """Loads a state of collect(), or one of sharded() that was loaded. `load_optimizer()` is called for what the
    distributed optimizer has in a file of its own. `weights_only`: nothing else."""
    chunks = chunks_of(model)
    for at, chunk in enumerate(chunks):
        chunk.load_state_dict(state["model" if len(chunks) == 1 else f"model{at}"], strict=strict)
    if weights_only:
        if optimizers_of(optimizer):
            optimizer.reload_model_params()
        return
    if optimizers_of(optimizer):
        optimizer.load_state_dict(state["optimizer"])
        if load_optimizer is not None and is_distributed(optimizer):
            load_optimizer()
    if scheduler is not None:
        scheduler.load_state_dict(state["opt_param_scheduler"])
    if "rng_state" in state:
        _give_back_random_states(state["rng_state"])


def _give_back_random_states(states):
    own = states[parallel_state.get_data_parallel_rank() if len(states) > 1 else 0]
    random.setstate(own["random_rng_state"])
    np.random.set_state(own["np_rng_state"])
    torch.set_rng_state(own["torch_rng_state"])
    if torch.cuda.is_available() and "cuda_rng_state" in own:
        torch.cuda.set_rng_state(own["cuda_rng_state"])
    if own["rng_tracker_states"]:
        tensor_parallel.get_cuda_rng_tracker().set_states(own["rng_tracker_states"])
