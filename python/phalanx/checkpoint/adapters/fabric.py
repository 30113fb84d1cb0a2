"""Lightning Fabric: fabric.save() holds a loop for the copy alone, and fabric.load() reads memory where it is there.

    fabric = Fabric(devices=8, strategy="ddp")
    fabric.launch()
    model, optimizer = fabric.setup(model, optimizer)
    flash = FlashCheckpoint(fabric, "out")
    state = {"model": model, "optimizer": optimizer, "step": 0}
    flash.load(state)
    ...
    fabric.save("out/step-100.ckpt", state)

Files are those of fabric.save(), at the paths that it was given; Fabric reads them without us. Its CheckpointIO is
called on rank 0 alone, and a save that survives any rank is one of all ranks: so it is the strategy's own functions
that are taken over. docs/frameworks/lightning.md is for users.
"""

import functools
import operator
import os
import sys

from torch.optim import Optimizer

if "lightning_fabric" in sys.modules and "lightning.fabric" not in sys.modules:
    from lightning_fabric.plugins.io import CheckpointIO, TorchCheckpointIO
    from lightning_fabric.wrappers import _unwrap_objects
else:
    from lightning.fabric.plugins.io import CheckpointIO, TorchCheckpointIO
    from lightning.fabric.wrappers import _unwrap_objects

from phalanx.checkpoint import files
from phalanx.checkpoint.adapters import awaited, early, restored, saver
from phalanx.checkpoint.handle import Storage
from phalanx.checkpoint.people import say
from phalanx.checkpoint.ranks import place

_WHO = "phalanx.checkpoint.adapters.fabric"
_BELOW, _FILE, _SAVED_AS = "_phalanx", "state.ckpt", "saved_as.txt"
_STRATEGIES = ("SingleDeviceStrategy", "DDPStrategy")
_SHARDED = "which writes its shards itself: save by phalanx.checkpoint.dcp"
_OTHERS = {
    "FSDPStrategy": _SHARDED,
    "ModelParallelStrategy": _SHARDED,
    "DeepSpeedStrategy": "whose engine writes by itself: save by phalanx.checkpoint.adapters.deepspeed",
}


