"""deepspeed.elasticity.config: the exceptions."""

from phalanx.elasticity import ElasticityConfigError, ElasticityError, ElasticityIncompatibleWorldSize

__all__ = ["ElasticityConfigError", "ElasticityError", "ElasticityIncompatibleWorldSize"]
