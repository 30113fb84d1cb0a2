"""accelerate's save_state() and load_state(), through memory.

    accelerator = Accelerator()
    model, optimizer, data, schedule = accelerator.prepare(model, optimizer, data, schedule)
    flash = FlashCheckpoint(accelerator, "out")
    done = flash.load_state()
    ...
    flash.save_state(done + 1, storage=Storage.DISK)

`out/checkpoint_N` has the files of accelerator.save_state(), which accelerator.load_state() reads without us.
docs/frameworks/accelerate.md is for users.
"""

import functools
import os
import weakref

import accelerate

from phalanx.checkpoint import files
from phalanx.checkpoint.adapters import captured, early, published, restored, saver
from phalanx.checkpoint.handle import Storage
from phalanx.checkpoint.people import say
from phalanx.checkpoint.ranks import place

_WHO = "phalanx.checkpoint.adapters.accelerate"
_PREFIX, _BELOW = "checkpoint_", "_phalanx"
_STATES = ("optimizer",)  # begins the names of what torch.save writes, and is large
_KNOWN = ("NO", "MULTI_GPU", "MULTI_CPU", "MULTI_NPU", "MULTI_MLU", "MULTI_XPU", "MULTI_HPU")


class FlashCheckpoint:
    """Of what was prepared with an Accelerator, and registered with it. To be made behind prepare(), on all ranks,
    which call load_state(), save_state() and close() together. `total_limit`: so many folders stay, None: all.
    `settings` are those of phalanx.checkpoint.files.Checkpointer. ValueError says what cannot be saved so.
    """

    def __init__(self, accelerator, directory, total_limit=None, **settings):
        why = _why_not(accelerator, total_limit, settings)
        if why is not None:
            raise ValueError(f"{_WHO}: {why}")
        self._accelerator, self._limit = accelerator, total_limit
        self._output = os.path.abspath(directory)
        below = os.path.join(self._output, _BELOW)
        os.makedirs(below, exist_ok=True)
        self._checkpointer = files.Checkpointer(below, trackers=(), **settings)
        self._folders = published.Folders(
            self._checkpointer, self._output, _PREFIX, archive_every=settings.get("archive_every"), is_nested=True
        )
        self._saver = saver.Saver(self._checkpointer)
        self._restorer = restored.Restorer(self._checkpointer, "accelerate", _WHO, is_nested=True)
        self._place = place.here()
        self._scratch = captured.scratch("accelerate", below, self._place.rank)
        weakref.finalize(self, captured.release, self._scratch)
        self.source = None  # of the last load_state(): "memory", "disk" or None
        self._early = early.Early(self._checkpointer, self._contents)
        self._early.behind_first_step_of(accelerator._optimizers)

    def load_state(self, **arguments):
        """The step that was loaded, the newest that all ranks have, by accelerator.load_state(folder, ..); 0: there is
        none."""
        if self._place.rank == 0:
            try:
                self._folders.repair()
            except (OSError, RuntimeError) as error:
                say(f"what a killed process has left stays: {error}")
        self._restorer.agreed(None)
        found, step = self._checkpointer.load(default=None)
        self.source = None if found is None else found.source
        if found is None:
            self._tell_of_others()
            return 0
        folder = self._restorer.folder_of(found, f"{_PREFIX}{step}")
        try:
            self._accelerator.load_state(folder, **arguments)
        finally:
            self._restorer.of_all(None)
            self._restorer.let_go()
        return step

    def _tell_of_others(self):
        others = self._folders.numbers() if self._place.rank == 0 else []
        if others:
            folder = self._folders.path(others[-1])
            say(
                f"nothing is loaded: there is no step in {self._checkpointer.directory}, to which {folder} belongs: "
                f"copy both, or load that one by accelerator.load_state({folder!r})"
            )

    def save_state(self, step, storage=Storage.MEMORY):
        """A SaveHandle. With Storage.DISK a folder of that step appears when it is stored."""
        self._early.saves()
        contents = self._contents()
        is_told = storage is Storage.DISK and self._place.rank == 0
        return self._saver.save(step, contents, storage, self._publish if is_told else None)

    def close(self):
        """Waits until what was saved is stored, and lies where it belongs."""
        self._checkpointer.close()

    def _contents(self):
        accelerator = self._accelerator
        naming, iteration = accelerator.project_configuration, accelerator.project_configuration.iteration
        was_automatic, naming.automatic_checkpoint_naming = naming.automatic_checkpoint_naming, False
        try:
            write = functools.partial(accelerator.save_state, safe_serialization=True)
            weights, others = captured.capture(write, self._scratch, _STATES)
        except captured.NotCaptured as error:
            raise ValueError(f"{_WHO}: {error}") from None
        finally:
            naming.automatic_checkpoint_naming, naming.iteration = was_automatic, iteration
        return {**weights, **others}

    def _publish(self, result):
        folder = self._folders.path(result.step)
        if not result.stored:
            return say(f"{folder} is not stored: {result.why}")
        try:
            self._folders.publish(result.step)
            self._folders.rotate(self._limit, result.step)
        except (OSError, LookupError, RuntimeError) as error:
            say(f"{folder} is in {self._checkpointer.directory}, and not where it belongs: {error}")
        return None


def _why_not(accelerator, total_limit, settings):
    """None: it can be saved for."""
    kind = getattr(accelerator.distributed_type, "value", str(accelerator.distributed_type))
    if kind == "DEEPSPEED":
        return "this Accelerator uses DeepSpeed: use phalanx.checkpoint.adapters.deepspeed"
    if kind not in _KNOWN:
        return f"this Accelerator uses {kind}. Here DDP and single processes are saved for"
    if accelerator.project_configuration.save_on_each_node:
        return "save_on_each_node=True: the directory is one that all nodes see: leave it out"
    if total_limit is not None and (type(total_limit) is not int or total_limit < 1):
        return f"total_limit is {total_limit!r}; expected a number above 0, or None for all"
    taken = {"keep_last", "keep_every", "trackers", "layout"}.intersection(settings)
    if taken:
        return f"{taken.pop()} is given, which total_limit and accelerate decide: leave it out"
    if not hasattr(accelerate.utils.other, "save"):
        return f"accelerate {accelerate.__version__} saves in another way: expected 0.34 or later"
    return None
