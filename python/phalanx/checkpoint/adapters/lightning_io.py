"""A CheckpointIO: Lightning's Trainer and Fabric write the files that they always wrote, and wait for the copy alone.

    Trainer(strategy="ddp", plugins=[FlashCheckpointIO()])
    Fabric(strategy="ddp", plugins=[FlashCheckpointIO()])

Lightning calls it on rank 0, which saves for itself: no memory outlives that process, and what it had not stored when
it was killed never appears. What survives any rank is one of all of them: FlashCheckpoint of adapters/lightning.py and
fabric.py. docs/frameworks/lightning.md is for users.
"""

import collections
import contextlib
import datetime
import multiprocessing
import os
import sys

import torch.distributed as dist
from torch.optim import optimizer as torch_optimizer

if "lightning_fabric" in sys.modules and "lightning.fabric" not in sys.modules:
    from lightning_fabric.plugins.io import CheckpointIO, TorchCheckpointIO
else:
    from lightning.fabric.plugins.io import CheckpointIO, TorchCheckpointIO

from phalanx.checkpoint import files
from phalanx.checkpoint.adapters import awaited
from phalanx.checkpoint.copying import overlap
from phalanx.checkpoint.handle import Storage
from phalanx.checkpoint.people import say
from phalanx.checkpoint.ranks import place
from phalanx.checkpoint.state import refuse

_WHO = "phalanx.checkpoint.adapters.lightning_io"
_BELOW = "_phalanx_io"
_UNDER_WAY_MAX = 1  # behind which another save finds a slot
_STEP_KEY = "global_step"  # of what a Trainer saves
_DECIDED = {"keep_last", "keep_every", "trackers", "layout", "weights_only", "archive", "archive_every"}


