"""Which memory stays as it is until the next optimizer step, and how that step is made to wait.

What an optimizer alone writes may be copied while the training goes on, provided that its step is seen before it
writes: torch calls a global hook then. An optimizer is trusted once that hook was seen to fire, and only as long as it
fires for each of its steps.
"""

import bisect
import contextlib
import os
import sys
import weakref

import torch
from torch.optim import optimizer as torch_optimizer

from phalanx.checkpoint import describing
from phalanx.checkpoint.state.refuse import local_part, storage_identity

_guards = weakref.WeakSet()
_hook = None  # torch's handle of the global hook, once it is there


class Guard:
    """Watches optimizers for one Checkpointer. `wait()` is called before each step writes while `armed` is set."""

    def __init__(self, wait):
        self._wait = weakref.WeakMethod(wait)
        self.armed = False
        self._seen = weakref.WeakKeyDictionary()  # optimizer -> _Seen
        self.off = why_not_with(torch.__version__)  # why nothing is copied later (any more), or None
        _install()
        _guards.add(self)

    def before_step(self, optimizer):
        seen = self._seen.get(optimizer)
        if seen is None:
            seen = self._seen[optimizer] = _Seen()
        seen.fired += 1
        if is_capturing():
            seen.captured = True

    def wait(self):
        wait = self._wait() if self.armed else None
        if wait is not None:
            wait()

    def trusted(self, optimizers):
        """(trusted optimizers, others that may step unseen, why others are not trusted or None). `optimizers`: those
        of the state; without any, all that were seen to step."""
        if self.off is not None:
            return [], [], self.off
        known = list(optimizers) or list(self._seen.keys())
        if not known:
            return [], [], "no optimizer is in the state and none was seen to step since the last save"
        reasons = {optimizer: self._why_not(optimizer) for optimizer in known}
        why = sorted({reason for reason in reasons.values() if reason})
        trusted = [optimizer for optimizer in known if not reasons[optimizer]]
        # One that is known by its steps alone, and has made none, was perhaps replaced by another for the same weights.
        others = [each for each in known if reasons[each] and (optimizers or self._seen[each].fired)]
        return trusted, others, "; ".join(why) or None

    def mark(self, optimizers):
        """A save begins: steps are counted from here."""
        if self.off is not None:
            return  # nothing is copied later, so nobody asks for steps
        for optimizer in {*optimizers, *self._seen.keys()}:
            seen = self._seen.get(optimizer)
            if seen is None:
                seen = self._seen[optimizer] = _Seen()
            seen.fired = 0
            seen.step_at_mark = step_of(optimizer)

    def close(self):
        self.armed = False
        _guards.discard(self)

    def _why_not(self, optimizer):
        name = type(optimizer).__name__
        if getattr(optimizer, "_overlap_with_ddp", False):
            return f"{name} with overlap_with_ddp steps inside the backward pass"
        seen = self._seen.get(optimizer)
        if seen is None or seen.fired == 0:
            return f"no step of {name} was seen since the last save"
        if seen.captured:
            return f"{name} steps inside a CUDA graph, where no hook runs"
        if seen.step_at_mark is not None:
            step = step_of(optimizer)
            if step is not None and step - seen.step_at_mark > seen.fired:
                return (
                    f"{name} made {step - seen.step_at_mark:g} steps since the last save and its hook "
                    f"ran before {seen.fired} of them"
                )
        has_fsdp = "torch.distributed.fsdp" in sys.modules  # an attribute that is missing takes longer to find
        if has_fsdp and any(hasattr(parameter, "_fsdp_flattened") for parameter in parameters_of(optimizer)):
            return "FSDP frees and moves parameters during the forward and backward pass"
        return None


class _Seen:
    """What is known of one optimizer."""

    __slots__ = ("captured", "fired", "step_at_mark")

    def __init__(self):
        self.fired = 0  # times that the hook ran since the last save
        self.captured = False
        self.step_at_mark = None


