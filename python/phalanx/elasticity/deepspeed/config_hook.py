"""Lets DeepSpeedConfig take an elasticity block again, as DeepSpeed 0.19.7 did: the batch sizes come from the block and
the world size, and the rest of DeepSpeed sees a configuration without it."""

import functools

from phalanx.elasticity import ElasticityConfigError, elasticity_enabled, ensure_immutable_elastic_config
from phalanx.elasticity.deepspeed import LAST_VERSION, compute_elastic_config

_BLOCK = "elasticity"
_BATCH_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_FIXED_BATCH = (
    "One or more batch related parameters were found in your ds_config (train_batch_size, "
    "train_micro_batch_size_per_gpu, and/or gradient_accumulation_steps). These parameters *will not be used* since "
    "elastic training is enabled, which takes control of these parameters. If you want to suppress this error (the "
    "parameters will be silently ignored) please set ignore_non_elastic_batch_info':true in your elasticity config."
)


def install(module):
    """`module`: deepspeed.runtime.config, just loaded. One that is made otherwise than we know is left as it is: jobs
    without a block go on, and those with one are refused by DeepSpeed, in its words."""
    kind = getattr(module, "DeepSpeedConfig", None)
    if not hasattr(kind, "_initialize_params"):
        return
    kind._param_dict = _Parameters()
    kind.__init__ = _ending_with_the_block(kind.__init__)
    kind._initialize_params = _with_batch(kind._initialize_params, module.logger)


class _Parameters:
    """DeepSpeedConfig's _param_dict, wherever it was read from: a dict, a file, a text. Kept without the block, which
    DeepSpeed refuses, and beside it as it was. Reading finds what is kept, as with any attribute."""

    def __set__(self, config, params):
        vars(config)["_param_dict"] = {key: value for key, value in params.items() if key != _BLOCK}
        vars(config)["_given_params"] = params


def _ending_with_the_block(original):
    """What DeepSpeed logs in the end is what it was given."""

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        vars(self)["_param_dict"] = vars(self).pop("_given_params")

    return __init__


def _with_batch(original, logger):
    """DeepSpeed calls this as soon as it knows its world size, with a copy that it may change."""

    @functools.wraps(original)
    def _initialize_params(self, param_dict):
        given = self._given_params
        self.elasticity_enabled = elasticity_enabled(given)
        if self.elasticity_enabled:
            self.elastic_model_parallel_size = given[_BLOCK].get("model_parallel_size", 1)
            self.num_gpus_per_node = given[_BLOCK].get("num_gpus_per_node", 1)
            param_dict.update(_batch(given, self.world_size, logger))
        original(self, param_dict)

    return _initialize_params


def _batch(given, world_size, logger):
    """The batch keys for this world; refuses in the order and the words of DeepSpeed 0.19.7."""
    batch, gpus, micro_batch = compute_elastic_config(given, LAST_VERSION, world_size)
    ensure_immutable_elastic_config(given[_BLOCK])
    fixed = [key for key in _BATCH_KEYS if key in given]
    if fixed and not given[_BLOCK].get("ignore_non_elastic_batch_info", False):
        raise ElasticityConfigError(_FIXED_BATCH)
    values = (batch, micro_batch, batch // (micro_batch * world_size))
    for key, value in zip(_BATCH_KEYS, values):
        if key in fixed:
            logger.warning("elasticity: %s is %s, not %s", key, value, given[key])
    logger.info("elasticity: %s for %s GPUs; valid GPU counts: %s", dict(zip(_BATCH_KEYS, values)), world_size, gpus)
    return dict(zip(_BATCH_KEYS, values))
