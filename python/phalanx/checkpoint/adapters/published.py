"""Folders under the names of a framework, `out/checkpoint-1200` say, of the steps that lie in a checkpoint directory
below, `out/_phalanx/1200`: the same files by hard links, so that they take no room of their own. A folder appears by
one rename, and goes by one: nobody ever sees a half of it.

One process at a time changes what lies there. What it remembers: docs/formats/published-folders.md.
"""

import contextlib
import errno
import json
import os
import re
import shutil
import urllib.parse

from phalanx.checkpoint import stored as directories
from phalanx.checkpoint.formats import disk

_NO_LINKS = (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS)
_DRAFT, _REMOVED = ".publishing-", ".removed-"  # in the checkpoint directory
_RECORD = "published.json"
_KNOWN = ("published", "kept", "before")  # had a folder; stay without one; were there before this job
_OURS, _OTHER = "ours", "other"


class Folders:
    """`checkpointer`: a phalanx.checkpoint.files.Checkpointer of the directory below; `prefix`: "checkpoint-", behind
    which numbers have `digits` at least; `mark`: a file that any checkpoint of the framework's has, None: each of its
    files is one; `archive_every`: that of the Checkpointer. What its archive holds is neither shown here nor deleted.
    `is_nested`: names of files are paths of name_of()."""

    def __init__(self, checkpointer, parent, prefix, mark=None, archive_every=None, digits=1, is_nested=False):
        self._checkpointer, self._parent, self._prefix = checkpointer, parent, prefix
        self._mark, self._archive_every = mark, archive_every
        self._digits, self._is_nested = digits, is_nested
        self._name = re.compile(re.escape(prefix) + r"(\d+)\Z")

    def path(self, step):
        return os.path.join(self._parent, f"{self._prefix}{step:0{self._digits}d}")

    def _place_of(self, name):
        """Of a step's file, in the folder."""
        return path_of(name) if self._is_nested else name

    def steps(self):
        """Those that have a folder, the oldest first: ours as they were stored, others among them by when they were
        made, of one moment by number."""
        made_ns = self._made_ns()
        ours = [each for each in reversed(self.stored()) if each.step in made_ns and self._lies_in(each) == _OURS]
        latest_ns = 0
        for each in ours:  # clocks are set back, sequences are not
            latest_ns = made_ns[each.step] = max(latest_ns, made_ns[each.step])
        sequence = {each.step: each.sequence for each in ours}
        return sorted(made_ns, key=lambda step: (made_ns[step], sequence.get(step, 0), step))

    def _made_ns(self):
        """{step: when its folder was made}."""
        found = {}
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self._parent):
                matched = self._name.match(entry.name)
                with contextlib.suppress(FileNotFoundError):
                    if matched and entry.is_dir():
                        found[int(matched[1])] = entry.stat().st_mtime_ns
        return found

    def stored(self):
        """[StoredStep] of the directory alone, that which was stored last first."""
        return directories.steps(disk.Places(self._checkpointer.directory))

    def _delete(self, stored):
        """In the directory alone, where the archive has its copy, or is to have none."""
        if not self._is_owed(stored):
            directories.delete(self._checkpointer.directory, stored.step, stored.timeline)

    def _is_owed(self, stored):
        """Whether the archive is still to get it. Without `archive_every` it gets the newest, which nobody deletes
        here."""
        archive, every = self._checkpointer.archive, self._archive_every
        if archive is None or not every or stored.step % every:
            return False
        copies = directories.steps(disk.Places(archive))
        return all((each.step, each.sequence) != (stored.step, stored.sequence) for each in copies)

    def begin(self):
        """In the first life of a job: what is there now, in the archive too, is of others."""
        before = [_identity(each) for each in self._checkpointer.steps()]
        self._write_record({**self._record(), "before": before})

    def is_of_this_job(self, step, sequence, written_unix_ms):
        return [step, sequence, written_unix_ms] not in self._record()["before"]

    def is_ours(self, step):
        """Whether its folder has the files of a whole step of that number, and nobody has written to them since: who
        writes to a file in place changes both, and the step is damaged by it."""
        return any(
            each.step == step and self._lies_in(each) == _OURS and not _is_written_to(each.path)
            for each in self.stored()
        )

    def _lies_in(self, stored):
        """What the folder of that step is: _OURS, with its files; _OTHER, a checkpoint of somebody else's; None: no
        checkpoint."""
        folder, is_ours = self.path(stored.step), None
        for name in _names(stored.path):
            place = self._place_of(name)
            is_same = _is_same(os.path.join(stored.path, name), os.path.join(folder, place))
            if is_same is False:
                return _OTHER if os.path.exists(os.path.join(folder, self._mark or place)) else None
            is_ours = is_ours or is_same
        return _OURS if is_ours else None

    def repair(self):
        """At the beginning: ends what a killed process has begun. Steps that were stored and have no folder yet get
        one; those whose folder was removed or replaced since go, too."""
        directory = self._checkpointer.directory
        if not os.path.isdir(directory):
            return
        for name in os.listdir(directory):
            if name.startswith((_DRAFT, _REMOVED)):
                shutil.rmtree(os.path.join(directory, name), ignore_errors=True)
        self._publish_all(self._never_published())
        for stored in self._published():
            if self._lies_in(stored) != _OURS and _identity(stored) not in self._record()["kept"]:
                self._delete(stored)
        self._forget()

    def publish(self, step):
        """Makes the folder of a step that is stored, and those of steps that came to storage unnoticed before it.
        OSError, LookupError."""
        there = self.stored()
        if all(each.step != step for each in there):
            raise LookupError(f"step {step} is not in {self._checkpointer.directory} any more")
        self._publish_all(self._never_published())

    def _never_published(self):
        """[StoredStep] that have had no folder yet, that which was stored last first."""
        known = self._record()["published"]
        return [each for each in self.stored() if _identity(each) not in known]

    def _published(self):
        known = self._record()["published"]
        return [each for each in self.stored() if _identity(each) in known]

    def _publish_all(self, never):
        """In the order in which they were stored. One that cannot be published holds up no other; then OSError."""
        failed = None
        for stored in reversed(never):
            try:
                self._publish(stored)
            except OSError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _publish(self, stored):
        lies = self._lies_in(stored)
        later = [each for each in self._published() if each.step == stored.step and each.sequence > stored.sequence]
        if later or (lies == _OTHER and _changed(self.path(stored.step)) > stored.written):
            self._delete(stored)  # the framework has come to that step once more since, with us or by itself
            return
        if lies != _OURS:
            self._make(stored)
        record = self._record()
        record["published"].append(_identity(stored))
        self._write_record(record)

    def _make(self, stored):
        target, directory = self.path(stored.step), self._checkpointer.directory
        draft = os.path.join(directory, f"{_DRAFT}{stored.step}")
        shutil.rmtree(draft, ignore_errors=True)
        os.mkdir(draft)
        for name in _names(stored.path):
            place = os.path.join(draft, self._place_of(name))
            os.makedirs(os.path.dirname(place), exist_ok=True)
            _link(os.path.join(stored.path, name), place)
        self._complete(stored, draft)
        is_checkpoint = os.path.exists(os.path.join(target, self._mark)) if self._mark else False
        if os.path.isdir(target) and not is_checkpoint:
            _move_others(target, draft)
        os.utime(draft, (stored.written, stored.written))  # by which folders are ordered
        for inner, _, _ in os.walk(draft):
            _sync(inner)
        self._remove(stored.step)
        os.rename(draft, target)
        _sync(self._parent)

    def _complete(self, stored, draft):
        """Where the folder is to have more than the step's files."""

    def rotate(self, limit, best):
        """Leaves the newest `limit` folders, the newest and that of step `best` among them, and tidies. None: all."""
        if limit is not None and limit > 0:
            there = self.steps()
            spared = {best, *there[-1:]}
            limit = max(limit, len(spared.intersection(there)))
            for step in [step for step in there if step not in spared][: max(0, len(there) - limit)]:
                self._remove(step)
        self.tidy()

    def tidy(self, is_over=False):
        """Steps whose folder is gone go, too, but the newest and those that have had none. `is_over`: it was the
        framework that removed that one's at the end of the training."""
        stored, published = self.stored(), self._published()
        for each in stored[1:]:
            if each in published and not os.path.isdir(self.path(each.step)):
                self._delete(each)
        if is_over and stored and not os.path.isdir(self.path(stored[0].step)):
            self._write_record({**self._record(), "kept": [_identity(stored[0])]})
        self._forget()

    def _forget(self):
        """What is gone may come again under the same numbers."""
        record, there = self._record(), [_identity(each) for each in self.stored()]
        left = {name: [each for each in record[name] if each in there] for name in ("published", "kept")}
        left["before"] = record["before"]
        if left != record:
            self._write_record(left)

    def _remove(self, step):
        """Its folder, which is nobody's any more before a file of it goes."""
        away = os.path.join(self._checkpointer.directory, f"{_REMOVED}{step}")
        shutil.rmtree(away, ignore_errors=True)
        try:
            os.rename(self.path(step), away)
        except FileNotFoundError:
            return
        shutil.rmtree(away, ignore_errors=True)

    def _record(self):
        """{name: identities of steps}."""
        path = os.path.join(self._checkpointer.directory, _RECORD)
        found = {}
        with contextlib.suppress(FileNotFoundError, ValueError), open(path, encoding="utf-8") as file:
            found = json.load(file)
        if not isinstance(found, dict):
            found = {}
        return {name: found[name] if isinstance(found.get(name), list) else [] for name in _KNOWN}

    def _write_record(self, record):
        replace_text(os.path.join(self._checkpointer.directory, _RECORD), json.dumps(record))