def why_not_with(version):
    """Why no optimizer of this torch can be trusted, or None. torch.compile takes the hooks off all optimizer classes
    in versions before 2.4, at any time."""
    major, minor = (int(part) for part in version.split(".")[:2])
    return (
        f"torch {version} loses optimizer hooks to torch.compile; 2.4 and newer keep them"
        if (major, minor) < (2, 4)
        else None
    )


def parameters_of(optimizer):
    for group in optimizer.param_groups:
        yield from group["params"]


def step_of(optimizer):
    """How many steps the optimizer counts: the most of the first parameters of its groups. None where it counts none,
    or on a device, which would have to be waited for."""
    steps = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            entry = optimizer.state.get(parameter)
            if not entry:
                continue
            step = entry.get("step") if isinstance(entry, dict) else None
            if isinstance(step, torch.Tensor):
                step = step.item() if step.device.type == "cpu" and step.numel() == 1 else None
            if isinstance(step, (int, float)):
                steps.append(step)
            break
    return max(steps) if steps else None


def guarded_tensors(optimizers):
    """Parameters and states: all that these optimizers write."""
    found = []
    for optimizer in optimizers:
        # DeepSpeed's ZeRO 3 has parameters in the groups during its steps alone.
        found += list(parameters_of(optimizer)) or optimizer.state
        for entry in optimizer.state.values():
            if isinstance(entry, dict):
                found += entry.values()
    return [each for each in found if isinstance(each, torch.Tensor)]


class Written:
    """The memory that optimizers write, storage by storage."""

    def __init__(self, tensors):
        self._ranges = {}  # storage -> ([begin], [(end, tensor)]), ascending
        found = {}
        for tensor in tensors:
            identity, begin, end = _memory_of(tensor)
            if begin < end:
                found.setdefault(identity, {})[begin, end] = tensor
        for identity, ranges in found.items():
            ordered = sorted(ranges)
            ends = [(end, ranges[begin, end]) for begin, end in ordered]
            self._ranges[identity] = [begin for begin, _ in ordered], ends

    def tensors_over(self, identity, begin, end):
        """Tensors that take all of that memory between them; none where a part of it is none's."""
        begins, ends = self._ranges.get(identity, ((), ()))
        found = []
        for at in range(max(0, bisect.bisect_right(begins, begin) - 1), len(begins)):
            if begins[at] > begin:
                return []
            reach, tensor = ends[at]
            if reach > begin:
                found.append(tensor)
                begin = reach
            if begin >= end:
                return found
        return []


def _memory_of(tensor):
    """(storage, begin, end) of what a tensor takes; nothing where there are gaps in it."""
    local = local_part(tensor)
    identity = storage_identity(local)
    if identity is None:
        return None, 0, 0
    begin, count = local.data_ptr(), local.numel()
    if not local.is_contiguous() and 1 + sum((n - 1) * by for n, by in zip(local.shape, local.stride())) != count:
        return identity, begin, begin
    return identity, begin, begin + count * local.element_size()


def storages_of(tensors):
    return {storage_identity(tensor) for tensor in tensors} - {None}


def buffer_storages(modules):
    """Storages that the forward pass may write: those of buffers, also where a parameter lies in the same."""
    return storages_of(buffer for module in modules for buffer in module.buffers())


