"""A DeepSpeed engine goes on from what another number of ranks, or another stage of ZeRO, has saved."""

import contextlib
import datetime
import os
import shutil

import torch
import torch.distributed as dist

from phalanx.checkpoint import universal
from phalanx.checkpoint.adapters import zero_files
from phalanx.checkpoint.ranks import place
from phalanx.checkpoint.universal import alone, source

_FOLDER, _NAME = ".universal", "universal"
# The others wait for rank 0 in the job's store: a collective of the group has a time limit of minutes, and a large step
# on shared storage may take longer.
_CONVERTED_WITHIN = datetime.timedelta(hours=12)
_GROUPS = ("bit16_groups", "bf16_groups", "fp16_groups")  # an optimizer's parameters, of which it has one


@contextlib.contextmanager
def converted(engine, given, directory, stage, why):
    """The folder of a universal checkpoint made of `given`, a source of phalanx.checkpoint.universal, for ZeRO `stage`;
    the engine takes it for one meanwhile. Behind that it has the rest too, and the folder goes. All ranks call it
    together; other jobs that load from the directory meanwhile have folders of their own. `why` it is not loaded as it
    is. RuntimeError."""
    outer = os.path.join(directory, _FOLDER)
    own = os.path.join(outer, _of_rank_0(lambda: os.urandom(8).hex()))
    folder = os.path.join(own, _NAME)
    with contextlib.ExitStack() as held:
        why_not = _told_by_rank_0(os.path.basename(own), lambda: _why_not(given, own, stage, held))
        if why_not is not None:
            raise RuntimeError(f"phalanx.checkpoint: {why}, and it cannot be converted: {why_not}")
        with _loads_universal(engine):
            yield folder
        _take_the_rest(engine, folder)
        if not place.is_together() or _last_of_all_is_rank_0():
            _remove(own)
            with contextlib.suppress(OSError):
                os.rmdir(outer)


def _why_not(given, own, stage, held):
    """None: it is there, and locked until `held` is closed: so that others see that it is in use."""
    try:
        held.callback(os.close, _locked(own))
        universal.convert(given, os.path.join(own, _NAME), tracker=None, stage=stage)
    except (universal.Refused, OSError) as error:
        _remove(own)
        return str(error)
    return None


def _locked(own):
    """A descriptor of its lock. OSError."""
    outer = os.path.dirname(own)
    while True:
        os.makedirs(outer, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # another job has removed it, behind its own load
            _remove_left(outer)
            return alone.locked(f"{own}.lock")


def _remove_left(outer):
    """What loads have left there that were killed."""
    for name in os.listdir(outer):
        own, kind = os.path.splitext(os.path.join(outer, name))
        lock = alone.locked_at_once(f"{own}.lock") if kind == ".lock" else None
        if lock is not None:
            _remove(own)
            os.close(lock)


def _remove(own):
    shutil.rmtree(own, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.unlink(f"{own}.lock")


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
    """Buffers, and weights that no optimizer has: DeepSpeed takes them of no universal checkpoint."""
    given = source.Folder(folder)
    name = next(name for name in given.names() if name.endswith(zero_files.MODEL_STATES))
    saved = given.load(name, check=False).get("module") or {}
    groups = next((found for found in (getattr(engine.optimizer, name, None) for name in _GROUPS) if found), ())
    has_groups, trained = bool(groups), {id(each) for group in groups for each in group}
    weights = [
        (name, each)
        for name, each in engine.module.named_parameters()
        if (id(each) not in trained if has_groups else not each.requires_grad)
    ]
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


def _told_by_rank_0(name, make):
    """The text or None that make() gives on rank 0, however long that takes there. RuntimeError. `name`: of this
    question alone."""
    if not place.is_together():
        return make()
    store = dist.PrefixStore(f"phalanx.checkpoint/universal/{name}", dist.distributed_c10d._get_default_store())
    if dist.get_rank() != 0:
        try:
            store.wait(["done"], _CONVERTED_WITHIN)
        except dist.DistStoreError as error:
            raise RuntimeError(
                f"phalanx.checkpoint: rank 0 has not told whether it could be converted: {error}"
            ) from None
        return store.get("done").decode() or None
    told = "rank 0 has failed"
    try:
        told = make() or ""
    finally:
        store.set("done", told)
    return told or None


def _last_of_all_is_rank_0():
    """Behind all other ranks."""
    dist.barrier()
    return dist.get_rank() == 0
