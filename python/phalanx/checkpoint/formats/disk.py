"""Which files hold the newest step: as the agent says it, or, without an agent, by the manifests on disk, as
`phalanx ckpt steps` reads them (docs/formats/checkpoint-manifest.md)."""

import itertools
import json
import os
import subprocess

from phalanx._launch import process

_OF_A_SAVE = ("step", "sequence", "timeline", "branch", "epoch", "job_id", "written_unix_ms")
_MAIN = -1  # the rank of what is the same on all
_NAMED_MAX = 20
_NOT_WHOLE_ELSEWHERE = "another rank's part of it is not whole"


class Found:
    """Where a step is to be read from. `source` "memory", "disk" or None; `own` is the image of this rank, `main` that
    with the whole state where ranks share one. `stable`: the files stay as they are while this process lives. `ranks`:
    where any rank may need any image in memory, those of this node by rank; `directory`: of a step on disk; `branch`:
    of the answer of an agent."""

    branch = 0
    layout = None  # of a step on disk that an agent has found
    kind = None  # of one in memory, where this node has a part of it
    manifest = None  # of a step on disk that was found here

    def __init__(
        self, step, source, own=None, main=None, world_size=0, why=None, stable=False, ranks=None, directory=None
    ):
        self.step, self.source, self.own, self.main = step, source, own, main
        self.ranks, self.directory = ranks or {}, directory
        self.world_size, self.why, self.stable = world_size, why, stable

    def folder(self):
        """The name of the step's folder on disk; "" where nothing is found."""
        file = self.own or self.main
        return os.path.basename(self.directory or os.path.dirname(file or ""))


