"""DeepSpeed's rules: which batch size, which GPU counts, which micro batch. Their arithmetic is Python's, of whatever
stands in the block; the search among the divisors of a batch is native.

What is beyond the limits is an ElasticityLimitError. It is told where DeepSpeed would begin to search.
"""

import math
import os

from phalanx.elasticity import native
from phalanx.elasticity.config import Config, enabled_block
from phalanx.elasticity.errors import (
    ElasticityConfigError,
    ElasticityError,
    ElasticityIncompatibleWorldSize,
    ElasticityLimitError,
    UFuncTypeError,
)
from phalanx.elasticity.target_version import check_target_version

WORLD_SIZE_MAX = 10_000_000
_LAST_VERSION = "0.19.7"
_VERSIONS = ("0.16.5", _LAST_VERSION)


def compute(ds_config, target_version, world_size, return_microbatch, deepspeed_version):
    """What compute_elastic_config of that DeepSpeed returns or raises."""
    if deepspeed_version not in _VERSIONS:
        names = " or ".join(map(repr, _VERSIONS))
        raise ValueError(f"deepspeed_version is {deepspeed_version!r}: it may be {names}")
    config = Config(enabled_block(ds_config))
    is_last = deepspeed_version == _LAST_VERSION
    version = _rules_of(config, target_version)
    if version == 0.1:
        search = _search(config, config.max_batch, config.min_gpus, config.max_gpus, is_last)
        batch, gpus = native.choose_batch(*search)
        per_node, is_exact = 1, False
        _check_limit("the world size", world_size, WORLD_SIZE_MAX)
    else:
        batch, gpus, micro_batch, search, per_node, is_exact = _plan_by_nodes(config, world_size, is_last)

    if world_size > 0:
        _check_world_size(world_size, gpus, None if is_exact else search, per_node)
        return batch, gpus, _largest_fitting(config.micro_batches, batch, world_size)
    if not return_microbatch:
        return batch, gpus
    if version == 0.2:
        return batch, gpus, micro_batch
    if is_last:
        if world_size <= 0:
            whose = f"Elasticity V {config.version} needs WORLD_SIZE to compute a micro batch size."
            world_size = _world_size_variable(whose)
            _check_limit("the world size", world_size, WORLD_SIZE_MAX)
        _check_world_size(world_size, gpus, search, per_node)
    return batch, gpus, _largest_fitting(config.micro_batches, batch, world_size)


def _rules_of(config, target_version):
    """The version of the rules: 0.1, or 0.2, which thinks in nodes."""
    is_parallel = config.model_parallel_size > 1
    version = float(config.version)
    if is_parallel and version != 0.2:
        raise ElasticityConfigError(
            f"Elasticity V{config.version} does not support model-parallel training. Given model-parallel size: "
            f"{config.model_parallel_size}"
        )
    if version > 0.2:
        raise ElasticityConfigError(
            f"Attempting to run elasticity version {config.version} but runtime only supports up to 0.2"
        )
    check_target_version(target_version)
    if version not in (0.1, 0.2):
        raise NotImplementedError(f"Unable to find elastic logic for version: {config.version}")
    return version


def _search(config, max_batch, min_gpus, max_gpus, is_last, too_large=None):
    """The arguments of the native search: a batch of at most `max_batch` for that range of GPUs."""
    sizes = config.micro_batches
    if not max_gpus:
        max_gpus = max_batch // min(sizes)
    for size in sizes:
        if not size <= max_batch:
            raise ValueError(
                f"All micro batches must be less than             or equal to max_acceptable_batch_size: {max_batch}"
            )
    if too_large:
        raise too_large
    _check_limits(sizes, max_batch, min_gpus, max_gpus)
    if all(type(size) is bool for size in sizes):
        raise UFuncTypeError("numpy has no least common multiple of an empty list, nor of truth values")
    flags = native.PREFER_LARGER if config.prefer_larger else 0
    if is_last:
        flags |= native.WITHIN_LARGEST
    # Python's comparisons with NaN leave out counts that take all of a batch in one step, and no others.
    if min_gpus != min_gpus:
        min_gpus, flags = 1, flags | native.WITHOUT_WHOLE
    if max_gpus != max_gpus:
        max_gpus, flags = math.inf, flags | native.WITHOUT_WHOLE
    return sizes, _whole(max_batch, math.floor), _whole(min_gpus or 1, math.ceil), _whole(max_gpus, math.floor), flags


def _whole(value, rounded):
    """A number of 1 or more as an int that the search takes; nothing of its answer depends on the fraction."""
    return value if type(value) is int else native.INFINITE if value == math.inf else rounded(value)