def _identity(stored):
    """Numbers begin anew where all steps were removed; times do not."""
    return [stored.step, stored.sequence, round(stored.written * 1000)]


def _names(folder):
    """The files of a step, without our own."""
    return [name for name in os.listdir(folder) if name != "manifest.json" and not name.startswith(".")]


def _move_others(folder, to):
    """What callbacks have written where the checkpoint was to be: what is of the same name is the step's."""
    for name in os.listdir(folder):
        if not os.path.lexists(os.path.join(to, name)):
            os.rename(os.path.join(folder, name), os.path.join(to, name))


def _is_same(source, target):
    """Whether they are one file, or a copy that nobody has written to; None: there is no target."""
    try:
        ours, theirs = os.stat(source), os.stat(target)
    except FileNotFoundError:
        return None
    is_one = (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)
    return is_one or (ours.st_size, ours.st_mtime_ns) == (theirs.st_size, theirs.st_mtime_ns)


def _is_written_to(folder):
    """A file of a step, behind its manifest."""
    closed = os.stat(os.path.join(folder, "manifest.json")).st_mtime_ns
    return any(os.stat(os.path.join(folder, name)).st_mtime_ns > closed for name in _names(folder))


def _changed(folder):
    """When a file of it was written last, in seconds since 1970."""
    paths = [os.path.join(inner, name) for inner, _, names in os.walk(folder) for name in names]
    return max((os.stat(path).st_mtime for path in paths if os.path.isfile(path)), default=0.0)


def name_of(path):
    """Of a file in a folder below a step: one that has no '/'."""
    return urllib.parse.quote(path, safe=" ")


def path_of(name):
    return urllib.parse.unquote(name)


def _link(source, target):
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copy2(source, target)  # a file system without links: it takes its room twice; _is_same() sees the time
        _sync(target)


def _sync(path):
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_text(path, text):
    """The file is what it was or has that text, on storage. One process at a time writes it."""
    draft = f"{path}.new"
    with open(draft, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(draft, path)


def publish_file(source, target):
    """A file of a stored step under another name, by one rename."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    draft = os.path.join(os.path.dirname(target), f".{os.path.basename(target)[:200]}{_DRAFT}")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(draft)
    _link(source, draft)
    os.rename(draft, target)
    _sync(os.path.dirname(target))