def from_answer(answer):
    """The agent's answer to `restore`."""
    source = answer["source"] if answer["step"] >= 0 and answer["source"] != "none" else None
    files = answer.get("files") or {}
    found = Found(
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
    found.layout, found.kind = answer.get("layout"), answer.get("kind")
    return found


class Places:
    """A directory of steps and, perhaps, its archive."""

    def __init__(self, directory, archive=None):
        self.directory, self.archive = directory, archive

    def to_restore(self):
        """[Stored] one after another, the newest first, and where the archive has a copy that behind the other. Who
        takes the first that counts asks for no more: so the archive is looked at by those alone who cannot use the
        newest of the directory, or find none."""
        here, given = newest_first(self.directory), []
        if self.archive is None:
            yield from here
            return
        for stored in here:
            if stored.why is None and any(each.is_damaged for each in given):
                break  # of that one a copy may be in the archive
            given.append(stored)
            yield stored
            if stored.why is None:
                break
        try:
            archived = newest_first(self.archive)
        except RuntimeError:
            if all(stored.why is not None or stored in given for stored in here):
                raise
            archived = []
        merged, others = _merged(here, archived)
        yield from (stored for stored in (*merged, *others) if stored not in given)

    def in_turn(self):
        """Those of the directory, then those of the archive, which is looked at by who comes to it."""
        yield from newest_first(self.directory)
        if self.archive is not None:
            yield from newest_first(self.archive)

    def all(self):
        """(those of both, the newest first; what the archive has of another past)."""
        archived = [] if self.archive is None else newest_first(self.archive)
        return _merged(newest_first(self.directory), archived)


def _merged(here, archived):
    """(what counts behind what does not, what is of another past). Of two copies that of the archive is the later. What
    the archive counts higher than the directory, which has none of it, or as what is another step here, is of a past
    that this one does not go on from: an archive of another run, or one that a life did not know of."""
    highest = _highest_sequence(here)
    known, counting, others = {stored.save for stored in here}, [], []
    taken = {stored.manifest["sequence"] for stored in here if stored.save is not None}
    for stored in (*here, *archived):
        if stored.save is not None:
            sequence = stored.manifest["sequence"]
            is_of_another = stored.save not in known and (sequence > highest or sequence in taken)
            (others if is_of_another else counting).append(stored)
    for found in (counting, others):
        found.sort(key=lambda stored: -stored.manifest["sequence"])
    return [*(stored for stored in (*here, *archived) if stored.save is None), *counting], others


def _highest_sequence(here):
    """What is damaged has one, too, and does not tell it. Of nothing that counts it is above all."""
    damaged = 0
    for stored in here:
        if stored.save is not None:
            return stored.manifest["sequence"] + damaged
        damaged += stored.is_damaged
    return float("inf")


class NotThere(Exception):
    """No step that counts is what was asked for; the text says so, and what there is."""


def find(places, rank, agree, find_in=None):
    """The newest step on disk whose manifest and files are whole, for this rank. Sources that were passed over are in
    `why`. Checksums of the files it names are read: that takes as long as the disk does. `find_in`: what looks at a
    manifest, for layouts of other strategies. `agree(step, why)`: whether all ranks take that step, of which this one
    found its part whole (None) or not (why); -1: there is none."""
    passed_over, unreadable = [], []
    for stored in places.to_restore():
        folder = stored.folder
        if stored.why is not None:
            passed_over.append(f"{folder}: {stored.why}")
            unreadable += passed_over[-1:] if stored.is_unreadable else []
            continue
        found, why = _look(folder, stored.manifest, rank, find_in)
        if agree(stored.step, why):
            found.why = f"step {found.step} is restored from storage, {folder}{_passed(passed_over)}"
            return found
        passed_over.append(why or f"{folder}: {_NOT_WHOLE_ELSEWHERE}")
    agree(-1, None)
    if unreadable:  # a job does not begin anew beside steps that may be whole
        raise RuntimeError(
            f"phalanx.checkpoint: whether there is a step to restore is not known: {'; '.join(unreadable)}"
        )
    return Found(-1, None, why="; ".join(passed_over) or None)


def find_exactly(places, rank, agree, step=None, timeline=None, find_in=None):
    """As find(), but only of that step, that timeline, or both: NotThere, on all ranks, where none is there. Of
    several folders of that step the one that was stored last is meant: where its bytes are not whole, no other takes
    its place but a copy of the same save, since that is of another past. Of a timeline alone the next older step
    does."""
    passed_over, there, meant = [], [], None
    for stored in itertools.chain(*places.all()) if step is None else places.in_turn():
        there.append(stored)
        if step not in (None, stored.step) or not (timeline is None or stored.timeline in (None, timeline)):
            continue  # one whose timeline is not known may be meant
        if meant is not None and stored.save != meant:
            continue
        folder, manifest = stored.folder, stored.manifest
        if stored.why is not None:
            passed_over.append(f"{folder}: {stored.why}")
            continue
        found, why = _look(folder, manifest, rank, find_in)
        if why is None and found.own is None and _is_for_owners(manifest):
            why = f"{folder}: it has nothing of rank {rank}: it was saved by a world of {manifest['world_size']}"
        if agree(stored.step, why, manifest["sequence"], step is not None):
            found.why = f"step {found.step} is restored from storage, {folder}, as asked for{_passed(passed_over)}"
            return found
        passed_over.append(why or f"{folder}: {_NOT_WHOLE_ELSEWHERE}")
        if step is not None:
            meant = stored.save
    if meant is not None:
        raise NotThere(f"step {step} cannot be restored: {'; '.join(passed_over)}")
    agree(-1, None)
    what = "nothing" if step is None else f"no step {step}"
    of_timeline = "" if timeline is None else f" of timeline {timeline}"
    reasons = f" ({'; '.join(passed_over)})" if passed_over else ""
    raise NotThere(f"{places.directory} holds {what}{of_timeline} that counts{reasons}; {_text_of(there)}")


def _passed(sources):
    return f" (passed over: {'; '.join(sources)})" if sources else ""


def _text_of(there):
    """What counts there, for people: at most _NAMED_MAX steps."""
    counting = list({stored.save: stored for stored in there if stored.why is None}.values())
    if not counting:
        return "no other step is there"
    several = len({stored.timeline for stored in counting}) > 1
    named = [
        f"{stored.step} (timeline {stored.timeline})" if several else str(stored.step)
        for stored in counting[:_NAMED_MAX]
    ]
    more = f" and {len(counting) - _NAMED_MAX} more" if len(counting) > _NAMED_MAX else ""
    of_one = "" if several else f", of timeline {counting[0].timeline}"
    return f"newest first, there are {', '.join(named)}{more}{of_one}"


def _look(folder, manifest, rank, find_in):
    """(what this rank finds there, why its part is not whole)."""
    try:
        return (find_in or _found)(folder, manifest, rank), None
    except (OSError, ValueError) as error:
        return None, f"{folder}: {error}"


def newest_first(directory, name=None):
    """[Stored] of the folders of steps, by the order in which they were stored; what has no manifest stands by its
    number. All files of one that counts have their lengths, those of other ranks, too. `name`: of that folder alone.
    RuntimeError where nobody can look."""
    answer = _asked("steps", directory, *([] if name is None else [name]))
    return [Stored(directory, **step) for step in json.loads(answer)["steps"]]


def go_on_deleting(directory, name):
    """Of a step whose deletion was cut off."""
    _asked("delete", directory, name)


def _asked(request, directory, *more):
    """What `phalanx ckpt` says."""
    command = process.find_command("phalanx")
    if command is None:
        raise RuntimeError(
            "phalanx.checkpoint: the command phalanx is not there: is the wheel installed for this Python?"
        )
    words = [command, "ckpt", request, "--", directory, *more]
    done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise RuntimeError(f"phalanx.checkpoint: {directory}: {done.stderr.decode('utf-8', 'replace').strip()}")
    return done.stdout.decode("utf-8", "replace")


def manifest_of(folder):
    """Of a step that counts. RuntimeError where it does no more."""
    directory, name = os.path.split(folder)
    stored = next(iter(newest_first(directory, name)), None)
    if stored is None or stored.manifest is None:
        raise RuntimeError(f"phalanx.checkpoint: {folder} is gone, or not whole any more")
    return stored.manifest


class Stored:
    """A folder of a step. `manifest`: None, and `why` says why not, where it does not count, or where nobody can tell
    (`is_unreadable`); `timeline`: None where nobody knows; `save`: the same for all copies of one that counts."""

    __slots__ = ("folder", "is_damaged", "is_unreadable", "manifest", "name", "save", "step", "timeline", "why")

    def __init__(self, directory, name, step, state, why, timeline=None, manifest=None):
        self.folder = os.path.join(directory, name)
        self.save = None if manifest is None else tuple(manifest[key] for key in _OF_A_SAVE)
        self.name, self.step, self.timeline, self.manifest = name, step, timeline, manifest
        self.is_unreadable = state == "unreadable"
        self.is_damaged = state in ("damaged", "unreadable")
        self.why = why or None


def _is_for_owners(manifest):
    """Each rank needs a file of its own."""
    return any(shard["needed_by"] == "owner" for shard in manifest["shards"])


_IMAGES = ("torch-zip", "safetensors")


def why_no_layout(layout, wanted):
    """None: a step of that layout is one of those that are wanted."""
    if layout is None or layout in wanted:
        return None
    loads_it = {"dcp": "dcp.Checkpointer", "files": "files.Checkpointer"}.get(layout, "Checkpointer")
    return f"its layout is {layout}: load it through phalanx.checkpoint.{loads_it}"


def _must_be_of(manifest, layouts):
    why_not = why_no_layout(manifest["layout"], layouts)
    if why_not is not None:
        raise ValueError(why_not)


def _found(folder, manifest, rank):
    _must_be_of(manifest, _IMAGES)
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
    _must_be_of(manifest, (layout,))
    for shard in manifest["shards"]:
        if shard["needed_by"] == "every-rank" or shard["rank"] % world_size == rank:
            _checked(folder, shard)
    found = Found(manifest["step"], "disk", world_size=manifest["world_size"], directory=folder)
    found.manifest = manifest
    return found


def _checked(folder, shard):
    """The path of a shard whose length and checksum are right."""
    name = shard["file"]
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