def _plan_by_nodes(config, world_size, is_last):
    """Version 0.2: (batch, GPU counts, micro batch, the search behind the counts, what they were multiplied with,
    whether the plan is for this number of GPUs alone)."""
    gpus = world_size
    if gpus == 0:
        gpus = _world_size_variable("Elasticity V 0.2 needs WORLD_SIZE to compute valid batch size.")
    num_per_node, parallel = config.num_gpus_per_node, config.model_parallel_size
    too_large = _find_too_large(config, gpus)
    if num_per_node % parallel != 0:
        raise ElasticityError(
            f"In Elasticity v0.2, number of GPUs per node:{num_per_node} should be divisible by model parallel size "
            f"{parallel}"
        )
    per_node = num_per_node // parallel
    try:
        shares = (
            int(config.max_batch / per_node),
            int(config.min_gpus / num_per_node),
            int(config.max_gpus / num_per_node),
        )
    except OverflowError:  # of Python's numbers: the reason is still what the block says
        if too_large:
            raise too_large from None
        raise
    search = _search(config, *shares, is_last, too_large)
    batch, counts = native.choose_batch(*search)
    batch *= per_node
    counts = [count * per_node for count in counts]
    if gpus // parallel in counts:
        return int(batch), counts, _first_fitting(config, batch, gpus), search, per_node, False

    groups = gpus / num_per_node * per_node
    batches = []
    for size in config.micro_batches:
        step = size * groups
        batches.append(math.floor(config.max_batch / float(step)) * step)
    batch = max(batches) if config.prefer_larger else min(batches)
    micro_batch, counts = _first_fitting(config, batch, gpus), [int(groups)]
    return int(batch), counts, micro_batch, search, per_node, True


def _first_fitting(config, batch, gpus):
    """The micro batch of version 0.2: the first that fits, or the largest; None where none does."""
    chosen = None
    for size in config.micro_batches:
        if batch // gpus % size == 0 and (chosen is None or (config.prefer_larger and chosen < size)):
            chosen = size
    return chosen


def _largest_fitting(micro_batches, batch, world_size):
    share = batch // world_size
    for size in sorted(set(micro_batches), reverse=True):
        if share % size == 0:
            return size
    raise AssertionError(
        f"Unable to find divisible micro batch size world_size={world_size}, final_batch_size={batch}, and  "
        f"micro_batches={micro_batches}."
    )


def _check_world_size(world_size, gpus, search, per_node):
    """`search` found `gpus`, and is None where they are none of its counts."""
    if world_size in gpus:
        return
    text = str(gpus) if search is None else _numpys_text(native.choose_marked(*search), per_node)
    raise ElasticityIncompatibleWorldSize(
        f"World size ({world_size}) is not valid with the current list of valid GPU counts: {text}"
    )


def _numpys_text(found, per_node):
    """A list of counts as DeepSpeed prints it: numpy's numbers are seen there."""
    _, counts, marks = found
    kind = "float64" if isinstance(per_node, float) else "int64"
    numbers = [count * per_node for count in counts]
    texts = [f"np.{kind}({number})" if is_numpy else str(number) for number, is_numpy in zip(numbers, marks)]
    return f"[{', '.join(texts)}]"


def _world_size_variable(whose):
    text = os.environ.get("WORLD_SIZE")
    if text is not None and text.isnumeric():
        return int(text)
    raise ElasticityConfigError(
        f"{whose} Either give it as argument to function compute_elastic_config or set it as an environment variable. "
        f"Value of WORLD_SIZE as environment variable is {text}"
    )


def _find_too_large(config, gpus):
    """What is beyond the limits in the numbers that version 0.2 divides before it searches."""
    try:
        _check_limit("max_train_batch_size", config.max_batch, native.VALUE_MAX)
        for name in ("min_gpus", "max_gpus", "num_gpus_per_node", "model_parallel_size"):
            _check_limit(name, getattr(config, name), native.VALUE_MAX)
        _check_limit("the world size", gpus, WORLD_SIZE_MAX)
    except ElasticityLimitError as error:
        return error
    return None


def _check_limits(sizes, max_batch, min_gpus, max_gpus):
    if len(sizes) > native.MICRO_BATCHES_MAX:
        raise ElasticityLimitError(
            f"micro_batch_sizes has {len(sizes)} elements: at most {native.MICRO_BATCHES_MAX} are taken"
        )
    for size in sizes:
        _check_limit("an element of micro_batch_sizes", size, native.VALUE_MAX)
    _check_limit("max_train_batch_size", max_batch, native.VALUE_MAX)
    _check_limit("min_gpus", min_gpus, native.VALUE_MAX)
    _check_limit("max_gpus", max_gpus, native.VALUE_MAX)


def _check_limit(name, value, most):
    """An infinite number is as good as none."""
    if isinstance(value, (int, float)) and most < value < math.inf:
        raise ElasticityLimitError(f"{name} is {value}: at most {most} is taken")
