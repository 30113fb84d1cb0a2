"""Megatron-LM's save_checkpoint() and load_checkpoint(), through memory; also of megatron-core alone, without
megatron.training.

    from phalanx.checkpoint.adapters.megatron import StorageType, load_checkpoint, save_checkpoint

    iteration, flops = load_checkpoint(model, optimizer, opt_param_scheduler)
    save_checkpoint(iteration, model, optimizer, opt_param_scheduler, flops, storage_type=StorageType.MEMORY)

`<save>/iter_0001200` and the tracker are Megatron's own, and it reads them without us.
docs/frameworks/megatron.md is for users.
"""

import enum
import os

from phalanx.checkpoint.adapters import megatron_stock
from phalanx.checkpoint.adapters.megatron_checkpointer import WHO, Checkpointer
from phalanx.checkpoint.handle import Storage

__all__ = ["Checkpointer", "StorageType", "load_checkpoint", "save_checkpoint", "use", "wait_latest_checkpoint"]

_used = {}  # directory -> Checkpointer that the functions save and load by


class StorageType(enum.Enum):
    """Where save_checkpoint() saves to."""

    MEMORY = 0
    DISK = 1


def use(checkpointer):
    """The functions go through this Checkpointer, with its settings, for its directory. Returns it."""
    _used[checkpointer.directory] = checkpointer
    return checkpointer


def save_checkpoint(
    iteration,
    model,
    optimizer,
    opt_param_scheduler,
    num_floating_point_operations_so_far=0,
    *more,
    storage_type=StorageType.DISK,
    storage=None,
    comm_backend="",
    save_timeout=600,
    replica_count=0,
    args=None,
    **named,
):
    """As Megatron's, for all ranks together, but that it returns before anything is written: a SaveHandle. `args`:
    where Megatron-LM has none, what has `save`, the directory. `comm_backend` and `save_timeout` are not needed.
    Further arguments are Megatron's own."""
    checkpointer = _of(args, "save", storage, replica_count)
    is_to_disk = getattr(storage_type, "name", storage_type) == StorageType.DISK.name
    given = (iteration, model, optimizer, opt_param_scheduler, num_floating_point_operations_so_far, *more)
    return checkpointer.save(*given, storage=Storage.DISK if is_to_disk else Storage.MEMORY, args=args, **named)


def load_checkpoint(
    model,
    optimizer,
    opt_param_scheduler,
    load_arg="load",
    strict=True,
    *more,
    storage=None,
    comm_backend="",
    save_timeout=600,
    replica_count=0,
    args=None,
    **named,
):
    """(iteration, num_floating_point_operations_so_far), as Megatron's, for all ranks together: of the newest that all
    ranks have in memory, else on disk; (0, 0) where there is none. `args` as of save_checkpoint(), with `load`."""
    checkpointer = _of(args, load_arg, storage, replica_count)
    return checkpointer.load(model, optimizer, opt_param_scheduler, load_arg, strict, *more, args=args, **named)


def wait_latest_checkpoint(timeout=600):
    """Waits until what was saved to disk is where it belongs, or will not be: TimeoutError behind so many seconds."""
    for checkpointer in list(_used.values()):
        checkpointer.wait_stored(timeout)


def _of(args, name, storage, replica_count):
    of = megatron_stock.args() if args is None else args
    if of is None:
        raise ValueError(
            f"{WHO}: args is not given, and Megatron-LM has none here: expected "
            "args=argparse.Namespace(save=directory, load=directory)"
        )
    directory = getattr(of, "save", None) or getattr(of, name, None)
    if not directory:
        raise ValueError(f"{WHO}: args.save is {directory!r}; expected the directory of the checkpoints")
    if storage is not None:
        raise TypeError(
            f"{WHO}: storage is given; expected none: use(Checkpointer(directory, keep_last=3)) says what stays there, "
            "and the directory is in a file system that all nodes see"
        )
    directory = os.path.abspath(directory)
    if directory not in _used:
        use(Checkpointer(directory, ckpt_format=_format_of(of)))
    own, wanted = _used[directory].ckpt_format, _format_of(of)
    if megatron_stock.is_here(args) and own != wanted:
        raise ValueError(
            f"{WHO}: ckpt_format is {wanted!r} in Megatron's args, and {own!r} in the Checkpointer of {directory}: "
            "give both the same"
        )
    _used[directory].tell_of_replicas(replica_count)
    return _used[directory]


def _format_of(args):
    """Megatron-LM writes that of ckpt_format where use_dist_ckpt is set, as it does by itself; and torch else."""
    is_dist = getattr(args, "use_dist_ckpt", True)
    return getattr(args, "ckpt_format", "torch") if is_dist else "torch"
