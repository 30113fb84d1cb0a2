"""Keeps the batch of all ranks together the same when there are fewer of them: each makes more micro batches a step."""

import contextlib
import functools
import json
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dlrover.offered import BETTER, getter
from dlrover.python.common import env_utils
from dlrover.python.common.constants import ConfigPath, NodeEnv

OFFERED = {
    "ElasticTrainer": (
        BETTER,
        "with fix_total_batch_size gradients are the mean over the whole batch, so a smaller world takes the same "
        "steps; a world that cannot share the batch evenly is refused, and --elastic-config keeps it from coming about",
    )
}
__getattr__ = getter(__name__, {})

_REPORT_S = 15


class ElasticTrainer:
    """Belongs to the thread that trains.

        trainer = ElasticTrainer(model, dataloader)
        optimizer, scheduler = trainer.prepare(optimizer, scheduler)
        for data, target in dataloader:
            with trainer.step(fix_total_batch_size=True):
                optimizer.zero_grad()
                loss(model(data), target).backward()
                optimizer.step()
                scheduler.step()

    The loss is the mean over the micro batch, and is not divided: that is done here.
    """

    def __init__(self, model, dataloader=None):
        self.model, self.dataloader = model, dataloader
        self.num_steps = 0  # of the optimizer since reset()
        self.num_micro_batches = 0  # since reset(): the batches that this rank has taken of its loader
        self.gradient_accumulation_steps = 1  # micro batches of a step of the optimizer
        self._optimizers = []
        self._made = 0  # micro batches of the present step of the optimizer
        self._steps = 0  # of the optimizer
        self._is_inside = False  # step()
        self._is_last = True  # the micro batch under way ends a step of the optimizer
        self._divides = False  # gradients are divided by hooks
        self._reached = set()  # parameters that had a gradient in this micro batch, where they are divided
        self._reported_s = None

    def prepare(self, optimizer, lr_scheduler=None):
        """The optimizer whose step() and zero_grad() count once a batch; with a scheduler (optimizer, scheduler)."""
        own = _Optimizer(self, optimizer)
        self._optimizers.append(own)
        return own if lr_scheduler is None else (own, _Scheduler(self, lr_scheduler))

    @contextlib.contextmanager
    def step(self, fix_total_batch_size=False):
        """Around the work on one micro batch. ValueError where the batch of the largest world cannot be shared out."""
        count = self._accumulation() if fix_total_batch_size else 1
        if count != self.gradient_accumulation_steps and self._made:
            raise ValueError("phalanx-dlrover: fix_total_batch_size has changed within a batch; expected one for all")
        self.gradient_accumulation_steps = count
        if count > 1:
            self._must_accumulate()
        self._made += 1
        self._is_last = self._made == count
        self._reached.clear()
        for optimizer in self._optimizers:
            optimizer.begins_micro_batch()
        with self._inside(), contextlib.nullcontext() if self._is_last else self.model.no_sync():
            yield
        self.num_micro_batches += 1
        if self._is_last:
            self._made = 0
            self.num_steps += 1
            self._steps += 1
            self.report_training_step()

    @contextlib.contextmanager
    def _inside(self):
        self._is_inside = True
        try:
            yield
        finally:
            self._is_inside = False

    def reset(self):
        """At the beginning of an epoch, or at the end of the last. What is accumulated of a batch that the last one has
        left is dropped, and step() counts until the next micro batch."""
        if self._made:
            for optimizer in self._optimizers:
                optimizer.inner.zero_grad()
        self.num_steps = self.num_micro_batches = self._made = 0
        self._is_last = True

    def report_training_step(self):
        """Each 15 s, on rank 0, into the file that RUNTIME_METRICS_PATH names. Phalanx sees steps by itself."""
        path, now_s = os.environ.get(ConfigPath.ENV_RUNTIME_METRICS, ""), time.monotonic()
        is_due = self._reported_s is None or now_s - self._reported_s >= _REPORT_S
        if not path or not is_due or env_utils.get_rank() != 0:
            return
        self._reported_s = now_s
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump({"step": self._steps, "timestamp": time.time()}, file)
        os.replace(f"{path}.new", path)

    # --- accumulation

    def _accumulation(self):
        world = dist.get_world_size() if dist.is_initialized() else 1
        most = _most_ranks(world)
        if most % world != 0:
            raise ValueError(
                f"phalanx-dlrover: the batch of {most} ranks cannot be shared out evenly among {world}: give "
                "dlrover-run --node-unit, or --elastic-config, with which a job trains with world sizes that divide "
                "the batch (docs/elastic-batch.md)"
            )
        return most // world

    def _must_accumulate(self):
        if not isinstance(self.model, DistributedDataParallel):
            raise TypeError(
                f"phalanx-dlrover: fix_total_batch_size with a {type(self.model).__name__}; expected a "
                "DistributedDataParallel: other models accumulate gradients by themselves, as "
                "gradient_accumulation_steps says"
            )
        if not self._divides:
            self._divides = True
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    parameter.register_hook(functools.partial(self._share, parameter))

    def _share(self, parameter, gradient):
        """Of one micro batch, in the mean over the batch."""
        self._reached.add(parameter)
        count = self.gradient_accumulation_steps
        return None if count == 1 else gradient / count

    # --- for what prepare() returns

    @property
    def ends_batch(self):
        """Whether the micro batch under way, or the last one behind its block, ends a step of the optimizer: step()
        counts. The same on all ranks."""
        return self._is_last

    @property
    def where(self):
        return f"micro batch {self._made} of {self.gradient_accumulation_steps} is under way"

    @property
    def has_accumulated(self):
        """Gradients of earlier micro batches of this batch."""
        return self._made > (1 if self._is_inside else 0)

    def has_reached(self, parameters):
        """Whether any of them had a gradient in this micro batch."""
        return any(parameter in self._reached for parameter in parameters)


