"""Universal checkpoints, from which DeepSpeed goes on with any number of data-parallel ranks: what its own
ds_to_universal.py makes of a step of ZeRO 1 or 2, file by file, in a second instead of in new processes."""

import os
import re
import shutil

import torch
from torch import serialization

_OPTIMIZER = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_00_optim_states\.pt")
_MODEL = "mp_rank_00_model_states.pt"
_INFO = "universal_checkpoint_info"
_STATES = ("fp32", "exp_avg", "exp_avg_sq")
_OF_RANKS = ("base_optimizer_state", "param_slice_mappings", "single_partition_of_fp32_groups")
_STOCK = "DeepSpeed's ds_to_universal.py converts it"


class Refused(Exception):
    """What cannot be converted here; the text says why."""


def convert(source, target):
    """Converts the step in the folder `source` (global_stepN) to the folder `target`, which is there when it is whole,
    and named by `latest_universal` beside it then. Each file of the step is mapped, and nothing in it is written."""
    names = os.listdir(source)
    ranks = {int(found[1]): name for name in names for found in [_OPTIMIZER.fullmatch(name)] if found}
    if _MODEL not in names or sorted(ranks) != list(range(len(ranks))) or not ranks:
        raise Refused(f"{source} is no whole step of ZeRO 1 or 2 with one model-parallel rank. {_STOCK}")
    if any(name.startswith("mp_rank_") and name != _MODEL for name in names):
        raise Refused(f"{source} has several model-parallel ranks. {_STOCK}")
    model = _loaded(source, _MODEL)
    if model.get(_INFO):
        raise Refused(f"{source} says by {_INFO} how its parameters are to be joined. {_STOCK}")
    shards = [_loaded(source, ranks[rank])["optimizer_state_dict"] for rank in range(len(ranks))]
    new = f"{target}.new"
    shutil.rmtree(new, ignore_errors=True)
    shapes = {name: shape for group in model["param_shapes"] for name, shape in group.items()}
    for name, shape in shapes.items():
        _write_parameter(os.path.join(new, "zero", name), _fragments(shards, name), shape)
    _save({**_common(shards[0])}, os.path.join(new, "zero", "optimizer_state.pt"))
    shutil.copyfile(os.path.join(source, _MODEL), os.path.join(new, _MODEL))
    shutil.rmtree(target, ignore_errors=True)
    os.rename(new, target)
    folder, name = os.path.split(target)
    write_text(os.path.join(folder, "latest_universal"), name)


def write_text(path, text):
    """Replaces the file, from one moment to the next."""
    with open(f"{path}.new", "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)


def _loaded(folder, name):
    return torch.load(os.path.join(folder, name), map_location="cpu", mmap=True, weights_only=False)


def _common(shard):
    """What is the same on all ranks."""
    common = {key: value for key, value in shard.items() if key not in _OF_RANKS}
    return {**common, "param_groups": shard["base_optimizer_state"]["param_groups"]}


def _fragments(shards, name):
    """[{state: the part of that parameter}] of the ranks that have one, in their order."""
    found = []
    for shard in shards:
        for group, mapping in enumerate(shard["param_slice_mappings"]):
            if name in mapping:
                state = shard["base_optimizer_state"]["state"][group]
                flat = {**state, "fp32": shard["single_partition_of_fp32_groups"][group]}
                at = mapping[name]
                parts = {key: flat[key].narrow(0, at.start, at.numel) for key in _STATES}
                found.append({**parts, "step": flat.get("step")})
    return found


def _write_parameter(folder, fragments, shape):
    if not fragments:
        raise Refused(f"no rank has a part of {os.path.basename(folder)}")
    for key in _STATES:
        whole = torch.cat([each[key] for each in fragments], dim=0).reshape(shape)
        _save({"cat_dim": 0, "param": whole}, os.path.join(folder, f"{key}.pt"))
    if fragments[0]["step"] is not None:
        _save(fragments[0]["step"], os.path.join(folder, "step.pt"))


def _save(state, path):
    """A trainer may have another function in the place of torch.save."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        serialization.save(state, file)
        file.flush()
        os.fsync(file.fileno())