def fsdp1_in(modules):
    """Whether a module of these is, or holds, a FullyShardedDataParallel."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(fsdp, "FullyShardedDataParallel", None)
    return kind is not None and any(isinstance(inner, kind) for module in modules for inner in module.modules())


class Loading:
    """Has `wait()` called before a module or an optimizer of these loads a state dict, or anything in such a module, or
    around it, which loads it, too. Until remove()."""

    def __init__(self, modules, optimizers, wait):
        self._hook = hook = _BeforeLoading(wait)
        registers = (getattr(each, "register_load_state_dict_pre_hook", None) for each in optimizers)
        self._handles = [register(hook) for register in registers if register is not None]
        # A hook's handle of torch's takes some 7 us, and a model has a thousand modules.
        self._tables = [inner._load_state_dict_pre_hooks for module in modules for inner in module.modules()]
        for table in self._tables:
            table[hook] = hook

    def remove(self):
        for handle in self._handles:
            handle.remove()
        self._hook.wait = None
        for table in self._tables:
            # Whoever goes through it and calls the hook would stumble if others follow; it does nothing from now on.
            if not self._hook.is_running or next(reversed(table), None) is self._hook:
                table.pop(self._hook, None)


class _BeforeLoading:
    """In a copy of its module, also a pickled one, it does nothing: that is none of what is saved."""

    def __init__(self, wait=None):
        self.wait = wait
        self.is_running = False

    def __call__(self, *unused):
        if self.wait is not None:
            self.is_running = True
            try:
                self.wait()
            finally:
                self.is_running = False

    def __reduce__(self):
        return _BeforeLoading, ()


class Alarms:
    """The memory that is copied later, as it was when the save began. What has moved or was written since, other than
    by a step that waited, was perhaps torn. It proves nothing where it is silent: fused optimizers write unseen."""

    def __init__(self, records, tensors, versions, image):
        """`tensors[n]` has the version `versions[n]`, and lies in the record of number `records[n]`, perhaps with
        others."""
        self._records, self._tensors, self._versions, self._image = records, tensors, versions, image

    def what_changed(self):
        """(record number, sentence), or None."""
        found = describing.changed(self._image, self._records, self._tensors, self._versions)
        if found is None:
            return None
        position, is_moved = found
        if is_moved:
            return self._records[position], "its memory was moved or freed while it was copied"
        return self._records[position], "it was written while it was copied, by something else than an optimizer's step"


def _install():
    """Registers the one global hook of this process."""
    global _hook
    if _hook is None:
        _hook = torch_optimizer.register_optimizer_step_pre_hook(_before_step)
        os.register_at_fork(after_in_child=_forget_in_child)


def untraced(function):
    """For a hook of steps: torch.compile must not trace into it, since it is none of the graph's business what it does,
    or waits for."""
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = None
    function._torchdynamo_disable_recursive = True
    return function


@untraced
def _before_step(optimizer, args, kwargs):
    """Where the step has a closure, forward and backward pass are in there, as Lightning has it: what is copied is
    waited for behind it, before anything is written."""
    for guard in list(_guards):
        guard.before_step(optimizer)
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    if not callable(closure) or not _begins_with_closure(optimizer):
        _wait()
    if not callable(closure):
        return None

    def closure_and_wait(*given, **named):
        value = closure(*given, **named)
        _wait()  # also for a save that the script makes in there
        return value

    if len(args) > 1:
        return (args[0], closure_and_wait, *args[2:]), kwargs
    return args, {**kwargs, "closure": closure_and_wait}


def _wait():
    for guard in list(_guards):
        guard.wait()


def _begins_with_closure(optimizer):
    """As all of torch.optim's do. What another class has written by then nobody knows, nor what a hook has that comes
    behind ours."""
    is_last = next(reversed(torch_optimizer._global_optimizer_pre_hooks)) == _hook.id
    has_own = bool(optimizer._optimizer_step_pre_hooks)
    return is_last and not has_own and type(optimizer).step.__module__.startswith("torch.optim.")


@contextlib.contextmanager
def without_hooks(optimizer):
    """For steps that are none of the training's: nobody hears of them, neither Phalanx nor the script."""
    tables = [
        torch_optimizer._global_optimizer_pre_hooks,
        torch_optimizer._global_optimizer_post_hooks,
        getattr(optimizer, "_optimizer_step_pre_hooks", {}),  # a wrapper may have none
        getattr(optimizer, "_optimizer_step_post_hooks", {}),
    ]
    kept = [list(table.items()) for table in tables]
    for table in tables:
        table.clear()
    try:
        yield
    finally:
        for table, hooks in zip(tables, kept):
            table.update(hooks)


def _forget_in_child():
    """A forked child of the rank saves nothing: its steps are its own business."""
    _guards.clear()


def is_capturing():
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
