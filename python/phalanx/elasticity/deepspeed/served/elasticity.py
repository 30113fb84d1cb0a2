"""deepspeed.elasticity.elasticity: where the functions were at home."""

from phalanx.elasticity import elasticity_enabled, ensure_immutable_elastic_config
from phalanx.elasticity.deepspeed import compute_elastic_config

from .config import ElasticityConfigError, ElasticityError, ElasticityIncompatibleWorldSize

__all__ = [
    "ElasticityConfigError",
    "ElasticityError",
    "ElasticityIncompatibleWorldSize",
    "compute_elastic_config",
    "elasticity_enabled",
    "ensure_immutable_elastic_config",
]
