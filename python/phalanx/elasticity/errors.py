"""What a refused configuration raises: DeepSpeed's classes by their names, and those that Python would raise in it."""

import builtins
import json


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


_CLASSES = {
    found.__name__: found
    for found in (
        *(ElasticityError, ElasticityConfigError, ElasticityIncompatibleWorldSize, ElasticityLimitError),
        *(InvalidVersion, UFuncTypeError),
    )
}


def error_of(error):
    """The exception for the "error" of an answer."""
    name, message = error["class"], error["message"]
    if name == "JSONDecodeError":
        return json.JSONDecodeError(message, "", 0)
    found = _CLASSES.get(name) or getattr(builtins, name, None)
    if found is UnicodeDecodeError or found is None:  # it wants the bytes, or is none of Python's
        found, message = ValueError, f"{name}: {message}"
    return found(message)
