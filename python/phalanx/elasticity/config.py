"""The `elasticity` block of a DeepSpeed config, checked in DeepSpeed's order and refused in its words.

DeepSpeed looks at no types: a count may be True, 2.5 or NaN, and what comes of it is part of its rules. So what is not
checked here is kept as it was given: the largest batch may be a text.
"""

import json

from phalanx.elasticity.errors import ElasticityConfigError

_MISSING = object()
# What json.loads makes, but for lists and dicts.
_PLAIN = frozenset((int, float, bool, str, type(None)))


class Config:
    """The members of a block. Raises ElasticityConfigError, or TypeError for what cannot be compared."""

    __slots__ = (
        *("max_batch", "micro_batches", "min_gpus", "max_gpus", "model_parallel_size", "num_gpus_per_node"),
        *("min_time", "version", "prefer_larger"),
    )

    def __init__(self, block):
        block = as_json(block)
        get = block.get
        self._read_batches(get)
        self._read_sizes(get)
        self.version = get("version", 0.2)
        self.prefer_larger = get("prefer_larger_batch", True)

    def _read_batches(self, get):
        self.max_batch = get("max_train_batch_size", _MISSING)
        sizes = self.micro_batches = get("micro_batch_sizes", _MISSING)
        if self.max_batch is _MISSING or sizes is _MISSING:
            self._fill_in(get("enabled", False))
            sizes = self.micro_batches
        if not isinstance(sizes, list):
            raise ElasticityConfigError(
                "Elasticity expected value of micro_batch_sizes to be a list of micro batches, instead is: "
                f"{type(sizes)}, containing: {sizes}"
            )
        for size in sizes:
            if not isinstance(size, int):
                raise _wrong_sizes("a list of integers", sizes)
        for size in sizes:
            if not size > 0:
                raise _wrong_sizes("positive integers", sizes)

    def _fill_in(self, enabled):
        """DeepSpeed has values for what is missing in a block that is not enabled."""
        for name in ("max_train_batch_size", "micro_batch_sizes") if enabled else ():
            if (self.max_batch if name == "max_train_batch_size" else self.micro_batches) is _MISSING:
                raise ElasticityConfigError(f"Elasticity config missing {name}")
        if self.max_batch is _MISSING:
            self.max_batch = 2000
        if self.micro_batches is _MISSING:
            self.micro_batches = [2, 4, 6]

    def _read_sizes(self, get):
        least = self.min_gpus = get("min_gpus", 1)
        most = self.max_gpus = get("max_gpus", 10000)
        if least < 1 or most < 1:
            raise ElasticityConfigError(
                f"Elasticity min/max gpus must be > 0, given min_gpus: {least}, max_gpus: {most}"
            )
        if most < least:
            raise ElasticityConfigError(
                f"Elasticity min_gpus cannot be greater than max_gpus, given min_gpus: {least}, max_gpus: {most}"
            )
        self.model_parallel_size = get("model_parallel_size", 1)
        if self.model_parallel_size < 1:
            raise ElasticityConfigError(
                f"Model-Parallel size cannot be less than 1, given model-parallel size: {self.model_parallel_size}"
            )
        self.num_gpus_per_node = get("num_gpus_per_node", 1)
        if self.num_gpus_per_node < 1:
            raise ElasticityConfigError(
                "Number of GPUs per node cannot be less than 1, given number of GPUs per node: "
                f"{self.num_gpus_per_node}"
            )
        self.min_time = get("min_time", 0)
        if self.min_time < 0:
            raise ElasticityConfigError(f"Elasticity min time needs to be >= 0: given {self.min_time}")


def _no_object(block):
    return AttributeError(f"the elasticity block should be a JSON object, and is {type(block)}")


def as_json(block):
    """The block as JSON would carry it: tuples are lists there, and numpy's numbers are none. Raises AttributeError
    where it is no dict, and what json raises."""
    if type(block) is dict:
        for value in block.values():
            kind = type(value)
            if kind not in _PLAIN and not (kind is list and all(type(element) in _PLAIN for element in value)):
                return json.loads(json.dumps(block))
        return block
    if not isinstance(block, dict):
        raise _no_object(block)
    return json.loads(json.dumps(block))


def enabled_block(ds_config):
    """The block of a config that enables it."""
    if not isinstance(ds_config, dict):
        raise ValueError(
            f"Expected ds_config to be a dictionary but received a {type(ds_config)}, containing: {ds_config}"
        )
    if "elasticity" not in ds_config:
        raise ElasticityConfigError(
            "'elasticity' is missing from config json, please add it if running an elastic training job."
        )
    block = ds_config["elasticity"]
    if not isinstance(block, dict):
        raise _no_object(block)
    if not block.get("enabled", False):
        raise ElasticityConfigError(
            "Elasticity is disabled, please enable it ('enabled':true) if running an elastic training job."
        )
    return block


def check_same(runtime_block, scheduler_text):
    """Raises ElasticityConfigError where the block that a scheduler has seen, as JSON, is not the job's own."""
    try:
        seen = json.loads(scheduler_text)
    except json.JSONDecodeError as error:
        raise json.JSONDecodeError(f"no JSON: {error.msg}", error.doc, error.pos) from None
    scheduler, runtime = Config(seen), Config(runtime_block)
    for name, ours, theirs in (
        ("max_acceptable_batch_size", runtime.max_batch, scheduler.max_batch),
        ("micro_batches", runtime.micro_batches, scheduler.micro_batches),
        ("version", runtime.version, scheduler.version),
    ):
        if ours != theirs:
            raise ElasticityConfigError(
                f"Elastic config '{name}={theirs}' seen by resource scheduler does not match config passed to runtime "
                f"{name}={ours}"
            )


def _wrong_sizes(what, sizes):
    """The f before the list is DeepSpeed's."""
    return ElasticityConfigError(
        f"Elasticity expected micro_batch_sizes to only contain {what}, instead contains: f{sizes}"
    )