class FlashCheckpoint:
    """Takes over a Fabric's save() and load(), behind launch(). What is saved lies in `directory`/_phalanx, too.

    All ranks make one, and call its functions together. `step_key` is the key of a state under which stands how many
    steps are done: what has none is saved as ever. `settings` are those of phalanx.checkpoint.files.Checkpointer.
    ValueError says what cannot be saved so.
    """

    def __init__(self, fabric, directory, step_key="step", **settings):
        why = _why_not(fabric, directory, settings)
        if why is not None:
            raise ValueError(f"{_WHO}: {why}")
        self._fabric, self._strategy, self._key = fabric, fabric.strategy, step_key
        below = os.path.join(os.path.abspath(directory), _BELOW)
        os.makedirs(below, exist_ok=True)
        self._checkpointer = files.Checkpointer(
            below, keep_last=awaited.KEPT, trackers=(), weights_only=False, **settings
        )
        self._checkpointer.waits_at_exit = True  # what is stored last has its file before the script ends
        self._saver = saver.Saver(self._checkpointer)
        self._early = None  # of the state that load() was given
        self._restorer = restored.Restorer(self._checkpointer, "fabric", _WHO)
        self._place = place.here()
        self._is_later_life = self._restorer.is_later_life()
        self._in_memory = os.path.join(below, _FILE)  # stands for a save to memory alone, and for the newest one
        self._keys = None  # of a state that a training goes on from
        self._newest = None  # what load() has given, (StoredFiles or None, step); None: not asked since the last save
        self._handle = self._form = None  # of the last save; the form on rank 0
        self.source = None  # of the last load, by fabric.load() as well: "memory", "disk" or None
        self._has_told = False
        self._awaited = None  # on rank 0
        if self._place.rank == 0:
            self._awaited = awaited.Awaited(self._checkpointer, os.unlink)
            self._awaited.publish()
        self._restorer.of_all(None)  # files of the last life are there before any rank looks for them
        self._stock_io, self._stock_save = self._strategy.checkpoint_io, self._strategy.save_checkpoint
        self._strategy.checkpoint_io = _Io(self._stock_io, self._loaded)
        self._strategy.save_checkpoint = self._save_checkpoint

    # --- saving

    def save(self, state):
        """Saves what fabric.save() would, to memory; a SaveHandle. A step that was saved already is not saved again."""
        self._must_be_open()
        if self._step_of(state) is None:
            raise ValueError(
                f"{_WHO}: state[{self._key!r}] is {state.get(self._key, 'not there')!r}; expected the number of steps "
                "that are done: step_key= names another key"
            )
        self._fabric.save(self._in_memory, state)
        return self._handle

    def wait(self):
        """Waits until nothing of the last save is read any more: to be called before anything but an optimizer's step()
        or load_state_dict() writes parameters or optimizer states."""
        self._checkpointer.wait()

    def finish(self):
        """All ranks together: until what was saved is where it belongs, or is known not to be, which a line says."""
        if self._place.rank == 0:
            self._awaited.finish()
        self._restorer.of_all(None)

    def close(self):
        """finish(), and from then on Fabric saves and loads by itself."""
        if self._is_open():
            self.finish()
            self._strategy.save_checkpoint, self._strategy.checkpoint_io = self._stock_save, self._stock_io
            self._checkpointer.close()

    def _is_open(self):
        return self._strategy.save_checkpoint == self._save_checkpoint

    def _must_be_open(self):
        if not self._is_open():
            raise RuntimeError(f"{_WHO}: this FlashCheckpoint is closed")

    def _save_checkpoint(self, path, state, storage_options=None, filter=None):
        """In place of the strategy's, on all ranks."""
        step, is_memory = self._step_of(state), path == self._in_memory
        is_whole = step is not None and not filter and self._goes_on(state)
        is_plain = storage_options is None and awaited.is_local(path)
        if not is_memory and not (is_whole and is_plain):
            self._tell_once(step, state)
            self._make_way(path)
            return self._stock_save(path=path, state=state, storage_options=storage_options, filter=filter)
        is_again = self._handle is not None and self._handle.step == step
        if is_memory and is_again:
            return None
        converted = self._strategy._convert_stateful_objects_in_state(state, filter={})
        form = awaited.form(converted) if self._place.rank == 0 else None
        if is_again:
            return self._save_once_more(step, converted, os.path.abspath(path), form)
        self._keys, self._form = state.keys(), form
        self._save(step, state, converted, None if is_memory else os.path.abspath(path))
        return None

    def _goes_on(self, state):
        """Of weights alone no training goes on."""
        if self._keys is not None:
            return state.keys() == self._keys
        return _has_optimizer(state)

    def _step_of(self, state):
        """None: it has none."""
        step = state.get(self._key)
        if isinstance(step, bool) or not hasattr(step, "__index__"):
            return None
        try:
            step = operator.index(step)
        except TypeError:  # a tensor of no whole number
            return None
        return step if step >= 0 else None

    def _tell_once(self, step, state):
        if step is None and _has_optimizer(state) and not self._has_told and self._place.rank == 0:
            self._has_told = True
            say(
                f"a state without a number of steps in {self._key!r} is saved by Fabric itself, which takes its time: "
                "step_key= names another key"
            )

    def _save_once_more(self, step, converted, path, form):
        """Of a step that was saved: the same file under another name, or Fabric's own where the state is another, or
        was saved to memory alone."""
        if self._place.rank == 0 and not (form == self._form and self._awaited.add_path(step, path)):
            self._make_way(path)
            self._stock_io.save_checkpoint(converted, path)

    def _make_way(self, path):
        if self._place.rank == 0:
            self._awaited.make_way(path)

    def _save(self, step, state, converted, path):
        if self._early is not None:
            self._early.saves()
        contents = self._contents(state, converted, path)
        is_to_disk, is_first = path is not None, self._place.rank == 0
        if is_first and is_to_disk:
            self._awaited.add(step, path, _FILE)
        told = self._awaited.on_stored if is_first and is_to_disk else None
        self._newest = None
        self._handle = self._saver.save(step, contents, Storage.DISK if is_to_disk else Storage.MEMORY, told)

    def _contents(self, state, converted, path):
        """{name: what is in it} of this rank."""
        contents = {awaited.rng_of(self._place.rank): {"rng": True}}
        is_first = self._place.rank == 0
        # Of an optimizer that shards its state rank 0 alone has all of it.
        is_sharded = any(hasattr(each, "consolidate_state_dict") for each in state.values())
        if is_first or (self._place.local_rank == 0 and not is_sharded):
            contents[_FILE] = files.AsIs(converted)
        if is_first:
            contents[_SAVED_AS] = os.fsencode(path or self._in_memory)
        return contents

    def _contents_now(self, state):
        # As fabric.save() does: a wrapped optimizer would gather a sharded state once more, on rank 0 alone.
        state = _unwrap_objects(state)
        converted = self._strategy._convert_stateful_objects_in_state(state, filter={})
        return self._contents(state, converted, None)

    def _make_ready(self, state):
        """For the first save, where load() comes before it."""
        if self._handle is None and self._early is None:
            self._early = early.Early(self._checkpointer, functools.partial(self._contents_now, state))
            self._early.behind_first_step_of(each for each in state.values() if isinstance(each, Optimizer))

    # --- restoring

    def load(self, state, strict=True):
        """Restores `state` as fabric.load() does, and the random numbers of this rank, from the newest save that all
        ranks have, in memory or on storage. The number of steps done; 0: there is none."""
        self._must_be_open()
        self._make_ready(state)
        found, step = self._found()
        self._keys = state.keys()
        self.source = None if found is None else found.source
        if found is None:
            return 0
        if _FILE not in found:
            raise RuntimeError(
                f"{_WHO}: step {step} in {self._checkpointer.directory} has no {_FILE}, so it is of something else: "
                "give another directory"
            )
        self._fabric.load(self._in_memory, state, strict=strict)
        if awaited.rng_of(self._place.rank) in found:
            found[awaited.rng_of(self._place.rank)]
        if self._place.rank == 0:
            say(f"goes on from step {step} {'in memory' if found.source == 'memory' else 'of ' + found.folder}")
        return step

    def _found(self):
        if self._newest is None:
            self._newest = self._checkpointer.load(default=None)
            self._handle = None
        return self._newest

    def _loaded(self, path):
        """What Fabric's CheckpointIO would load, where we have it; None: it is to read the file. All ranks together."""
        if path == self._in_memory:
            return self._newest[0][_FILE]
        self.source = "disk"
        if not awaited.is_local(path):
            return None
        path = os.path.abspath(path)
        if self._place.rank == 0 and self._awaited.awaits(path):
            self._awaited.wait()
        # The first life of a job has nothing in memory, and what is saved in a life is there when it was waited for.
        found, step = self._found() if self._handle is None and self._is_later_life else (None, 0)
        is_there = found is not None and found.source == "memory" and _SAVED_AS in found
        if self._place.rank == 0:
            is_there = is_there and found.read(_SAVED_AS) == os.fsencode(path) and self._is_file_of(step, path)
        if not self._restorer.agreed(is_there):
            return None
        self.source = "memory"
        return found[_FILE]

    def _is_file_of(self, step, path):
        """Whether the file at `path` is that step's, or is to become so. Else Fabric has written it since."""
        if self._awaited.names(path) or not os.path.exists(path):
            return True
        stored = [os.path.join(each.path, _FILE) for each in self._checkpointer.steps() if each.step == step]
        return any(os.path.exists(file) and os.path.samefile(file, path) for file in stored)


