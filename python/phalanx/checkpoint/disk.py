"""Which files hold the newest step: as the agent says it, or, without an agent, by the manifests on disk
(docs/formats/checkpoint-manifest.md)."""

import json
import os
import re
import zlib

_STEP = re.compile(r"(\d+)(?:\.(\d+))?\Z")
_MAIN = -1  # the rank of what is the same on all
_LAST_LINE = re.compile(rb"crc32 ([0-9A-Fa-f]{8})\n\Z")


class Found:
    """Where a step is to be read from. `source` "memory", "disk" or None; `own` is the image of this rank, `main` that
    with the whole state where ranks share one. `stable`: the files stay as they are while this process lives. `ranks`:
    of sharded states in memory, the images of this node's ranks by rank; `directory`: of a step on disk."""

    def __init__(
        self, step, source, own=None, main=None, world_size=0, why=None, stable=False, ranks=None, directory=None
    ):
        self.step, self.source, self.own, self.main = step, source, own, main
        self.ranks, self.directory = ranks or {}, directory
        self.world_size, self.why, self.stable = world_size, why, stable


def from_answer(answer):
    """The agent's answer to `restore`."""
    source = answer["source"] if answer["step"] >= 0 and answer["source"] != "none" else None
    files = answer.get("files") or {}
    return Found(
        answer["step"],
        source,
        own=files.get("own"),
        main=files.get("main"),
        world_size=answer.get("world_size", 0),
        why=answer.get("why") or None,
        stable=answer.get("stable") is True,
        ranks=files.get("ranks"),
        directory=files.get("directory"),
    )


def find(directory, rank, agree, find_in=None):
    """The newest step on disk whose manifest and files are whole, for this rank. Sources that were passed over are in
    `why`. Checksums of the files it names are read: that takes as long as the disk does. `find_in`: what looks at a
    manifest, for layouts of other strategies. `agree(step, why)`: whether all ranks take that step, of which this one
    found its part whole (None) or not (why); -1: there is none."""
    passed_over = []
    for name, manifest, why_not in newest_first(directory):
        folder = os.path.join(directory, name)
        if why_not is not None:
            passed_over.append(f"{folder}: {why_not}")
            continue
        try:
            found, why = (find_in or _found)(folder, manifest, rank, passed_over), None
        except (OSError, ValueError) as error:
            found, why = None, f"{folder}: {error}"
        if agree(manifest["step"], why):
            return found
        passed_over.append(why or f"{folder}: another rank's part of it is not whole")
    agree(-1, None)
    return Found(-1, None, why="; ".join(passed_over) or None)


def newest_first(directory):
    """[(name, manifest, why it does not count)] of the folders of steps, by the order in which they were stored; what
    has no manifest stands by its number. All files of one that counts have their lengths, those of other ranks, too."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    matches = [(name, _STEP.match(name)) for name in names]
    by_number = sorted((int(match.group(1)), int(match.group(2) or 0), name) for name, match in matches if match)
    ordered, highest = [], 0
    for step, number, name in by_number:
        manifest, why = _whole(os.path.join(directory, name), step)
        sequence = manifest.get("sequence", 0) if manifest is not None else 0
        place = sequence or highest
        highest = max(highest, place)
        ordered.append(((place, step, number), (name, manifest, why)))
    return [found for _, found in sorted(ordered, key=lambda entry: entry[0], reverse=True)]


def _whole(folder, step):
    """(the manifest of a step, why it does not count)."""
    try:
        manifest = read_manifest(folder)
        if manifest["step"] != step:
            return manifest, f"its manifest is of step {manifest['step']}"
        for shard in manifest["shards"]:
            length = os.stat(os.path.join(folder, os.path.basename(shard["file"]))).st_size
            if length != shard["bytes"]:
                return manifest, f"{shard['file']} is {length} bytes long instead of {shard['bytes']}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return None, str(error)
    return manifest, None


def read_manifest(folder):
    """The manifest of a step. ValueError says what is wrong with it."""
    path = os.path.join(folder, "manifest.json")
    with open(path, "rb") as file:
        data = file.read()
    last = _LAST_LINE.search(data)
    if last is None:
        raise ValueError("its manifest does not end with a checksum")
    text = data[: last.start()]
    if zlib.crc32(text) != int(last.group(1), 16):
        raise ValueError("the checksum of its manifest is wrong")
    manifest = json.loads(text.decode("utf-8"))
    if not isinstance(manifest, dict) or manifest.get("format") != "phalanx-manifest" or manifest.get("version") != 1:
        raise ValueError("its manifest is of another format or version")
    return manifest


def _found(folder, manifest, rank, passed_over):
    if manifest["layout"] not in ("torch-zip", "safetensors"):
        raise ValueError(f"its layout is {manifest['layout']}: load it through phalanx.checkpoint.dcp")
    shards = {shard["rank"]: shard for shard in manifest["shards"]}
    own = shards.get(rank)
    main = shards.get(_MAIN)
    if manifest["kind"] == "ddp" and main is None:
        raise ValueError("the image with the whole state is not in its manifest")
    paths = [_checked(folder, shard) if shard is not None else None for shard in (own, main)]
    return Found(
        manifest["step"],
        "disk",
        own=paths[0],
        main=paths[1],
        world_size=manifest["world_size"],
        why="; ".join(passed_over) or None,
    )


def found_sharded(folder, manifest, rank, passed_over):
    """A step of torch.distributed.checkpoint. Any rank may have to read any file: only what names them is read here."""
    if manifest["layout"] != "dcp":
        raise ValueError(f"its layout is {manifest['layout']}: load it through phalanx.checkpoint.Checkpointer")
    for shard in manifest["shards"]:
        if shard["rank"] < 0:
            _checked(folder, shard)
    world_size, why = manifest["world_size"], "; ".join(passed_over) or None
    return Found(manifest["step"], "disk", world_size=world_size, why=why, directory=folder)


def _checked(folder, shard):
    """The path of a shard whose length and checksum are right."""
    name = shard["file"]
    if os.path.basename(name) != name or name in ("", ".", ".."):
        raise ValueError(f"its manifest names a file {name!r}, which is none of its folder")
    path = os.path.join(folder, name)
    length, value = _crc32_of(path)
    if length != shard["bytes"]:
        raise ValueError(f"{name} is {length} bytes long instead of {shard['bytes']}")
    if value != shard["crc32"]:
        raise ValueError(f"the checksum of {name} is {value:08x} instead of {shard['crc32']:08x}")
    return path


def _crc32_of(path):
    """(length, CRC-32) of a file."""
    import ctypes

    from phalanx.checkpoint import native

    part = bytearray(4 << 20)
    window = (ctypes.c_char * len(part)).from_buffer(part)
    pointer, length, value = ctypes.addressof(window), 0, 0
    with open(path, "rb", buffering=0) as file:
        while True:
            count = file.readinto(part)
            if not count:
                return length, value
            value = native.crc32(value, pointer, count)
            length += count
