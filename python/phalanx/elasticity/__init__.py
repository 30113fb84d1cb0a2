"""Elastic batch plans by DeepSpeed's rules, which DeepSpeed itself has had up to 0.19.7.

    from phalanx.elasticity import compute_elastic_config
    batch, gpus, micro_batch = compute_elastic_config(ds_config, "0.16.5", world_size=4)

`python -m phalanx.elasticity -c ds_config.json -w 4` prints the same.
"""

import logging
import math
import os

from phalanx.elasticity import plan
from phalanx.elasticity.config import check_same
from phalanx.elasticity.errors import (
    ElasticityConfigError,
    ElasticityError,
    ElasticityIncompatibleWorldSize,
    ElasticityLimitError,
    InvalidVersion,
    UFuncTypeError,
)

__all__ = [
    "DEEPSPEED_ELASTICITY_CONFIG",
    "ElasticityConfigError",
    "ElasticityError",
    "ElasticityIncompatibleWorldSize",
    "ElasticityLimitError",
    "InvalidVersion",
    "UFuncTypeError",
    "compute_elastic_config",
    "elasticity_enabled",
    "ensure_immutable_elastic_config",
    "scale_lr",
]

# The variable by which a scheduler tells a job which elasticity block it has seen.
DEEPSPEED_ELASTICITY_CONFIG = "DEEPSPEED_ELASTICITY_CONFIG"
_RULES = {"linear": lambda ratio: ratio, "sqrt": math.sqrt, "none": lambda ratio: 1.0}
_log = logging.getLogger(__name__)


def compute_elastic_config(
    ds_config, target_deepspeed_version, world_size=0, return_microbatch=False, *, deepspeed_version="0.16.5"
):
    """(batch size, GPU counts), and as a third the micro batch where a world size is given or `return_microbatch` is
    set. Answers and refuses as DeepSpeed 0.16.5 does, or 0.19.7 with that `deepspeed_version`; the elasticity block is
    taken as JSON would carry it."""
    return plan.compute(ds_config, target_deepspeed_version, world_size, return_microbatch, deepspeed_version)


def elasticity_enabled(ds_config):
    """What the config's elasticity block says of itself; False without one."""
    return "elasticity" in ds_config and ds_config["elasticity"].get("enabled", False)


def ensure_immutable_elastic_config(runtime_elastic_config_dict):
    """Raises ElasticityConfigError where the job's elasticity block is not the one that the scheduler has seen."""
    seen = os.environ.get(DEEPSPEED_ELASTICITY_CONFIG)
    if seen is not None:
        check_same(runtime_elastic_config_dict, seen)
    else:
        _log.warning(
            "%s is not set: whether the scheduler takes the GPU counts of this job's elasticity block cannot be told",
            DEEPSPEED_ELASTICITY_CONFIG,
        )


def scale_lr(base_lr, base_batch, batch, rule="linear"):
    """The learning rate for `batch`, where `base_lr` suits `base_batch`: in proportion ("linear"), by the root of the
    proportion ("sqrt"), or the same ("none")."""
    if rule not in _RULES:
        raise ValueError(f"scale_lr: rule is {rule!r}: it may be {', '.join(map(repr, _RULES))}")
    for name, value in (("base_batch", base_batch), ("batch", batch)):
        if not 0 < value < math.inf:
            raise ValueError(f"scale_lr: {name} is {value!r}: a batch size is above 0")
    return base_lr * _RULES[rule](batch / base_batch)
