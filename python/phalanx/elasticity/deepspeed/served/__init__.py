"""What `deepspeed.elasticity` is where DeepSpeed has none: the names of DeepSpeed 0.19.7, but for its elastic agent
(the launcher is phalanx-run) and ElasticityConfig, which only DeepSpeed itself used."""

from phalanx.elasticity import elasticity_enabled, ensure_immutable_elastic_config
from phalanx.elasticity.deepspeed import compute_elastic_config

from .constants import ELASTICITY, ENABLED, ENABLED_DEFAULT

__all__ = [
    "ELASTICITY",
    "ENABLED",
    "ENABLED_DEFAULT",
    "compute_elastic_config",
    "elasticity_enabled",
    "ensure_immutable_elastic_config",
]
