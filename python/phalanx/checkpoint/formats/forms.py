"""Who needs which image of a save to restore it: docs/formats/checkpoint-image.md, "form"."""

_OWNER, _ANY_RANK, _NOBODY = 0, 2, 3  # of a rank's own image
_SHARED, _SEVERAL = 4, 8

OF_KIND = {
    "full": _OWNER,
    "ddp": _NOBODY | _SHARED,
    "dcp": _ANY_RANK | _SHARED,
    "files": _ANY_RANK | _SHARED | _SEVERAL,
}


def is_shared(kind):
    """Whether there is an image that the ranks of a node share."""
    return OF_KIND[kind] & _SHARED != 0
