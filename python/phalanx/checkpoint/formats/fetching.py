"""Which parts of images a rank reads from other nodes' memory: few enough for one packet. Pure."""

_GAP = 256 << 10  # what is read as well rather than asked around
_RANGES_MAX = 1000  # of all images together
_IMAGES_MAX = 200  # of one packet, and of its answer


def portions(parts):
    """The same, so many images at a time."""
    ranks = sorted(parts)
    for at in range(0, len(ranks), _IMAGES_MAX):
        yield {rank: parts[rank] for rank in ranks[at : at + _IMAGES_MAX]}


def joined(parts):
    """{rank: [[from, behind the last], ..]} for what is wanted, {rank: [(from, behind the last), ..]}: in order, near
    ones as one; [], all of the image, for those of which there are too many."""
    found = {rank: _near(ranges, _GAP) for rank, ranges in parts.items()}
    gap = _GAP
    while sum(map(len, found.values())) > _RANGES_MAX and gap < 1 << 40:
        gap *= 8
        found = {rank: _near(ranges, gap) for rank, ranges in found.items()}
    are_few = sum(map(len, found.values())) <= _RANGES_MAX
    return found if are_few else {rank: [] for rank in found}


def _near(ranges, gap):
    together = []
    for begin, end in sorted(ranges):
        if together and begin <= together[-1][1] + gap:
            together[-1][1] = max(together[-1][1], end)
        else:
            together.append([begin, end])
    return together