class _Io(CheckpointIO):
    """Fabric's own, but for what memory has."""

    def __init__(self, stock, loaded):
        self._stock, self._loaded = stock, loaded

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        self._stock.save_checkpoint(checkpoint, path, storage_options)

    def load_checkpoint(self, path, *more, **named):
        loaded = self._loaded(path)
        return self._stock.load_checkpoint(path, *more, **named) if loaded is None else loaded

    def remove_checkpoint(self, path):
        self._stock.remove_checkpoint(path)

    def teardown(self):
        self._stock.teardown()


def _why_not(fabric, directory, settings):
    """None: it can be saved for."""
    if not awaited.is_local(directory):
        return f"directory is {directory!r}; expected a local folder, which has no '://'"
    strategy = fabric.strategy
    name = type(strategy).__name__
    if name not in _STRATEGIES:
        return f"the strategy is {name}{', ' + _OTHERS[name] if name in _OTHERS else ''}. Expected one of " + ", ".join(
            _STRATEGIES
        )
    if isinstance(strategy.checkpoint_io, _Io):
        return "this Fabric has a FlashCheckpoint already: close() it before another one is made"
    if type(strategy.checkpoint_io) is not TorchCheckpointIO:
        return (
            f"the CheckpointIO of this Fabric is {type(strategy.checkpoint_io).__name__}, which would not be asked any "
            "more: expected Fabric's own, TorchCheckpointIO"
        )
    taken = {"keep_last", "keep_every", "trackers", "layout", "weights_only"}.intersection(settings)
    if taken:
        return f"{min(taken)} is given, which the paths of fabric.save() decide: leave it out"
    if not hasattr(strategy, "_convert_stateful_objects_in_state"):
        return "this version of Fabric has no _convert_stateful_objects_in_state(): expected Lightning 2.1 or later"
    here, world_size = place.here(), fabric.world_size
    if world_size > 1 and not place.is_together():
        return "there is no process group yet: call fabric.launch() first"
    if (here.rank, here.world_size) != (fabric.global_rank, world_size):
        return (
            f"this is rank {fabric.global_rank} of {world_size} by Fabric, and {here.rank} of {here.world_size} by its "
            "environment: start it by phalanx-run or torchrun, with as many devices"
        )
    return None


def _has_optimizer(state):
    return any(isinstance(each, Optimizer) for each in state.values())
