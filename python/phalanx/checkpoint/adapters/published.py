"""Folders under the names of a framework, `out/checkpoint-1200` say, of the steps that lie in a checkpoint directory
below, `out/_phalanx/1200`: the same files by hard links, so that they take no room of their own. A folder appears by
one rename, and goes by one: nobody ever sees a half of it.

One process at a time changes what lies there. What it remembers: docs/formats/published-folders.md.
"""

import contextlib
import errno
import heapq
import json
import os
import re
import shutil
import urllib.parse

from phalanx.checkpoint import stored as directories
from phalanx.checkpoint.formats import disk
from phalanx.checkpoint.people import say
from phalanx.checkpoint.ranks import place

_NO_LINKS = (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS)
_DRAFT, _REPLACED, _REMOVED = ".publishing-", ".replaced-", ".removed-"  # in the checkpoint directory
_RECORD = "published.json"
_KNOWN = ("published", "kept", "before")  # had a folder; stay without one of theirs; were there before this job
_OURS, _OTHER = "ours", "other"
_END_BYTES = 64 << 10  # of a file: in torch's there are the checksums of all that is in it


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
        checkpointer.waits_at_exit = True  # what is stored last has its folder before the script ends

    def path(self, step):
        return os.path.join(self._parent, f"{self._prefix}{step:0{self._digits}d}")

    def _place_of(self, name):
        """Of a step's file, in the folder."""
        return path_of(name) if self._is_nested else name

    def steps(self, there=None):
        """Those that have a folder, the oldest first: ours as they were stored, others by their numbers, and ours among
        others by when they were written. `there`: what stored() has given."""
        there = self.stored() if there is None else there
        numbers = self.numbers()
        shown = set(numbers)
        ours = [each for each in reversed(there) if each.step in shown and self._lies_in(each) == _OURS]
        theirs = sorted(shown.difference(each.step for each in ours))
        dated = ([(step, self._written_ns(step)) for step in theirs], [(each.step, _ns(each.written)) for each in ours])
        merged = heapq.merge(*map(_never_earlier, dated), key=lambda entry: entry[0])
        return [step for _, step in merged]

    def numbers(self):
        """Of the folders, the lowest first."""
        found = set()
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self._parent):
                matched = self._name.match(entry.name)
                if matched and entry.is_dir():
                    found.add(int(matched[1]))
        return sorted(found)

    def _written_ns(self, step):
        """When its folder was written by who makes such: by the mark, since anybody writes into folders."""
        folder = self.path(step)
        for path in (os.path.join(folder, self._mark or ""), folder):
            with contextlib.suppress(FileNotFoundError):
                return os.stat(path).st_mtime_ns
        return 0

    def stored(self):
        """[StoredStep] of the directory alone, that which was stored last first."""
        return directories.steps(disk.Places(self._checkpointer.directory))

    def _delete(self, stored):
        """In the directory alone, where the archive has its copy, or is to have none; whether it is."""
        if self._is_owed(stored):
            return False
        directories.delete(self._checkpointer.directory, stored.step, stored.timeline)
        return True

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
        before = {_identity(each) for each in self._checkpointer.steps()}
        self._write_record({**self._record(), "before": before})

    def is_of_this_job(self, folder):
        """Whether the step that lies in that folder was saved by this job. A job's id may be that of an earlier one."""
        job, manifest = place.here().job_id, disk.manifest_of(folder)
        identity = tuple(manifest[name] for name in ("step", "sequence", "written_unix_ms"))
        return bool(job) and manifest["job_id"] == job and identity not in self._record()["before"]

    def ownership(self, there=None):
        """is_ours(step) of what is stored now: whether its folder has the files of a whole step of that number, and
        nobody has written to them since: who writes to a file in place changes both, and the step is damaged by it.
        `there`: what stored() has given."""
        by_step = {}
        for each in self.stored() if there is None else there:
            by_step.setdefault(each.step, []).append(each)
        return lambda step: any(
            self._lies_in(each) == _OURS and not _is_written_to(each.path) for each in by_step.get(step, ())
        )

    def _lies_in(self, stored):
        """What the folder of that step is: _OURS, with its files; _OTHER, a checkpoint of somebody else's; None: no
        checkpoint."""
        folder, is_ours = self.path(stored.step), None
        for name in _names(stored.path):
            own = self._place_of(name)
            is_same = _is_same(os.path.join(stored.path, name), os.path.join(folder, own))
            if is_same is False:
                return _OTHER if self._mark is None or self._is_checkpoint(folder) else None
            is_ours = is_ours or is_same
        if is_ours:
            return _OURS
        return _OTHER if self._is_checkpoint(folder) else None

    def _is_checkpoint(self, folder):
        """Whether it is one of the framework's, by the mark."""
        return self._mark is not None and os.path.exists(os.path.join(folder, self._mark))

    def repair(self):
        """At the beginning: ends what a killed process has begun. Steps that were stored and have no folder yet get
        one; those whose folder was removed or replaced since go, too."""
        if not os.path.isdir(self._checkpointer.directory):
            return
        self._end_what_was_begun()
        there = self.stored()
        self._adopt_if_copied(there)
        self._publish_all(there)
        record, left = self._record(), []
        for stored in there:
            identity = _identity(stored)
            is_to_stay = identity not in record["published"] or identity in record["kept"]
            if is_to_stay or self._lies_in(stored) == _OURS or not self._delete(stored):
                left.append(stored)
        self._forget(left)

    def _end_what_was_begun(self):
        directory = self._checkpointer.directory
        for name in os.listdir(directory):
            if name.startswith(_REPLACED) and name[len(_REPLACED) :].isdigit():
                self._give_back(int(name[len(_REPLACED) :]))
            elif name.startswith((_DRAFT, _REMOVED)):
                shutil.rmtree(os.path.join(directory, name), ignore_errors=True)

    def publish(self, step):
        """Makes the folder of a step that was just stored, and those of steps that came to storage unnoticed before it.
        OSError, LookupError."""
        there = self.stored()
        just = next((each for each in there if each.step == step), None)
        if just is None:
            raise LookupError(f"step {step} is not in {self._checkpointer.directory} any more")
        self._adopt_if_copied([each for each in there if each is not just])
        self._publish_all(there, just)

    def publish_late(self):
        """Makes the folders of steps that came to storage unnoticed, where none is stored behind them. OSError."""
        there = self.stored()
        self._adopt_if_copied(there)
        self._publish_all(there)

    def _adopt_if_copied(self, there):
        """In a directory that was copied nobody has removed or replaced what is not there, or is another file."""
        if self._is_recorded_here():
            return
        record = self._record()
        for stored in there:
            identity, lies = _identity(stored), self._lies_in(stored)
            if lies != _OURS:
                self._mend_times(stored)
                lies = self._lies_in(stored)
            if lies is not None:
                record["published"].add(identity)
            elif identity not in record["kept"]:
                record["published"].discard(identity)
            if lies == _OTHER:
                record["kept"].add(identity)
        self._write_record(record)

    def _mend_times(self, stored):
        """By these a folder is known to be a copy of a step, and a step to be what was stored. Who copies files may
        give them other ones."""
        names, folder = _names(stored.path), self.path(stored.step)
        pairs = [(os.path.join(stored.path, name), os.path.join(folder, self._place_of(name))) for name in names]
        with contextlib.suppress(PermissionError):  # of somebody else: then it is a folder of somebody else's
            os.utime(os.path.join(stored.path, "manifest.json"))
            if all(_has_same_end(source, target) for source, target in pairs):
                for source, target in pairs:
                    times = os.stat(source)
                    os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))

    def _publish_all(self, there, just=None):
        """What has had no folder yet, in the order in which it was stored; `just` is what this process has just stored.
        One that cannot be published holds up no other; then OSError."""
        record, failed, newest = self._record(), None, {}
        never = [each for each in there if _identity(each) not in record["published"]]
        if not never:
            return
        for stored in there:
            if _identity(stored) in record["published"]:
                newest[stored.step] = max(stored.sequence, newest.get(stored.step, 0))
        for stored in reversed(never):
            try:
                if self._publish(stored, newest.get(stored.step, 0), stored is just):
                    record["published"].add(_identity(stored))
                    newest[stored.step] = stored.sequence
            except OSError as error:
                failed = failed or error
        self._write_record(record)
        if failed is not None:
            raise failed

    def _publish(self, stored, newest, is_just_stored):
        """Whether it has a folder now. `newest`: the sequence of the step of that number that was published last."""
        folder, lies = self.path(stored.step), self._lies_in(stored)
        if newest > stored.sequence:
            self._delete(stored)  # we have come to that step once more since
            return False
        if lies == _OTHER and _changed(folder) > stored.written:
            if not is_just_stored:
                if self._delete(stored):
                    say(f"{stored.path} is removed: {folder} was written later, by somebody else")
                return False
            say(f"{folder} is dated later than what was just stored, and is replaced by it")
        if lies != _OURS:
            self._make(stored)
        return True

    def _make(self, stored):
        target = self.path(stored.step)
        self._give_back(stored.step)
        draft = self._draft(stored)
        if self._is_checkpoint(target):
            self._remove(stored.step)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.rename(target, self._away(_REPLACED, stored.step))
        os.rename(draft, target)
        _sync(self._parent)
        self._give_back(stored.step)
        os.utime(target, (stored.written, stored.written))  # by which others order folders

    def _draft(self, stored):
        draft = self._away(_DRAFT, stored.step)
        shutil.rmtree(draft, ignore_errors=True)
        os.mkdir(draft)
        for name in _names(stored.path):
            own = os.path.join(draft, self._place_of(name))
            os.makedirs(os.path.dirname(own), exist_ok=True)
            _link(os.path.join(stored.path, name), own)
        self._complete(stored, draft)
        os.utime(draft, (stored.written, stored.written))
        _sync_folders(draft)
        return draft

    def _give_back(self, step):
        """What callbacks have written where the checkpoint was to be, from where it lies meanwhile: to its folder, or
        as its folder where there is none."""
        replaced, target = self._away(_REPLACED, step), self.path(step)
        if not os.path.isdir(replaced):
            return
        if os.path.isdir(target):
            _move_others(replaced, target)
            _sync_folders(target)
            shutil.rmtree(replaced, ignore_errors=True)
        else:
            os.rename(replaced, target)

    def _away(self, prefix, step):
        return os.path.join(self._checkpointer.directory, f"{prefix}{step}")

    def _complete(self, stored, draft):
        """Where the folder is to have more than the step's files."""

    def rotate(self, limit, *spared):
        """Leaves the newest `limit` folders, the newest and those of the steps `spared` among them, and tidies. None:
        all. A folder of another's may be dated later than what was just stored: who has stored spares that."""
        there = self.stored()
        if limit is not None and limit > 0:
            shown = self.steps(there)
            to_stay = {*spared, *shown[-1:]}
            limit = max(limit, len(to_stay.intersection(shown)))
            for step in [step for step in shown if step not in to_stay][: max(0, len(shown) - limit)]:
                self._remove(step)
        self._tidy(there)

    def tidy(self, is_over=False):
        """Steps whose folder is gone go, too, but the newest and those that have had none. `is_over`: it was the
        framework that removed that one's at the end of the training."""
        self._tidy(self.stored(), is_over)

    def _tidy(self, there, is_over=False):
        record, left = self._record(), there[:1]
        for each in there[1:]:
            is_gone = _identity(each) in record["published"] and not os.path.isdir(self.path(each.step))
            if not is_gone or not self._delete(each):
                left.append(each)
        if is_over and there and not os.path.isdir(self.path(there[0].step)):
            self._write_record({**record, "kept": {*record["kept"], _identity(there[0])}})
        self._forget(left)

    def _forget(self, there):
        """What is gone, of which `there` is left, may come again under the same numbers."""
        record, left = self._record(), {_identity(each) for each in there}
        known = {**record, "published": record["published"] & left, "kept": record["kept"] & left}
        if known != record:
            self._write_record(known)

    def _remove(self, step):
        """Its folder, which is nobody's any more before a file of it goes."""
        away = self._away(_REMOVED, step)
        shutil.rmtree(away, ignore_errors=True)
        try:
            os.rename(self.path(step), away)
        except FileNotFoundError:
            return
        shutil.rmtree(away, ignore_errors=True)

    @property
    def _record_path(self):
        return os.path.join(self._checkpointer.directory, _RECORD)

    def _read_record(self):
        found = {}
        with contextlib.suppress(FileNotFoundError, ValueError), open(self._record_path, encoding="utf-8") as file:
            found = json.load(file)
        return found if isinstance(found, dict) else {}

    def _record(self):
        """{name: identities of steps}."""
        found = self._read_record()
        lists = {name: found[name] if isinstance(found.get(name), list) else [] for name in _KNOWN}
        return {name: {tuple(each) for each in entries if _is_identity(each)} for name, entries in lists.items()}

    def _is_recorded_here(self):
        """Whether the record is the file that was written, and no copy."""
        with contextlib.suppress(FileNotFoundError):
            return self._read_record().get("inode") == os.stat(self._record_path).st_ino
        return False

    def _write_record(self, record):
        lists = {name: sorted(record[name]) for name in _KNOWN}
        _replace(self._record_path, lambda inode: json.dumps({"inode": inode, **lists}))


