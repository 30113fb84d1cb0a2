"""What lies whole in a checkpoint directory (docs/formats/checkpoint-manifest.md)."""

import contextlib
import dataclasses
import errno
import fcntl
import os
import re
import secrets
import warnings

from phalanx.checkpoint.formats import disk

TRACKERS = ("latest", "dlrover_latest.txt", "latest_checkpointed_iteration.txt")
UNFINISHED = ".unfinished"  # in a step's folder until its manifest is: all that is there is ours
_DELETED = ".deleted.json"  # what was the manifest of a step that is being deleted
_OURS = re.compile(r"((main|rank_\d+)\.(pt|safetensors)|__\d+_0\.distcp|\.metadata|\.unfinished)\Z")


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
    kind: str  # "full", "ddp", "dcp" or "files"


def steps(places):
    """[StoredStep], that which was stored last first."""
    try:
        there, _ = places.all()
    except RuntimeError as error:
        if places.archive is None:
            raise
        there = disk.newest_first(places.directory)
        warnings.warn(f"{error}: what it alone has is left out", RuntimeWarning, stacklevel=3)
    found = {}
    for each in there:
        if each.why is None:
            found.setdefault(each.save, each)  # of two copies the directory's
    return [_entry(each.folder, each.manifest) for each in found.values()]


def _entry(path, manifest):
    return StoredStep(
        step=manifest["step"],
        timeline=manifest["timeline"],
        sequence=manifest["sequence"],
        branch=manifest["branch"],
        world_size=manifest["world_size"],
        written=manifest["written_unix_ms"] / 1000,
        bytes=sum(shard["bytes"] for shard in manifest["shards"]),
        path=path,
        kind=manifest["kind"],
    )


# --- deleting


def delete(directory, step, timeline=None):
    """Removes what counts of that step, of all timelines or of one. False where another has done so, or there is none.
    OSError says what cannot be done.

    As retention does (docs/formats/checkpoint-manifest.md): the manifest goes first, so that nobody takes what is left
    for a step. Trackers name another one before that.
    """
    there = disk.newest_first(directory)
    for stored in there:
        was_begun = stored.step == step and stored.manifest is None
        if was_begun and os.path.exists(os.path.join(directory, stored.name, _DELETED)):
            disk.go_on_deleting(directory, stored.name)
    found = {
        stored.name: stored.manifest
        for stored in there
        if stored.why is None and stored.step == step and timeline in (None, stored.timeline)
    }
    if not found:
        return False
    _lead_away(directory, found)
    deleted = [_delete(os.path.join(directory, name), manifest) for name, manifest in found.items()]
    _lead_away(directory, found)  # where a tracker followed behind the manifest
    return any(deleted)


def _delete(folder, manifest):
    """Whether it was this call that has taken the manifest away. Files of others stay, and the folder with them. All is
    done to the folder that was opened: the name may become that of a new one as soon as it is free."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    listed = {shard["file"] for shard in manifest["shards"]}
    try:
        try:  # in one go: it counts no more, and who goes on with a deletion that is cut off knows what is to go
            os.rename("manifest.json", _DELETED, src_dir_fd=fd, dst_dir_fd=fd)
        except FileNotFoundError:
            return False
        os.fsync(fd)
        for name in os.listdir(fd):
            if name in listed or _OURS.match(name):
                _unlink(name, fd)
        _unlink(_DELETED, fd)
    except OSError as error:
        raise OSError(error.errno, error.strerror, folder) from error  # it names no more than a file in there
    finally:
        os.close(fd)
    try:
        os.rmdir(folder)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
            raise
    return True


def _unlink(name, fd):
    try:
        os.unlink(name, dir_fd=fd)
    except FileNotFoundError:
        return False
    return True


def _lead_away(directory, deleted):
    """Has trackers that name a deleted step name the newest one that is left; without one they go. Looks again behind
    that: a step may have been stored meanwhile, and its own word in a tracker been written over."""
    to_replace = {tracker: {_word(tracker, *entry) for entry in deleted.items()} for tracker in TRACKERS}
    newest = None
    while any(_read(os.path.join(directory, tracker)) in words for tracker, words in to_replace.items()):
        before, newest = newest, _newest_but(directory, deleted)
        if newest is not None and newest == before:
            return
        for tracker, words in to_replace.items():
            if _read(os.path.join(directory, tracker)) in words:
                _replace(directory, tracker, newest)
            if newest is not None:
                words.add(_word(tracker, *newest))


def _newest_but(directory, deleted):
    """(name, manifest) or None."""
    there = disk.newest_first(directory)
    return next(((each.name, each.manifest) for each in there if each.why is None and each.name not in deleted), None)


def _word(tracker, name, manifest):
    return name if tracker == "latest" else str(manifest["step"])


def _read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _replace(directory, tracker, newest):
    path = os.path.join(directory, tracker)
    if newest is None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return
    drafts = os.path.join(directory, ".writing")
    os.makedirs(drafts, exist_ok=True)
    draft = os.path.join(drafts, f"{newest[0]}-{tracker}.{secrets.token_hex(8)}")
    try:
        with open(draft, "x", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # else the next writer takes it for that of a dead one
            file.write(_word(tracker, *newest))
            file.flush()
            os.fsync(file.fileno())
            os.rename(draft, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)
