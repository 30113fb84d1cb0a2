"""Whether the DeepSpeed that is to run is old enough to have no elasticity: the order of versions of PEP 440, as far as
one minimum needs it. Ranks do not always have `packaging`."""

import re

from phalanx.elasticity.errors import ElasticityError, InvalidVersion

_MINIMUM = "0.3.8"
_MINIMUM_RELEASE = (0, 3, 8)
_VERSION = re.compile(
    r"""\s* v? (?:(?P<epoch>[0-9]+)!)? (?P<release>[0-9]+(?:\.[0-9]+)*)
        (?P<pre>  [-_.]? (?:alpha|a|beta|b|preview|pre|c|rc) [-_.]? [0-9]* )?
        (?P<post> -[0-9]+ | [-_.]? (?:post|rev|r) [-_.]? [0-9]* )?
        (?P<dev>  [-_.]? dev [-_.]? [0-9]* )?
        (?:\+ [a-z0-9]+ (?:[-_.][a-z0-9]+)* )? \s*""",
    re.VERBOSE | re.IGNORECASE,
)


def check_target_version(target):
    """Raises InvalidVersion, or ElasticityError for one below the minimum."""
    found = _VERSION.fullmatch(target) if isinstance(target, str) else None
    if found is None:
        raise InvalidVersion(f"Invalid version: {target!r}")
    if _is_older(found):
        raise ElasticityError(
            f"Target deepspeed version of {target} is not compatible with minimum version {_MINIMUM} supporting "
            "elasticity."
        )


def _is_older(version):
    release = [int(number) for number in version["release"].split(".")]
    if int(version["epoch"] or 0) > 0:
        return False
    while release and release[-1] == 0:
        release.pop()
    if tuple(release) != _MINIMUM_RELEASE:
        return tuple(release) < _MINIMUM_RELEASE
    return version["pre"] is not None or (version["dev"] is not None and version["post"] is None)
