"""Elastic batch plans by DeepSpeed's rules, which DeepSpeed itself has had up to 0.19.7.

    from phalanx.elasticity import compute_elastic_config
    batch, gpus, micro_batch = compute_elastic_config(ds_config, "0.16.5", world_size=4)

`python -m phalanx.elasticity -c ds_config.json -w 4` prints the same.
"""

import logging
import math
import os

from phalanx.elasticity import native
from phalanx.elasticity.errors import (
    ElasticityConfigError,
    ElasticityError,
    ElasticityIncompatibleWorldSize,
    ElasticityLimitError,
    InvalidVersion,
    UFuncTypeError,
    error_of,
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
    if not isinstance(ds_config, dict):
        raise ValueError(
            f"Expected ds_config to be a dictionary but received a {type(ds_config)}, containing: {ds_config}"
        )
    environment = {name: os.environ[name] for name in ("WORLD_SIZE",) if name in os.environ}
    ok = _ask(
        {
            # The rest of a DeepSpeed config is nobody's business here, and may hold what is no JSON.
            "ds_config": {name: ds_config[name] for name in ("elasticity",) if name in ds_config},
            "target_version": target_deepspeed_version,
            "world_size": world_size,
            "return_microbatch": bool(return_microbatch),
            "env": environment,
            "deepspeed_version": deepspeed_version,
        }
    )
    gpus = None if ok["valid_gpus"] is None else ok["valid_gpus"]["list"]
    if "micro_batch_size" in ok:
        return ok["final_batch_size"], gpus, ok["micro_batch_size"]
    return ok["final_batch_size"], gpus


def elasticity_enabled(ds_config):
    """What the config's elasticity block says of itself; False without one."""
    return "elasticity" in ds_config and ds_config["elasticity"].get("enabled", False)


def ensure_immutable_elastic_config(runtime_elastic_config_dict):
    """Raises ElasticityConfigError where the job's elasticity block is not the one that the scheduler has seen."""
    seen = os.environ.get(DEEPSPEED_ELASTICITY_CONFIG)
    if not _ask({"runtime": runtime_elastic_config_dict, "scheduler_env": seen}):
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


def _ask(request):
    answer = native.answer(request)
    if "error" in answer:
        raise error_of(answer["error"])
    return answer["ok"]
