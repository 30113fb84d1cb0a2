"""What lies whole in a checkpoint directory (docs/formats/checkpoint-manifest.md)."""

import dataclasses
import os

from phalanx.checkpoint import disk


@dataclasses.dataclass(frozen=True)
class StoredStep:
    """A step that was stored, with all that its manifest lists."""

    step: int
    timeline: int  # one more wherever a step was stored behind a higher one
    sequence: int  # the how manieth step stored in its directory; 0: not known
    branch: int  # how often the ranks had gone back in the life that saved it
    world_size: int
    written: float  # seconds since 1970
    bytes: int  # of all shards
    path: str  # its folder
    kind: str  # "full", "ddp" or "dcp"


def steps(directory):
    """[StoredStep], that which was stored last first."""
    found = []
    for name, manifest, why_not in disk.newest_first(directory):
        if why_not is None:
            entry = _entry(os.path.join(directory, name), manifest)
            found.extend([] if entry is None else [entry])
    return found


def _entry(path, manifest):
    """None where the manifest has not what every one has."""
    try:
        return StoredStep(
            step=int(manifest["step"]),
            timeline=int(manifest.get("timeline", 0)),
            sequence=int(manifest.get("sequence", 0)),
            branch=int(manifest.get("branch", 0)),
            world_size=int(manifest["world_size"]),
            written=manifest["written_unix_ms"] / 1000,
            bytes=sum(shard["bytes"] for shard in manifest["shards"]),
            path=path,
            kind=str(manifest["kind"]),
        )
    except (KeyError, TypeError, ValueError):
        return None
