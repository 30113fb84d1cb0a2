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


def find(directory, rank, find_in=None):
    """The newest step on disk whose manifest and files are whole, for this rank. Sources that were passed over are in
    `why`. Checksums of the files it names are read: that takes as long as the disk does. `find_in`: what looks at a
    manifest, for layouts of other strategies."""
    passed_over = []
    for name, _, _ in reversed(steps_in(directory)):
        folder = os.path.join(directory, name)
        try:
            manifest = read_manifest(folder)
            return (find_in or _found)(folder, manifest, rank, passed_over)
        except (OSError, ValueError) as error:
            passed_over.append(f"{folder}: {error}")
    return Found(-1, None, why="; ".join(passed_over) or None)


def steps_in(directory):
    """[(name, step, epoch)] of the folders of steps, oldest first. `<step>.<epoch>` counts more than `<step>`."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    matches = [(name, _STEP.match(name)) for name in names]
    found = [(name, int(match.group(1)), int(match.group(2) or 0)) for name, match in matches if match]
    return sorted(found, key=lambda entry: entry[1:])


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
        elif os.path.getsize(os.path.join(folder, os.path.basename(shard["file"]))) != shard["bytes"]:
            raise ValueError(f"{shard['file']} is not {shard['bytes']} bytes long")
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
