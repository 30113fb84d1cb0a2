"""Which files hold the newest step: as the agent says it, or, without an agent, by the manifests on disk
(docs/formats/checkpoint-manifest.md)."""

import json
import os
import re
import zlib

_STEP = re.compile(r"(\d+)(?:\.(\d+))?\Z")
_MAIN = -1  # the rank of what is the same on all
_NAMED_MAX = 20
_NOT_WHOLE_ELSEWHERE = "another rank's part of it is not whole"
_LAST_LINE = re.compile(rb"crc32 ([0-9A-Fa-f]{8})\n\Z")


class Found:
    """Where a step is to be read from. `source` "memory", "disk" or None; `own` is the image of this rank, `main` that
    with the whole state where ranks share one. `stable`: the files stay as they are while this process lives. `ranks`:
    where any rank may need any image in memory, those of this node by rank; `directory`: of a step on disk; `branch`: of
    the answer of an agent."""

    branch = 0

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


class NotThere(Exception):
    """No step that counts is what was asked for; the text says so, and what there is."""


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
        found, why = _look(folder, manifest, rank, find_in)
        if agree(manifest["step"], why):
            found.why = f"step {found.step} is restored from storage, {folder}{_passed(passed_over)}"
            return found
        passed_over.append(why or f"{folder}: {_NOT_WHOLE_ELSEWHERE}")
    agree(-1, None)
    return Found(-1, None, why="; ".join(passed_over) or None)


def find_exactly(directory, rank, agree, step=None, timeline=None, find_in=None):
    """As find(), but only of that step, that timeline, or both: NotThere, on all ranks, where none is there. Of
    several folders of that step the one that was stored last is meant: where its bytes are not whole, no other takes
    its place, since that is of another past. Of a timeline alone the next older step does."""
    passed_over, there = [], newest_first(directory)
    for name, manifest, why_not in there:
        if not _is_meant(name, manifest, step, timeline):
            continue
        folder = os.path.join(directory, name)
        if why_not is not None:
            passed_over.append(f"{folder}: {why_not}")
            continue
        found, why = _look(folder, manifest, rank, find_in)
        if why is None and found.own is None and _is_for_owners(manifest):
            why = f"{folder}: it has nothing of rank {rank}: it was saved by a world of {manifest['world_size']}"
        if agree(manifest["step"], why, manifest.get("sequence", 0), step is not None):
            found.why = f"step {found.step} is restored from storage, {folder}, as asked for{_passed(passed_over)}"
            return found
        passed_over.append(why or f"{folder}: {_NOT_WHOLE_ELSEWHERE}")
        if step is not None:
            raise NotThere(f"step {step} cannot be restored: {passed_over[-1]}")
    agree(-1, None)
    meant = "nothing" if step is None else f"no step {step}"
    of_timeline = "" if timeline is None else f" of timeline {timeline}"
    reasons = f" ({'; '.join(passed_over)})" if passed_over else ""
    raise NotThere(f"{directory} holds {meant}{of_timeline} that counts{reasons}; {_text_of(there)}")


def _passed(sources):
    return f" (passed over: {'; '.join(sources)})" if sources else ""


def _is_meant(name, manifest, step, timeline):
    """One whose manifest cannot be read is of no timeline that is known: it may be meant."""
    if step is not None and int(_STEP.match(name).group(1)) != step:
        return False
    return timeline is None or manifest is None or manifest.get("timeline", 0) == timeline


def _text_of(there):
    """What counts there, for people: at most _NAMED_MAX steps."""
    counting = [manifest for _, manifest, why_not in there if why_not is None]
    if not counting:
        return "no other step is there"
    several = len({manifest.get("timeline", 0) for manifest in counting}) > 1
    named = [
        f"{manifest['step']} (timeline {manifest.get('timeline', 0)})" if several else str(manifest["step"])
        for manifest in counting[:_NAMED_MAX]
    ]
    more = f" and {len(counting) - _NAMED_MAX} more" if len(counting) > _NAMED_MAX else ""
    of_one = "" if several else f", of timeline {counting[0].get('timeline', 0)}"
    return f"newest first, there are {', '.join(named)}{more}{of_one}"


def _look(folder, manifest, rank, find_in):
    """(what this rank finds there, why its part is not whole)."""
    try:
        return (find_in or _found)(folder, manifest, rank), None
    except (OSError, ValueError) as error:
        return None, f"{folder}: {error}"


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
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        raise ValueError("no manifest: not committed") from None
    last = _LAST_LINE.search(data)
    if last is None:
        raise ValueError("its manifest does not end with a checksum")
    text = data[: last.start()]
    if zlib.crc32(text) != int(last.group(1), 16):
        raise ValueError("the checksum of its manifest is wrong")
    manifest = json.loads(text.decode("utf-8"))
    if not isinstance(manifest, dict) or manifest.get("format") != "phalanx-manifest" or manifest.get("version") != 2:
        raise ValueError("its manifest is of another format or version")
    return manifest


def _is_for_owners(manifest):
    """Each rank needs a file of its own."""
    return any(shard["needed_by"] == "owner" for shard in manifest["shards"])


def _found(folder, manifest, rank):
    if manifest["layout"] not in ("torch-zip", "safetensors"):
        raise ValueError(f"its layout is {manifest['layout']}: load it through phalanx.checkpoint.{manifest['kind']}")
    shards = {shard["rank"]: shard for shard in manifest["shards"]}
    own = shards.get(rank)
    main = shards.get(_MAIN)
    if main is None and not _is_for_owners(manifest):
        raise ValueError("the image with the whole state is not in its manifest")
    paths = [_checked(folder, shard) if shard is not None else None for shard in (own, main)]
    return Found(manifest["step"], "disk", own=paths[0], main=paths[1], world_size=manifest["world_size"])


def found_for_any_rank(folder, manifest, rank, layout, world_size):
    """A step of that layout, of which any rank may have to read any file: what every rank needs is read here, and of
    the others those that are this rank's where they are dealt out to the ranks in turn."""
    if manifest["layout"] != layout:
        wanted = {"dcp": "dcp.Checkpointer", "files": "files.Checkpointer"}.get(manifest["layout"], "Checkpointer")
        raise ValueError(f"its layout is {manifest['layout']}: load it through phalanx.checkpoint.{wanted}")
    for shard in manifest["shards"]:
        if shard["needed_by"] == "every-rank" or shard["rank"] % world_size == rank:
            _checked(folder, shard)
    return Found(manifest["step"], "disk", world_size=manifest["world_size"], directory=folder)


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
