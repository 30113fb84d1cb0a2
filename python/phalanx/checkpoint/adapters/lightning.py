"""Lightning's Trainer: a callback that saves to memory, and stores in the background what ModelCheckpoint asks for.

    flash = FlashCheckpoint("out", every_n_train_steps=10)
    keep = ModelCheckpoint(dirpath="out", every_n_train_steps=100)
    Trainer(strategy="ddp", callbacks=[keep, flash]).fit(model, data)

Files are those of Trainer.save_checkpoint(), at the paths that it was given; Lightning reads them without us.
docs/frameworks/lightning.md is for users.
"""

import functools
import inspect
import os
import sys

if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    import pytorch_lightning as pl
else:
    import lightning.pytorch as pl

from phalanx.checkpoint import files
from phalanx.checkpoint.adapters import awaited, early, published, restored, saver
from phalanx.checkpoint.handle import Storage
from phalanx.checkpoint.people import say
from phalanx.checkpoint.ranks import place

_WHO = "phalanx.checkpoint.adapters.lightning"
_BELOW, _IN_MEMORY = "_phalanx", "memory.ckpt"
_AVERAGING = tuple(
    getattr(pl.callbacks, name)
    for name in ("StochasticWeightAveraging", "WeightAveraging", "EMAWeightAveraging")
    if hasattr(pl.callbacks, name)
)
_STRATEGIES = ("SingleDeviceStrategy", "DDPStrategy")


