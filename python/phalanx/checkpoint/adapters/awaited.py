"""Single files under the names of a framework, `out/epoch=2.ckpt` say, of steps that lie in a checkpoint directory
below: each appears, by a hard link and a rename, when its step is stored. What is remembered of them, so that the next
life ends what a killed one has begun: docs/formats/published-folders.md.
"""

import contextlib
import json
import os
import pickle
import stat
import threading

import torch

from phalanx.checkpoint.adapters import published
from phalanx.checkpoint.formats import several
from phalanx.checkpoint.people import say

KEPT = 2  # steps below: one more than is needed, so that a newer one does not end what is being put in its place
STORED_WAIT_S = 600
_RECORD = "awaited.json"
_OF_SLURM = "hpc_ckpt"  # begins the names of what Lightning saves as Slurm takes the job away


class Awaited:
    """The files that appear when their step is stored, and those that go then, on rank 0. A file of the checkpoint
    directory says the same, so that the next life ends what a killed one has begun. `remove(path)` is the
    framework's."""

    def __init__(self, checkpointer, remove):
        self._checkpointer, self._remove = checkpointer, remove
        self._record = os.path.join(checkpointer.directory, _RECORD)
        # Of all below, and of the files that it names. A signal's handler may save meanwhile, as Lightning's for Slurm.
        self._lock = threading.RLock()
        self._is_writing, self._is_written = False, True
        self._steps = self._read()  # step -> {"behind": sequence, "name": "", "paths": [..], "removed": [..]}
        # {step: why its files are not there}, of those that nobody tells of any more
        self._left = dict.fromkeys(self._steps, "the process that saved it was ended before")
        self._of_before = set(self._steps)  # of a life that has ended: its steps are made once more
        self._told = set()  # (step, why)
        self._behind = max((each.sequence for each in checkpointer.steps()), default=0)

    def add(self, step, path, name=None):
        """Of a step that is about to be saved, in a file of that name; None: of the same one."""
        with self._lock:
            self._is_wanted(path)
            removed = self._steps.pop(step, {}).get("removed", [])
            name = name or os.path.basename(path)
            self._steps[step] = {"behind": self._behind, "name": name, "paths": [path], "removed": removed}
            self._of_before.discard(step)
            self._left.pop(step, None)
            self._write()

    def add_path(self, step, path):
        """The same state once more, under another name. False: it is not on its way any more."""
        with self._lock:
            if step not in self._steps:
                return False
            self._is_wanted(path)
            self._steps[step]["paths"].append(path)
            self._write()
            return True

    def awaits(self, path):
        with self._lock:
            return any(path in each["paths"] for step, each in self._steps.items() if step not in self._of_before)

    def wait(self):
        """Until all that was saved is stored, or is known not to be. False where that takes longer than ten minutes."""
        return self._checkpointer.finish_telling(STORED_WAIT_S)

    def forget(self, step):
        """It was not saved."""
        with self._lock:
            self._forget(step)

    def names(self, path):
        """Something is on its way there, also what a life before has saved."""
        with self._lock:
            return any(path in each["paths"] for each in self._steps.values())

    def drop(self, path):
        """It is written otherwise, or is to go."""
        with self._lock:
            there = [each for each in self._steps.values() if path in (*each["paths"], *each["removed"])]
            self._is_wanted(path)
            for each in there:
                each["paths"] = [other for other in each["paths"] if other != path]
            if there:
                self._write()

    def make_way(self, path):
        """The framework writes it itself, behind what is on its way there."""
        if is_local(path):
            self.drop(os.path.abspath(path))
            unlink_shared(path)

    def _is_wanted(self, path):
        """It is not to go when it has come."""
        for each in self._steps.values():
            each["removed"] = [other for other in each["removed"] if other != path]

    def remove(self, path):
        """Now where nothing is on its way; else behind the newest of that."""
        with self._lock:
            newest = self._steps.get(next(reversed(self._steps), None))  # the last to be added
            if newest is not None and path not in newest["paths"]:
                newest["removed"].append(path)
                self._write()
                return
        self.drop(path)
        self._remove(path)

    def publish(self):
        """What is stored by now."""
        with self._lock:
            self._publish_until(max(self._steps, default=0))

    def publish_found(self, step, folder):
        """The files of a step that the training goes on from, which may be in memory alone."""
        with self._lock:
            if step in self._left and os.path.exists(os.path.join(folder, self._steps[step]["name"])):
                self._publish(step, folder)

    def on_stored(self, result):
        """In a thread of the Checkpointer's, one step after another."""
        with self._lock:
            if not result.stored and not result.may_come:
                self._lose(result.step, result.why)
            there = self._publish_until(result.step)
            if result.may_come:
                self._leave(result.step, result.why)
            if result.stored:  # none that is older comes to storage behind it
                left = {result.step: "it is gone", **self._left}
                for step in sorted(left.keys() - there):
                    self._lose(step, left[step])

    def finish(self):
        """Waits until what was saved is where it belongs. What is not stored by then is told, and left to the next
        life."""
        self.wait()
        with self._lock:
            self._publish_until(max(self._steps, default=0))
            for step, why in sorted(self._left.items()):
                self._leave(step, why)

    def _publish_until(self, last):
        """The steps that are awaited and stored."""
        there = {}
        for each in self._checkpointer.steps() if self._steps else ():
            if each.step in self._steps and each.sequence > self._steps[each.step]["behind"]:
                there.setdefault(each.step, each.path)  # the newest of several
        for step in sorted(there):
            if step <= last:
                self._publish(step, there[step])
        return there.keys()

    def _publish(self, step, folder):
        awaited = self._steps[step]
        whys = {path: _why_not_published(os.path.join(folder, awaited["name"]), path) for path in awaited["paths"]}
        awaited["paths"] = [path for path, why in whys.items() if why is not None]
        if awaited["paths"]:  # once more with the next, or in the next life
            self._write()
            self._leave(step, whys[awaited["paths"][0]])
            return
        for path in awaited["removed"]:
            self._remove(path)
        self._forget(step)

    def _leave(self, step, why):
        """Its files may appear later."""
        if step not in self._steps:
            return
        self._left[step] = why
        if (step, why) not in self._told:
            self._told.add((step, why))
            for path in self._steps[step]["paths"]:
                say(f"{path} is not there yet: {why}")

    def _lose(self, step, why):
        """Those that were to go stay."""
        for path in self._steps.get(step, {}).get("paths", ()):
            say(f"{path} is not stored: {why}")
        self._forget(step)

    def _forget(self, step):
        self._left.pop(step, None)
        if self._steps.pop(step, None) is not None:
            self._write()

    def _read(self):
        with contextlib.suppress(FileNotFoundError, ValueError), open(self._record, encoding="utf-8") as file:
            found = json.load(file)
            return {int(step): each for step, each in found.items() if _is_awaited(each)} if _is_object(found) else {}
        return {}

    def _write(self):
        """Where a signal's handler comes while it is written, it is written once more."""
        self._is_written = False
        if self._is_writing:
            return
        self._is_writing = True
        try:
            while not self._is_written:
                self._is_written = True
                published.replace_text(self._record, json.dumps(self._steps))
        finally:
            self._is_writing = False


