"""DeepSpeed's universal checkpoints, from which it goes on with any number of data-parallel ranks: what its own
ds_to_universal.py makes of a step of ZeRO 1, 2 or 3, file by file, in a moment instead of in new processes.

    from phalanx.checkpoint import universal
    universal.convert("out/global_step100", "out/ucp")  # and out/latest_universal says "ucp"

    python -m phalanx.checkpoint.universal out/global_step100 out/ucp
"""

import contextlib
import os
import shutil

from phalanx.checkpoint.universal import alone, native, source, whole, zero
from phalanx.checkpoint.universal.zero import Refused

__all__ = ["TRACKER", "Refused", "convert", "wants_universal"]

TRACKER = "latest_universal"
_THREADS = 8  # mostly they wait for the disk


def convert(step, target, tracker=TRACKER, stage=None):
    """Converts a step to the folder `target`, which is there when it is whole and on the disk; then the file `tracker`
    beside it names it. Whether it was to be written: False where it was there already, made of the same files.

    `step`: the path of a folder global_stepN, or one of source.py; no file of it is written. `stage`: of ZeRO that is
    to load it, where it is not that which saved it: 1, also for 2, or 3. Others that convert to the same folder wait.
    Refused: it cannot be converted here, in a sentence, or something else than a universal checkpoint is at `target`;
    OSError: it cannot be written. What was at `target` before is as it was then."""
    given = source.Folder(step) if isinstance(step, (str, os.PathLike)) else step
    target = os.path.abspath(target)
    try:
        return _convert(given, target, tracker, stage)
    except Refused as refused:
        raise Refused(f"{given.where}: {refused}") from refused


def _convert(given, target, tracker, stage):
    why_not = _why_not_replaced(target)
    if why_not is not None:
        raise Refused(why_not)
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


def _why_not_replaced(target):
    """None: nothing is there, an empty folder, or a universal checkpoint, also one of DeepSpeed's."""
    try:
        names = os.listdir(target)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        return f"{target} is a file: name a folder that is not there"
    if not names or whole.NAME in names or "zero" in names:
        return None
    return (
        f"{target} is there, and is no universal checkpoint, which would have {whole.NAME} or zero/: it is not "
        "replaced. Name a folder that is not there"
    )


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
    lock = alone.locked(path)
    try:
        for entry in os.listdir(folder):
            if entry.startswith(f"{name}.writing-"):
                left = os.path.join(folder, entry)
                if entry.endswith(".old") and not os.path.lexists(target):
                    os.rename(left, target)  # killed between the two renames of a file system that has no exchange
                    continue
                shutil.rmtree(left, ignore_errors=True)
                with contextlib.suppress(OSError):
                    os.unlink(left)
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):  # the trainer may remove the folder at any time
            os.unlink(path)
        os.close(lock)


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
