"""DeepSpeed's universal checkpoints, from which it goes on with any number of data-parallel ranks: what its own
ds_to_universal.py makes of a step of ZeRO 1, 2 or 3, file by file, in a moment instead of in new processes.

    from phalanx.checkpoint import universal
    universal.convert("out/global_step100", "out/ucp")  # and out/latest_universal says "ucp"

    python -m phalanx.checkpoint.universal out/global_step100 out/ucp
"""

import contextlib
import errno
import fcntl
import os
import shutil

from phalanx.checkpoint.universal import native, source, whole, zero
from phalanx.checkpoint.universal.zero import Refused

__all__ = ["TRACKER", "Refused", "convert", "wants_universal"]

TRACKER = "latest_universal"
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
_THREADS = 8  # mostly they wait for the disk


def convert(step, target, tracker=TRACKER, stage=None):
    """Converts a step to the folder `target`, which is there when it is whole and on the disk; then the file `tracker`
    beside it names it. Whether it was to be written: False where it was there already, made of the same files.

    `step`: the path of a folder global_stepN, or one of source.py; no file of it is written. `stage`: of ZeRO that is
    to load it, where it is not that which saved it: 1, also for 2, or 3. Others that convert to the same folder wait.
    Refused: it cannot be converted here, in a sentence; OSError: it cannot be written. What was at `target` before is
    as it was then."""
    given = source.Folder(step) if isinstance(step, (str, os.PathLike)) else step
    target = os.path.abspath(target)
    try:
        return _convert(given, target, tracker, stage)
    except Refused as refused:
        raise Refused(f"{given.where}: {refused}") from refused


def _convert(given, target, tracker, stage):
    found = zero.step_of(given.names())
    stage = found.stage if stage is None else 3 if stage == 3 else 1
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with _alone(target):
        identity = source.identity(given, [*found.models, *found.optimizers])
        if whole.why_not(target, stage, identity) is None:
            _name(target, tracker)
            return False
        draft = f"{target}.writing-{os.urandom(8).hex()}"
        os.mkdir(draft)
        try:
            files = _write(given, found, draft, stage)
            manifest = whole.text(stage, len(found.optimizers), identity, files)
            native.publish(draft, target, whole.NAME, manifest, tracker)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return True


def wants_universal(folder):
    """Whether the engine that saved the step in that folder loads nothing but a universal checkpoint. Refused."""
    given = source.Folder(folder)
    return zero.wants_universal(given.load(zero.step_of(given.names()).models[0], check=False))


def _write(given, found, draft, stage):
    model = given.load(found.models[0])
    zero.must_fit(found, model)
    shards = [given.load(name) for name in found.optimizers]
    threads, written = min(_THREADS, 2 * len(os.sched_getaffinity(0))), []
    for files in zero.batches(found, model, shards, stage):
        written += native.write(draft, files, threads)
    copies = [source.copy(given, name, as_name) for name, as_name in zero.models_of(found, stage)]
    return written + native.write(draft, copies, threads)


@contextlib.contextmanager
def _alone(target):
    """While nobody else converts to that folder. What those have left there that were killed goes."""
    folder, name = os.path.split(target)
    path = os.path.join(folder, f".{name}.lock")
    lock = _locked(path)
    try:
        for entry in os.listdir(folder):
            if entry.startswith(f"{name}.writing-"):
                left = os.path.join(folder, entry)
                shutil.rmtree(left, ignore_errors=True)
                with contextlib.suppress(OSError):
                    os.unlink(left)
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):  # the trainer may remove the folder at any time
            os.unlink(path)
        os.close(lock)


def _locked(path):
    """A descriptor of the file, which is there and ours. File systems without locks are taken as they are."""
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(lock)
                raise
            return lock
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), os.stat(path)):
                return lock
        os.close(lock)  # who had it before has removed it


def _name(target, tracker):
    """The tracker names the folder, where it did not: who made it was killed in between."""
    folder, name = os.path.split(target)
    if tracker is None:
        return
    path = os.path.join(folder, tracker)
    with contextlib.suppress(FileNotFoundError), open(path) as file:
        if file.read() == name:
            return
    write_text(path, name)


def write_text(path, text):
    """Replaces the file, from one moment to the next."""
    with open(f"{path}.new", "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)
