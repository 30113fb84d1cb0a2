"""Lets megatron-core, which is written for CUDA devices, compute on the CPU: what it asks of the device `cuda` is made
there. Imported before it, in an environment with TORCHDYNAMO_DISABLE=1: its fused functions would be compiled for
minutes."""

import torch
from torch.overrides import TorchFunctionMode


class OnCpu(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        if func is torch.Tensor.cuda:
            return args[0]
        found = func(*args, **kwargs)
        if func is torch.Tensor.type and isinstance(found, str):
            return found.replace("torch.", "torch.cuda.")
        return found


def begin():
    """For the whole process."""
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = lambda *device: None
    torch.cuda.manual_seed = torch.manual_seed
    for module in (torch.cuda, torch.cuda.random):
        module.get_rng_state = lambda device=None: torch.get_rng_state()
        module.set_rng_state = lambda state, device=None: torch.set_rng_state(state)
    from megatron.core.tensor_parallel import random

    random._set_cuda_rng_state = lambda state, device=-1, graph_safe=False: torch.set_rng_state(state)
    OnCpu().__enter__()
