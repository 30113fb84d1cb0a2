"""The folders of a run's parts: locked while it lasts, and what an earlier run has left in them."""

import contextlib
import fcntl
import os
import shutil

from phalanx.preprocess import part
from phalanx.preprocess.refusal import Refused


@contextlib.contextmanager
def held(job, resume):
    """The folder of each key, for this run alone. Refuses what an earlier run has left, unless it is to go on."""
    with contextlib.ExitStack() as stack:
        for key in job.keys:
            folder = part.folder_of(job.prefix(key))
            os.makedirs(folder, exist_ok=True)
            stack.enter_context(locked(folder))
            clean(folder, resume)
        yield


@contextlib.contextmanager
def locked(folder):
    """An empty one is removed at the end: a run that has left nothing leaves no folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
        remove_if_empty(folder)
    except BlockingIOError:
        raise Refused(f"{folder}: another run works there; wait for its end, or take another --output-prefix") from None
    except Refused:
        drop_unfinished(folder)
        remove_if_empty(folder)
        raise
    finally:
        os.close(descriptor)


def remove_if_empty(folder):
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def clean(folder, resume):
    names = os.listdir(folder)
    finished = [name for name in names if name.endswith(".part")]
    if finished and not resume:
        raise Refused(
            f"{folder}: has {len(finished)} finished parts of a run that did not end; --resume goes on from them; "
            "remove the folder to begin anew"
        )
    drop_unfinished(folder)


def drop_unfinished(folder):
    """Of workers that have ended before they could: parts are trusted by their names."""
    for name in os.listdir(folder):
        if name.endswith(".writing"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))


def found(job):
    """{number: notes} of the splits whose parts are all there and can be trusted; others are made anew."""
    taken = {}
    for split in job.splits:
        notes = [
            part.trusted(part.folder_of(job.prefix(key)), split.number, job.parts, job.fingerprints[key])
            for key in job.keys
        ]
        if all(notes) and (job.skip_errors or not notes[0]["errors"]):
            taken[split.number] = {**notes[0], "tokens": sum(note["tokens"] for note in notes)}
    return taken


def drop_others(job, taken):
    """Removes finished parts of other options or another input: their names shall not be taken for ours."""
    dropped = 0
    for key in job.keys:
        folder = part.folder_of(job.prefix(key))
        for name in os.listdir(folder):
            if name.endswith(".part") and name not in {part.name_of(number) for number in taken}:
                os.unlink(os.path.join(folder, name))
                dropped += 1
    return dropped


def remove(job):
    for key in job.keys:
        shutil.rmtree(part.folder_of(job.prefix(key)), ignore_errors=True)