def _identity(stored):
    """Numbers begin anew where all steps were removed; times do not."""
    return (stored.step, stored.sequence, round(stored.written * 1000))


def _is_identity(entry):
    return isinstance(entry, list) and all(isinstance(each, int) for each in entry)


def _ns(seconds):
    return round(seconds * 1000) * 1_000_000


def _never_earlier(dated):
    """(when, step) of each (step, when), which stand as they came: clocks are set back, and files are copied."""
    latest = 0
    for step, when in dated:
        latest = max(latest, when)
        yield latest, step


def _names(folder):
    """The files of a step, without our own."""
    return [name for name in os.listdir(folder) if name != "manifest.json" and not name.startswith(".")]


def _move_others(folder, to):
    """What is of the same name is the step's."""
    for name in os.listdir(folder):
        source, target = os.path.join(folder, name), os.path.join(to, name)
        if not os.path.lexists(target):
            os.rename(source, target)
        elif os.path.isdir(source) and os.path.isdir(target) and not os.path.islink(source):
            _move_others(source, target)


def _has_same_end(source, target):
    """Whether they are of one size, and end in the same bytes: of two checkpoints of one model they do not."""
    try:
        with open(source, "rb") as ours, open(target, "rb") as theirs:
            size = os.stat(source).st_size
            if os.stat(target).st_size != size:
                return False
            for file in (ours, theirs):
                file.seek(max(0, size - _END_BYTES))
            return ours.read() == theirs.read()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return False


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


def _sync_folders(folder):
    for inner, _, _ in os.walk(folder):
        _sync(inner)


def _sync(path):
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_text(path, text):
    """The file is what it was or has that text, on storage. One process at a time writes it."""
    _replace(path, lambda inode: text)


def _replace(path, text_of):
    """The same of what text_of() gives for the inode that the file will have."""
    draft = f"{path}.new"
    with open(draft, "w", encoding="utf-8") as file:
        file.write(text_of(os.fstat(file.fileno()).st_ino))
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
