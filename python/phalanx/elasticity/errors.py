"""What a refused configuration raises: DeepSpeed's classes by their names, and those that Python would raise in it."""


class ElasticityError(Exception):
    """Whatever elastic batch plans refuse."""


class ElasticityConfigError(ElasticityError):
    """The configuration is none."""


class ElasticityIncompatibleWorldSize(ElasticityError):
    """The configuration has no place for that many GPUs."""


class ElasticityLimitError(ElasticityConfigError):
    """A number, or a list, is larger than is taken here. DeepSpeed has no such class."""


class InvalidVersion(ValueError):
    """The target version is none: what `packaging` raises by this name."""


class UFuncTypeError(TypeError):
    """There is no common multiple of these micro batches: what numpy raises by this name."""
