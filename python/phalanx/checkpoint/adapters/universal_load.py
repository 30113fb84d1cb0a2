"""A DeepSpeed engine goes on from what another number of ranks, or another stage of ZeRO, has saved."""

import contextlib
import os
import shutil

import torch
import torch.distributed as dist

from phalanx.checkpoint import universal
from phalanx.checkpoint.ranks import place
from phalanx.checkpoint.universal import source

_FOLDER, _NAME = ".universal", "universal"


@contextlib.contextmanager
def converted(engine, given, directory, stage, why):
    """The folder of a universal checkpoint made of `given`, a source of phalanx.checkpoint.universal, for ZeRO `stage`;
    the engine takes it for one meanwhile. Behind that it has the rest too, and the folder goes. All ranks call it
    together. `why` it is not loaded as it is. RuntimeError."""
    outer = os.path.join(directory, _FOLDER)
    folder = os.path.join(outer, _NAME)
    why_not = _of_rank_0(lambda: _why_not(given, folder, stage))
    if why_not is not None:
        raise RuntimeError(f"phalanx.checkpoint: {why}, and it cannot be converted: {why_not}")
    with _loads_universal(engine):
        yield folder
    _take_the_rest(engine, folder)
    if not place.is_together() or _last_of_all_is_rank_0():
        shutil.rmtree(outer, ignore_errors=True)


def _why_not(given, folder, stage):
    try:
        universal.convert(given, folder, tracker=None, stage=stage)
    except (universal.Refused, OSError) as error:
        return str(error)
    return None


@contextlib.contextmanager
def _loads_universal(engine):
    """Until this is over, and then what its config says."""
    config = engine._config
    before, config.load_universal_checkpoint = config.load_universal_checkpoint, True
    try:
        yield
    finally:
        config.load_universal_checkpoint = before


def _take_the_rest(engine, folder):
    """Buffers, and weights that are not trained: DeepSpeed takes them of no universal checkpoint."""
    given = source.Folder(folder)
    name = next(name for name in given.names() if name.endswith("_model_states.pt"))
    saved = given.load(name, check=False).get("module") or {}
    weights = [(name, each) for name, each in engine.module.named_parameters() if not each.requires_grad]
    with torch.no_grad():
        for name, tensor in (*engine.module.named_buffers(), *weights):
            if isinstance(saved.get(name), torch.Tensor) and saved[name].shape == tensor.shape:
                tensor.copy_(saved[name])


def _of_rank_0(make):
    """What make() gives on rank 0."""
    if not place.is_together():
        return make()
    given = [make() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(given, src=0)
    return given[0]


def _last_of_all_is_rank_0():
    """Behind all other ranks."""
    dist.barrier()
    return dist.get_rank() == 0