class FlashCheckpointIO(CheckpointIO):
    """Stores in the background, on rank 0. A file appears whole, at its path, some moments behind save_checkpoint();
    all of them are there behind finish(), behind teardown(), which fit() calls, and at the end of a script. What is
    saved behind teardown(), and before any optimizer's next step, is there when save_checkpoint() returns.

    `directory`: where the two newest files lie, too, as hard links, in a folder `_phalanx_io`; None: where the first
    file is. What cannot be stored so is written as TorchCheckpointIO does: for `storage_options`, to a URL, to another
    file system, a state that no image can hold, what Lightning saves as Slurm takes the job away, and all of it in
    processes that multiprocessing has started. `settings` are those of phalanx.checkpoint.files.Checkpointer: with
    `overlap=False` all is copied before save_checkpoint() returns, which is for who writes weights in another way than
    by an optimizer's step. ValueError says what is wrong with one.
    """

    def __init__(self, directory=None, **settings):
        taken = _DECIDED.intersection(settings)
        if taken:
            raise ValueError(f"{_WHO}: {min(taken)} is given, which the paths of the files decide: leave it out")
        if directory is not None and not awaited.is_local(directory):
            raise ValueError(f"{_WHO}: directory is {directory!r}; expected a local folder, which has no '://'")
        _Own(os.curdir, **settings)  # raises what is wrong with them
        self._begin(None if directory is None else os.path.abspath(directory), settings)

    def _begin(self, directory, settings):
        self._directory, self._settings = directory, settings
        self._stock = TorchCheckpointIO()
        self._checkpointer = self._awaited = self._device = None
        self._under_way = collections.deque()  # SaveHandles: a Trainer saves two files of a step, one being `last`
        self._step = -1  # under which the last one was saved
        self._pid = os.getpid()
        self._is_over = False  # no step was made since teardown(): who saves now may read the file at once
        self._hook = None  # of any optimizer's step, behind teardown()
        self._heard = 0  # of the files of rank 0's, those that other ranks have waited for

    def __getstate__(self):
        """For a process that is spawned: what is under way is none of its business."""
        return self._directory, self._settings

    def __setstate__(self, state):
        self._begin(*state)

    # --- CheckpointIO

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        if storage_options is not None or not self._is_for_us(path):
            return self._save_as_ever(checkpoint, path, storage_options)
        path = os.path.abspath(path)
        if self._hook is not None and not self._is_over:
            self._hook.remove()
            self._hook = None
        self._open(os.path.dirname(path))
        if os.stat(os.path.dirname(path)).st_dev != self._device:
            return self._save_as_ever(checkpoint, path, storage_options)
        why = self._why_not_saved(checkpoint, path)
        if why is not None:
            say(f"{path} is written by Lightning itself, which takes its time: {why}")
            return self._save_as_ever(checkpoint, path, storage_options)
        if self._is_over and not self._awaited.wait():
            raise TimeoutError(_too_late(path))
        return None

    def load_checkpoint(self, path, *more, **named):
        """Behind all that was saved before, on any rank: all read the same. TimeoutError, where that is not stored
        within ten minutes."""
        if not self._has_saved():
            self._wait_for_first_rank()
        else:
            self._checkpointer.wait()  # what is loaded may be written over what is copied
            if awaited.is_local(path) and self._awaited.awaits(os.path.abspath(path)) and not self._awaited.wait():
                raise TimeoutError(_too_late(path))
        return self._stock.load_checkpoint(path, *more, **named)

    def remove_checkpoint(self, path):
        """Not before what takes the file's place is there."""
        if not self._has_saved() or not awaited.is_local(path):
            self._stock.remove_checkpoint(path)
        else:
            self._awaited.remove(os.path.abspath(path))

    def teardown(self):
        """finish(), and lets the memory go."""
        self._is_over = True
        if self._hook is None:
            self._hook = torch_optimizer.register_optimizer_step_pre_hook(self._trains_again)
        if self._has_saved():
            self.finish()
            self._checkpointer.close()
            self._checkpointer = self._awaited = None
            self._under_way.clear()
        elif sys.exc_info()[0] is None:  # else rank 0 may be dead
            with contextlib.suppress(RuntimeError, TimeoutError):
                self._wait_for_first_rank()

    @overlap.untraced
    def _trains_again(self, *unused):
        self._is_over = False

    def finish(self):
        """Waits until what was saved is where it belongs, or is known not to be, which a line says."""
        if self._has_saved():
            self._awaited.finish()

    # --- saving

    def _has_saved(self):
        """In this process, behind the last teardown()."""
        return self._awaited is not None and self._pid == os.getpid()

    def _is_for_us(self, path):
        is_plain = awaited.is_plain(path) and not os.path.isdir(path)
        # A process of multiprocessing ends without what others do at their end.
        is_own = self._pid == os.getpid() and multiprocessing.parent_process() is None
        return is_plain and is_own and not awaited.is_of_slurm(path)

    def _open(self, folder):
        os.makedirs(folder, exist_ok=True)
        if self._checkpointer is None:
            self._directory = self._directory or folder
            below = os.path.join(self._directory, _BELOW)
            os.makedirs(below, exist_ok=True)
            self._device = os.stat(below).st_dev
            self._checkpointer = _Own(below, keep_last=awaited.KEPT, **self._settings)
            self._checkpointer.waits_at_exit = True  # what is stored last has its file before the script ends
            self._awaited = awaited.Awaited(self._checkpointer, self._stock.remove_checkpoint)
            self._awaited.publish()
            self._step = max((each.step for each in self._checkpointer.steps()), default=-1)
        else:
            os.makedirs(self._checkpointer.directory, exist_ok=True)  # with a folder of old files it may have gone

    def _why_not_saved(self, checkpoint, path):
        """None: it is on its way."""
        while len(self._under_way) > _UNDER_WAY_MAX:
            with contextlib.suppress(TimeoutError):
                self._under_way[0].wait_stored(timeout=awaited.STORED_WAIT_S)
            self._under_way.popleft()
        # Behind the wait: a signal's handler may have saved meanwhile.
        step = self._step = max(_step_of(checkpoint), self._step + 1)
        ends, on_stored = _begin_for_others(), self._awaited.on_stored

        def told(result):
            try:
                on_stored(result)
            finally:
                ends()

        try:
            self._awaited.add(step, path)
            contents = {os.path.basename(path): files.AsIs(checkpoint)}
            handle = self._checkpointer.save(step, contents, storage=Storage.DISK, on_stored=told)
        except BaseException as error:
            ends()
            self._awaited.forget(step)
            if isinstance(error, refuse.CannotSave):
                return str(error)
            raise
        self._under_way.append(handle)
        return handle.why if handle.is_over and not handle.is_sealed else None

    def _save_as_ever(self, checkpoint, path, storage_options):
        if self._has_saved():
            self._awaited.make_way(path)
        elif awaited.is_local(path):
            awaited.unlink_shared(path)
        self._stock.save_checkpoint(checkpoint, path, storage_options)

    # --- other ranks

    def _wait_for_first_rank(self):
        """Lightning calls load_checkpoint() on all ranks, or on whichever the script wants: so that none waits for
        another to come to it, rank 0 says in the store of the process group which files it has begun and ended."""
        store = _store()
        begun = 0 if store is None else store.add("begun", 0)
        names = [f"ended/{number}" for number in range(self._heard + 1, begun + 1)]
        try:
            if names:
                store.wait(names, datetime.timedelta(seconds=awaited.STORED_WAIT_S))
        except dist.DistStoreError:
            raise TimeoutError(_too_late("what rank 0 saves")) from None
        self._heard = begun


def _step_of(checkpoint):
    """The Trainer's; 0 where there is none."""
    step = checkpoint.get(_STEP_KEY) if isinstance(checkpoint, dict) else None
    return step if type(step) is int else 0


def _store():
    """None: there are no other ranks, or they have lost each other."""
    if not place.is_together() or dist.get_world_size() == 1:
        return None
    return dist.PrefixStore("phalanx.checkpoint/lightning_io", dist.distributed_c10d._get_default_store())


def _begin_for_others():
    """A function for the end of what is saved now."""
    store = _store()
    if store is None:
        return lambda: None
    number = store.add("begun", 1)

    def ends():
        with contextlib.suppress(RuntimeError):  # where the store is gone no rank loads any more
            store.set(f"ended/{number}", b"1")

    return ends


def _too_late(what):
    return f"{_WHO}: {what} is not stored within {awaited.STORED_WAIT_S} s"


class _Own(files.Checkpointer):
    """Of one rank, and of no agent: that would wait for the other ranks' parts."""

    def __init__(self, directory, **settings):
        super().__init__(directory, trackers=(), weights_only=False, **settings)

    def _place(self):
        return place.by_itself()

    def _agent_fd(self):
        return -1

    def _begin(self, handle, write, began_ns):
        handle.tells_step = False  # it has no step's number, perhaps
        super()._begin(handle, write, began_ns)
