"""What DeepSpeedConfig makes of configurations, one process of one rank for all of them.

    python tests/deepspeed_configs.py before|after CONFIG_FILE < cases > outcomes

Each line of both is JSON. A case has the configuration ("config"), how it is handed over ("form": dict, file or
base64), the world size that an mpu reports ("world_size", null: no mpu) and the scheduler's block ("scheduler", null:
none). `before`, `after`: when phalanx.elasticity.deepspeed is imported, beside DeepSpeed.
"""

import base64
import copy
import functools
import importlib
import json
import logging
import os
import sys
import tempfile

import elasticity_oracle

OURS = "phalanx.elasticity.deepspeed"
BATCH_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
ELASTIC_KEYS = ("elasticity_enabled", "elastic_model_parallel_size", "num_gpus_per_node")


class Mpu:
    """What DeepSpeed asks of a model parallel unit here."""

    def __init__(self, world_size):
        self._world_size = world_size

    def get_data_parallel_world_size(self):
        return self._world_size


def import_deepspeed(when):
    if when == "before":
        importlib.import_module(OURS)
    import deepspeed
    from deepspeed.runtime.config import DeepSpeedConfig

    if when == "after":
        importlib.import_module(OURS)
    logging.disable(logging.CRITICAL)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # would be compiled for a minute
    store = f"file://{tempfile.mkdtemp()}/store"
    deepspeed.init_distributed("gloo", False, init_method=store, rank=0, world_size=1)
    return DeepSpeedConfig


def handed_over(case, path):
    if case["form"] == "dict":
        return copy.deepcopy(case["config"])
    text = json.dumps(case["config"])
    if case["form"] == "base64":
        return base64.urlsafe_b64encode(text.encode()).decode()
    with open(path, "w") as file:
        file.write(text)
    return path


def configured(make, case, path):
    os.environ.pop("DEEPSPEED_ELASTICITY_CONFIG", None)
    if case["scheduler"] is not None:
        os.environ["DEEPSPEED_ELASTICITY_CONFIG"] = json.dumps(case["scheduler"])
    mpu = None if case["world_size"] is None else Mpu(case["world_size"])
    given = handed_over(case, path)
    config = make(given, mpu)
    return {
        "batch": [getattr(config, key) for key in BATCH_KEYS],
        "elastic": [getattr(config, key, None) for key in ELASTIC_KEYS],
        "logged": config._param_dict,
        "given": given if isinstance(given, dict) else None,
    }


def main():
    make = import_deepspeed(sys.argv[1])
    for case in map(json.loads, sys.stdin):
        outcome = elasticity_oracle.answer_of(functools.partial(configured, make, case, sys.argv[2]))
        print("outcome " + json.dumps(outcome))


if __name__ == "__main__":
    main()