class FlashCheckpoint(pl.Callback):
    """Saves to memory behind each `every_n_train_steps` optimizer steps (0: never), and has what
    Trainer.save_checkpoint() saves stored in the background. What is saved lies in `directory`/_phalanx.

    fit() goes on from the newest of these, whatever its ckpt_path is, but in the first life of a job, where a ckpt_path
    that is given counts. `resume=False` begins anew. `settings` are those of phalanx.checkpoint.files.Checkpointer.
    """

    def __init__(self, directory, every_n_train_steps=10, resume=True, **settings):
        super().__init__()
        is_number = isinstance(every_n_train_steps, int) and not isinstance(every_n_train_steps, bool)
        if not is_number or every_n_train_steps < 0:
            raise ValueError(f"{_WHO}: every_n_train_steps is {every_n_train_steps!r}; expected a number, 0 for never")
        if not awaited.is_local(directory):
            raise ValueError(f"{_WHO}: directory is {directory!r}; expected a local folder, which has no '://'")
        self._directory, self._every, self._resumes = os.path.abspath(directory), every_n_train_steps, resume
        self._settings = settings
        self._checkpointer = self._saver = self._early = self._restorer = self._place = None
        self._found = None
        self._is_first_life = self._trains = self._swaps_weights = False
        self._saved_step = -1
        self._awaited = self._form = None  # on rank 0
        self.source = None  # of what fit() went on from: "memory", "disk" or None

    # --- hooks of the Trainer's

    def setup(self, trainer, pl_module, stage):
        if stage != "fit":
            return
        name = type(trainer.strategy).__name__
        if name not in _STRATEGIES:
            raise ValueError(f"{_WHO}: the strategy is {name}; expected one of {', '.join(_STRATEGIES)}")
        connector = getattr(trainer, "_checkpoint_connector", None)
        missing = [each for each in ("dump_checkpoint", "resume_start") if not hasattr(connector, each)]
        if missing:
            raise ValueError(f"{_WHO}: Lightning {pl.__version__} has no {missing[0]}(): expected Lightning 2")
        if self._checkpointer is None:
            self._open(trainer)
        # Who averages weights writes them behind a save without an optimizer, which would have waited for the copy.
        self._swaps_weights = not pl_module.automatic_optimization or any(
            isinstance(callback, _AVERAGING) for callback in trainer.callbacks
        )
        connector.resume_start = functools.partial(self._resume_start, trainer)
        for callback in trainer.checkpoint_callbacks:
            stock = getattr(callback, "file_exists", None)
            if stock is not None and getattr(stock, "func", None) != self._file_exists:
                callback.file_exists = functools.partial(self._file_exists, stock)

    def on_train_start(self, trainer, pl_module):
        """Random numbers as they were: Lightning has none in its files."""
        name = awaited.rng_of(self._place.rank)
        if self._found is not None and name in self._found:
            self._found[name]
        self._found = None
        self._restorer.of_all(None)
        self._restorer.let_go()
        self._trains = True

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        """Behind all that the last step has led to."""
        step = trainer.global_step
        is_due = self._every and step and step % self._every == 0
        if is_due and self._saved_step != step:
            self.save(trainer)
        elif step and self._will_save(trainer):
            self._early.behind_step(trainer.optimizers)

    def _will_save(self, trainer):
        """Whether a save comes in this training, other than one that the script asks for."""
        saves_to_memory = self._every and (trainer.max_steps < 0 or self._every <= trainer.max_steps)
        return saves_to_memory or bool(trainer.checkpoint_callbacks)

    def on_train_end(self, trainer, pl_module):
        self._wait_published()

    def on_exception(self, trainer, pl_module, exception):
        """The other ranks may be dead, or save nothing more."""
        self._trains = False

    def teardown(self, trainer, pl_module, stage):
        """Behind each on_train_end(): ModelCheckpoint saves in its own, which comes behind ours."""
        if stage == "fit" and self._checkpointer is not None:
            self._trains = False
            self._wait_published()

    def _wait_published(self):
        """All ranks together: until what was saved is where it belongs, or is known not to be."""
        if self._place.rank == 0:
            self._awaited.finish()
        self._restorer.of_all(None)

    # --- saving

    def save(self, trainer):
        """Saves to memory what Trainer.save_checkpoint() would, on all ranks together; a SaveHandle. Once for each
        step."""
        dumped = trainer._checkpoint_connector.dump_checkpoint(False)
        return self._save(trainer.global_step, dumped, _IN_MEMORY, Storage.MEMORY)

    def _open(self, trainer):
        below = os.path.join(self._directory, _BELOW)
        os.makedirs(below, exist_ok=True)
        self._checkpointer = files.Checkpointer(
            below, keep_last=awaited.KEPT, trackers=(), weights_only=False, **self._settings
        )
        self._saver = saver.Saver(self._checkpointer)
        self._early = early.Early(self._checkpointer, functools.partial(self._contents_now, trainer))
        self._restorer = restored.Restorer(self._checkpointer, "lightning", _WHO)
        self._place = place.here()
        self._folders = published.Folders(self._checkpointer, self._directory, "")
        self._is_first_life = not self._restorer.is_later_life()
        strategy = trainer.strategy
        if self._place.rank == 0:
            if self._is_first_life:
                self._folders.begin()
            self._awaited = awaited.Awaited(self._checkpointer, strategy.remove_checkpoint)
            self._awaited.publish()
        self._restorer.of_all(None)  # files of the last life are there before any rank looks for them
        stock = strategy.save_checkpoint
        strategy.save_checkpoint = functools.partial(self._save_checkpoint, trainer, stock)
        strategy.remove_checkpoint = functools.partial(self._remove_checkpoint, strategy.remove_checkpoint)

    def _save_checkpoint(self, trainer, stock, checkpoint, filepath, storage_options=None):
        """In place of the strategy's, on all ranks."""
        path, step = os.path.abspath(filepath), trainer.global_step
        is_plain = storage_options is None and awaited.is_plain(filepath)
        is_first = self._place.rank == 0
        is_whole = "optimizer_states" in checkpoint  # of weights alone no training goes on
        if not self._trains or not is_plain or not is_whole or awaited.is_of_slurm(filepath):
            return self._save_as_ever(stock, checkpoint, filepath, storage_options)
        form = awaited.form(checkpoint) if is_first else None
        if self._saved_step == step:
            is_same = form == self._form  # not where a callback has told more, or other weights stand in it
            if is_first and not (is_same and self._awaited.add_path(step, path)):
                self._save_as_ever(stock, checkpoint, filepath)
            return None
        if is_first:
            self._form = form
            self._awaited.add(step, path)
        self._save(step, checkpoint, os.path.basename(path), Storage.DISK)
        return None

    def _file_exists(self, stock, filepath, trainer):
        """In place of a ModelCheckpoint's, on all ranks: a path for which a file is on its way is taken. Another
        callback's file would else be replaced by this one's, and go with it."""
        is_awaited = (
            self._place.rank == 0 and awaited.is_local(filepath) and self._awaited.awaits(os.path.abspath(filepath))
        )
        # Asked first: what is not awaited any more is there, and it may come while the other question is answered.
        return trainer.strategy.broadcast(is_awaited) or stock(filepath, trainer)

    def _save_as_ever(self, stock, checkpoint, filepath, storage_options=None):
        """By Lightning, before it returns: what is saved before the training or behind it is read at once."""
        if self._place.rank == 0:
            self._awaited.make_way(filepath)
        return stock(checkpoint, filepath, storage_options)

    def _save(self, step, checkpoint, name, storage):
        self._early.saves()
        contents = self._contents(checkpoint, name)
        is_told = storage is Storage.DISK and self._place.rank == 0
        told = self._awaited.on_stored if is_told else None
        self._saved_step = step
        handle = self._saver.save(step, contents, storage, told)
        if self._swaps_weights:
            self._checkpointer.wait()
        return handle

    def _contents(self, checkpoint, name):
        """{name: what is in it} of this rank."""
        contents = {awaited.rng_of(self._place.rank): {"rng": True}}
        if self._place.local_rank == 0:
            contents[name] = files.AsIs(checkpoint)  # a module may be among the hyper-parameters
        return contents

    def _contents_now(self, trainer):
        return self._contents(trainer._checkpoint_connector.dump_checkpoint(False), _IN_MEMORY)

    def _remove_checkpoint(self, stock, filepath):
        """Not before what takes the file's place is there."""
        if not awaited.is_local(filepath):
            stock(filepath)
        elif self._place.rank == 0:
            self._awaited.remove(os.path.abspath(filepath))

    # --- restoring

    def _resume_start(self, trainer, checkpoint_path=None, *arguments, **named):
        """In place of the connector's, once for each fit(): what test() and the like load is not ours."""
        connector = trainer._checkpoint_connector
        del connector.resume_start
        stock = connector.resume_start  # its arguments are other ones before Lightning 2.6
        is_fit = trainer.state.fn == pl.trainer.states.TrainerFn.FITTING
        if not is_fit or not self._resumes or (checkpoint_path and self._is_first_life):
            return stock(checkpoint_path, *arguments, **named)
        found, step = self._checkpointer.load(default=None)
        if checkpoint_path and found is not None and not self._is_of_this_job(found):
            found = None
        self.source = None if found is None else found.source
        if found is None:
            return stock(checkpoint_path, *arguments, **named)
        self._found, self._saved_step = found, step
        folder = self._restorer.folder_of(found, f"step-{step}")
        name = next(name for name in sorted(found) if not name.startswith("rng_"))
        if self._place.rank == 0:
            self._awaited.publish_found(step, folder)
            say(f"goes on from step {step} {'in memory' if found.source == 'memory' else 'of ' + folder}")
        # What this job has saved itself may hold what Lightning would not unpickle of a stranger's file.
        if not arguments and "weights_only" in inspect.signature(stock).parameters:
            named = {**named, "weights_only": False}
        return stock(os.path.join(folder, name), *arguments, **named)

    def _is_of_this_job(self, found):
        """All ranks together."""
        if found.source == "memory":
            return True
        is_so = None
        if self._place.rank == 0:
            is_so = self._folders.is_of_this_job(found.folder)
            if not is_so:
                say(f"{found.folder} is of another job, and passed over for the ckpt_path that is given")
        return self._restorer.agreed(is_so)