def form(value):
    """What is equal for two dumps of the same state: of tensors where they lie, and how often they were changed. A
    module, which may be large, is like no other."""
    if isinstance(value, torch.nn.Module):
        return object()
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return object()  # as nothing else
        changes = -1 if value.is_inference() else value._version
        return "tensor", value.data_ptr(), changes, tuple(value.shape), value.dtype
    if isinstance(value, dict):
        return "dict", [(key, form(each)) for key, each in value.items()]
    if isinstance(value, (list, tuple)):
        return "list", [form(each) for each in value]
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    try:
        return pickle.dumps(value)
    except (pickle.PicklingError, TypeError, AttributeError):
        return object()


def rng_of(rank):
    """The file of a rank's random numbers, beside that of the framework."""
    return f"rng_{rank}.pt"


def is_local(path):
    """No URL, also none of local files."""
    return "://" not in os.fspath(path) and "::" not in os.fspath(path)


def is_plain(path):
    """A file of a step may lie there: a local one, whose name a file of a step may have."""
    return is_local(path) and several.why_no_name(os.path.basename(path)) is None


def is_of_slurm(path):
    """Lightning saves it as Slurm takes the job away: who has asked for it waits for the file."""
    return os.path.basename(path).startswith(_OF_SLURM)


def unlink_shared(path):
    """A file that others have, too: where temporary files lie on another file system Lightning and Fabric write into
    it, and a stored step would be what they write."""
    with contextlib.suppress(FileNotFoundError):
        info = os.stat(path)
        if stat.S_ISREG(info.st_mode) and info.st_nlink > 1:
            os.unlink(path)


def _why_not_published(source, path):
    """None: it is there."""
    try:
        published.publish_file(source, path)
    except OSError as error:
        return str(error)
    return None


def _is_object(found):
    return isinstance(found, dict)


def _is_awaited(found):
    """As docs/formats/published-folders.md has it."""
    kinds = {"behind": int, "name": str, "paths": list, "removed": list}
    return _is_object(found) and all(isinstance(found.get(key), kind) for key, kind in kinds.items())