def _most_ranks(world):
    """Of the largest world that the job may have, whose batch is the whole one."""
    if not any(os.environ.get(name) for name in (NodeEnv.WORKER_NUM, NodeEnv.NODE_NUM)):
        if "TORCHELASTIC_RUN_ID" in os.environ:
            raise ValueError(
                "phalanx-dlrover: fix_total_batch_size, and neither WORKER_NUM nor NODE_NUM is set; expected the most "
                "nodes that the job may have: dlrover-run sets them to the MAX of --nnodes=MIN:MAX"
            )
        return world
    return max(world, env_utils.get_node_num() * env_utils.get_local_world_size())


class _Optimizer(torch.optim.Optimizer):
    """What a script calls in the place of its optimizer. Its state, groups and hooks are those of `inner`."""

    def __init__(self, trainer, inner):  # not that of torch: there is nothing of its own
        self._trainer, self.inner = trainer, inner
        self._has_stepped = False  # in this micro batch, held back or not

    def begins_micro_batch(self):
        self._has_stepped = False

    @property
    def _step_supports_amp_scaling(self):
        """What a GradScaler's step() asks first. False: it unscales before ours. RuntimeError within a batch: it would
        unscale what earlier micro batches have left, and its update() would change the scale of this rank alone."""
        if self._trainer.ends_batch:
            return False
        raise RuntimeError(
            f"phalanx-dlrover: a GradScaler steps the optimizer where {self._trainer.where}, and would unscale "
            "gradients before all have come; expected unscale_(), step() and update() below `if trainer.ends_batch:`"
        )

    def __getattr__(self, name):
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def state(self):
        return self.inner.state

    @property
    def param_groups(self):
        return self.inner.param_groups

    @property
    def defaults(self):
        return self.inner.defaults

    def add_param_group(self, param_group):
        self.inner.add_param_group(param_group)

    def state_dict(self):
        return self.inner.state_dict()

    def load_state_dict(self, state_dict):
        self.inner.load_state_dict(state_dict)

    def zero_grad(self, set_to_none=True):
        """Of a whole batch: called before each backward(), or behind each step(), which the script, or a GradScaler for
        a gradient that is not finite, may have left out."""
        trainer = self._trainer
        parameters = (parameter for group in self.param_groups for parameter in group["params"])
        is_behind = self._has_stepped or trainer.has_reached(parameters)
        may = trainer.ends_batch if is_behind else not trainer.has_accumulated
        if may:
            self.inner.zero_grad(set_to_none=set_to_none)

    def step(self, closure=None):
        self._has_stepped = True
        if not self._trainer.ends_batch:
            return None
        return self.inner.step() if closure is None else self.inner.step(closure)


class _Scheduler:
    """Steps once a batch."""

    def __init__(self, trainer, inner):
        self._trainer, self.inner = trainer, inner

    def __getattr__(self, name):
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def step(self, *arguments, **named):
        return self.inner.step(*arguments, **named) if self._trainer.ends_batch else None
