"""Hugging Face's Trainer (transformers 4.51 and later, 5): checkpoints that nobody feels, between those that it keeps.

    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    FlashCheckpoint(trainer, memory_steps=10)
    trainer.train(resume_from_checkpoint=True)

`checkpoint-N` appears where and when the Trainer would write it, with the same files, and the Trainer reads it without
us. docs/frameworks/huggingface.md is for users.
"""

import contextlib
import functools
import io
import math
import os
import weakref

import torch
import transformers
from transformers.trainer_callback import ExportableState

from phalanx.checkpoint import files
from phalanx.checkpoint.adapters import captured, early, huggingface_folder, published, restored, saver
from phalanx.checkpoint.formats import disk
from phalanx.checkpoint.handle import Storage
from phalanx.checkpoint.people import say
from phalanx.checkpoint.ranks import place

_WHO = "phalanx.checkpoint.adapters.huggingface"
_PREFIX = "checkpoint-"
_BELOW = "_phalanx"  # in output_dir: a name that pushes to the hub leave out
_STATE, _OPTIMIZER, _SCHEDULER = huggingface_folder.STATE, "optimizer.pt", "scheduler.pt"
_CPU_BY_NUMBER = "cpu:0"
_STORED_WAIT_S = 600  # at the end of a training, as that of a job's end
_TAKEN_OVER = ("_save_checkpoint", "_maybe_log_save_evaluate", "_load_best_model", "train")
_CALLED = ("save_model", "store_flos", "_save", "_save_rng_state", "_load_from_checkpoint", "add_callback")


class FlashCheckpoint(transformers.TrainerCallback):
    """Adds itself to a Trainer, and saves in its place: to memory each `memory_steps` steps (0: never), to storage
    where the Trainer would save. To be made behind the Trainer, on all ranks.

    trainer.train(resume_from_checkpoint=True) then goes on from the newest of memory and storage, or begins anew where
    there is none. `settings` are those of phalanx.checkpoint.files.Checkpointer, such as memory_budget.

    ValueError says what a Trainer is set to that this cannot do.
    """

    def __init__(self, trainer, memory_steps=10, **settings):
        why = _why_not(trainer, memory_steps, settings)
        if why is not None:
            raise ValueError(f"{_WHO}: {why}")
        self.trainer, self._memory_steps = trainer, memory_steps
        self._output = os.path.abspath(trainer.args.output_dir)
        directory = os.path.join(self._output, _BELOW)
        os.makedirs(directory, exist_ok=True)
        self._checkpointer = files.Checkpointer(directory, trackers=(), **settings)
        self._folders = published.Folders(
            self._checkpointer, self._output, _PREFIX, _STATE, settings.get("archive_every"), is_nested=True
        )
        self._place = place.here()
        self._scratch = captured.scratch("hf", directory, self._place.rank)
        weakref.finalize(self, captured.release, self._scratch)
        self._saver = saver.Saver(self._checkpointer)
        self._early = early.Early(self._checkpointer, self._contents)
        self._restorer = restored.Restorer(self._checkpointer, "hf", _WHO, is_nested=True)
        self._weights = _Weights(self._write_model, self._scratch)
        self._saved_step = self._put_off_step = self._resumed_step = -1
        if transformers.__version__.startswith("4.") and str(trainer.args.device) == _CPU_BY_NUMBER:
            _know_cpu_by_number()
        self._stock = {name: getattr(trainer, name) for name in _TAKEN_OVER}
        trainer._save_checkpoint = self._save_checkpoint
        trainer._maybe_log_save_evaluate = self._maybe_log_save_evaluate
        trainer._load_best_model = self._load_best_model
        trainer.train = self._train
        trainer.add_callback(self)

    def close(self):
        """Waits for the last save; nothing is saved any more."""
        self._checkpointer.close()
        self._restorer.let_go()
        captured.release(self._scratch)

    # --- saving

    def save(self, storage=Storage.MEMORY):
        """Saves the step that the training has come to, on all ranks together; a SaveHandle. One of storage's becomes a
        folder. Once for each step, behind the optimizer's."""
        trainer = self.trainer
        self._early.saves()
        trainer.store_flos()
        step = trainer.state.global_step
        contents = self._contents()
        is_told = self._place.rank == 0 and storage is Storage.DISK
        told = functools.partial(self._publish, best=_best_of(trainer.state)) if is_told else None
        handle = self._saver.save(step, contents, storage, told)
        self._saved_step = step
        if not trainer.args.auto_find_batch_size:  # which begins from the same folder once more, with smaller batches
            self._restorer.let_go()
        return handle

    def _maybe_log_save_evaluate(self, *arguments, **named):
        result = self._stock["_maybe_log_save_evaluate"](*arguments, **named)
        state, control = self.trainer.state, self.trainer.control
        if self._memory_steps and state.global_step % self._memory_steps == 0 and self._is_last_call():
            self.save(Storage.MEMORY)
        if control.should_training_stop:
            self._wait_published()
        elif self._will_save():
            self._early.behind_step([self.trainer.optimizer])
        return result

    def _will_save(self):
        """Whether a save comes in this training, other than one that the script asks for."""
        strategy = self.trainer.args.save_strategy
        saves_to_memory = 0 < self._memory_steps <= self.trainer.state.max_steps
        return saves_to_memory or str(getattr(strategy, "value", strategy)) != "no"

    def _is_last_call(self):
        """Whether this step is to be saved now: it is not saved already, and the Trainer asks no more what to do behind
        it. It does so once more at the end of an epoch, where it may evaluate, and save to storage."""
        state, arguments = self.trainer.state, self.trainer.args
        if state.global_step == self._saved_step:
            return False
        strategies = {str(getattr(each, "value", each)) for each in (arguments.save_strategy, arguments.eval_strategy)}
        ends_epoch = state.epoch is not None and float(state.epoch).is_integer() and "epoch" in strategies
        is_last = not ends_epoch or state.global_step == self._put_off_step
        self._put_off_step = state.global_step
        return is_last

    def _save_checkpoint(self, model, trial, metrics=None):
        """In place of the Trainer's own. Some give `metrics`, of which none are in a checkpoint."""
        if trial is not None:
            raise ValueError(f"{_WHO}: trials of a hyperparameter search are not saved")
        self._name_best(self._is_there_or_comes)
        self.save(Storage.DISK)

    def _name_best(self, is_there):
        """All ranks together: the folder of the step with the best metric is the best one, if it is_there(step)."""
        state = self.trainer.state
        best, step = state.best_model_checkpoint, state.best_global_step
        if self._place.rank == 0 and step:
            with _told("best_model_checkpoint"):
                best = self._folders.path(step) if is_there(step) else best
        state.best_model_checkpoint = self._restorer.agreed(best)

    def _is_there_or_comes(self, step):
        """With this save at the latest."""
        if step == self.trainer.state.global_step or self._saver.is_on_its_way(step) or self._has_folder(step):
            return True
        return self._may_come_late(step) and any(each.step == step for each in self._folders.stored())

    def _has_folder(self, step):
        return os.path.isdir(self._folders.path(step))

    def _may_come_late(self, step):
        """Whether the agent may store it in this life, which has gone on from a later one in memory."""
        return step <= self._resumed_step and not self._has_folder(step)

    def _contents(self):
        """{name: what is in it} of this rank: the files that the Trainer would write."""
        trainer = self.trainer
        contents = {}
        if self._place.local_rank == 0:
            weights, others = self._weights.now(trainer.model)
            contents.update(weights)
            optimizer = trainer.optimizer
            contents[_OPTIMIZER] = getattr(optimizer, "optimizer", optimizer)
        trainer._save_rng_state(self._scratch)
        if self._place.rank == 0:
            contents.update(others)
            contents[_SCHEDULER] = _torch_bytes(trainer.lr_scheduler.state_dict())
            if hasattr(trainer, "_save_scaler"):
                trainer._save_scaler(self._scratch)
            self._export_callbacks()
            trainer.state.save_to_json(os.path.join(self._scratch, _STATE))
        for entry in os.scandir(self._scratch):
            with open(entry.path, "rb") as file:
                contents[entry.name] = file.read()
            os.unlink(entry.path)
        return contents

    def _export_callbacks(self):
        """The state of callbacks and of the flow, as they are now."""
        trainer = self.trainer
        kept = trainer.state.stateful_callbacks
        for callback in (*trainer.callback_handler.callbacks, trainer.control):
            if isinstance(callback, ExportableState):
                name, now = type(callback).__name__, callback.state()
                kept[name] = [*kept[name], now] if isinstance(kept.get(name), list) else now

    def _write_model(self, folder):
        if self.trainer.args.should_save:
            self.trainer.save_model(folder, _internal_call=True)
        else:
            self.trainer._save(folder)

    # --- what is stored

    def _publish(self, result, best):
        """On rank 0, in a thread of the Checkpointer's."""
        folder = self._folders.path(result.step)
        if not result.stored:
            return say(f"{folder} is not stored: {result.why}")
        try:
            self._folders.publish(result.step)
            self._folders.rotate(self.trainer.args.save_total_limit, result.step, *best)
        except (OSError, LookupError, RuntimeError) as error:
            say(f"{folder} is in {self._checkpointer.directory}, and not where it belongs: {error}")

    def _wait_published(self):
        """All ranks together: until what was saved to storage is where it belongs, or is known not to be."""
        best = self.trainer.state.best_global_step
        is_told = self._place.rank == 0 and self._checkpointer.finish_telling(_STORED_WAIT_S)
        if is_told and best and self._may_come_late(best):
            with _told("what came to storage late"):
                self._folders.publish_late()
        self._name_best(self._has_folder)

    def _load_best_model(self):
        self._wait_published()
        return self._stock["_load_best_model"]()

    def on_train_begin(self, args, state, control, **more):
        self._saved_step = self._put_off_step = -1  # where it is begun once more the same steps come again

    def on_train_end(self, args, state, control, **more):
        self._wait_published()
        if self._place.rank == 0:
            with _told("what is left of older steps"):
                self._folders.tidy(is_over=True)
        self._restorer.let_go()

    # --- restoring

    def _train(self, resume_from_checkpoint=None, *arguments, **named):
        """In place of the Trainer's own, which gets the folder to go on from."""
        folder = self._folder_to_resume(resume_from_checkpoint)
        if folder is not None:
            output = self._output_of_finished(folder)
            if output is not None:
                return output
        return self._stock["train"](folder, *arguments, **named)

    def _folder_to_resume(self, given):
        """None: the training begins anew. The same step on all ranks."""
        # One that ended before its first step is as if it had not been.
        is_first_life = not (self._restorer.is_later_life() and self._restorer.has_stepped_before())
        if self._place.rank == 0:
            with _told("what a killed process has left"):
                self._folders.repair()
                if is_first_life:
                    self._folders.begin()
        self._restorer.agreed(None)
        if not given:
            return None
        is_path = not isinstance(given, bool)
        if is_path and is_first_life:
            return given
        found, step = self._checkpointer.load(default=None)
        self._resumed_step = step
        theirs = None
        if self._place.rank == 0:
            theirs = given if is_path and not self._is_of_this_job(found) else self._newer_of_theirs(found)
        theirs = self._restorer.agreed(theirs)
        folder = theirs
        if theirs is None and found is not None:
            folder = self._restorer.folder_of(found, f"{_PREFIX}{step}")
        why = None
        if self._place.rank == 0:
            why = None if folder is None else self._why_another_model(folder)
            say("the training begins anew" if folder is None else f"goes on from {self._named(found, theirs)}")
        why = self._restorer.agreed(why)
        if why is not None:
            raise ValueError(f"{_WHO}: {why}")
        return folder

    def _named(self, found, theirs):
        if theirs is not None:
            return theirs
        return f"step {found.step} in memory" if found.source == "memory" else found.folder

    def _is_of_this_job(self, found):
        if found is None or found.source == "memory":
            return found is not None
        return self._folders.is_of_this_job(found.folder)

    def _newer_of_theirs(self, found):
        """The folder that the Trainer itself would go on from, of those that it has written, where that is newer than
        what was found. Half ones are passed over."""
        if found is not None and found.source == "memory":
            return None
        written = 0.0 if found is None else _written(found)
        is_ours = self._folders.ownership()
        for step in reversed(self._folders.numbers()):
            if is_ours(step):
                continue
            folder = self._folders.path(step)
            if written > huggingface_folder.changed(folder):
                return None
            why = huggingface_folder.why_not_whole(folder)
            if why is None:
                return folder
            say(f"{folder} is passed over: {why}")
        return None

    def _why_another_model(self, folder):
        """None: it is not known to be another's."""
        if self.trainer.model_init is not None:
            return None
        weights, _ = self._weights.now(self.trainer.model)
        return huggingface_folder.why_another_model(folder, weights)

    def _output_of_finished(self, folder):
        """What train() returns where nothing is left to train; None: something is."""
        trainer, arguments = self.trainer, self.trainer.args
        state = transformers.TrainerState.load_from_json(os.path.join(folder, _STATE))
        if not _is_finished(state, arguments):
            return None
        trainer._load_from_checkpoint(folder)
        trainer.state = state
        if (
            arguments.load_best_model_at_end
            and state.best_model_checkpoint
            and os.path.isdir(state.best_model_checkpoint)
        ):
            trainer._load_best_model()
        self._restorer.let_go()
        if self._place.rank == 0:
            say(f"the training was over at step {state.global_step}, and is not gone on with")
        losses = [entry["train_loss"] for entry in state.log_history if "train_loss" in entry]
        return transformers.trainer_utils.TrainOutput(state.global_step, losses[-1] if losses else math.nan, {})


class FlashCheckpointMixin:
    """For classes of Trainer: class MyTrainer(FlashCheckpointMixin, Trainer). `flash_checkpoint` holds the arguments of
    FlashCheckpoint, as {"memory_steps": 10}, and is then that."""

    def __init__(self, *arguments, flash_checkpoint=None, **named):
        super().__init__(*arguments, **named)
        self.flash_checkpoint = FlashCheckpoint(self, **(flash_checkpoint or {}))


class FlashTrainer(FlashCheckpointMixin, transformers.Trainer):
    """A Trainer that saves so."""


class _Weights:
    """The files of a model, as its framework would write them: asked for once, and again where its memory moves."""

    def __init__(self, write, folder):
        self._write, self._folder = write, folder
        self._model = self._key = self._found = None
        self._has_said = False

    def now(self, model):
        """({name: Safetensors}, {name: bytes})."""
        key = [tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())]
        if model is self._model and key == self._key:
            return self._found
        try:
            found = captured.capture(self._write, self._folder)
        except captured.NotCaptured as error:
            raise ValueError(f"{_WHO}: {error}") from None
        memory = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
        tensors = [tensor for file in found[0].values() for tensor in file.tensors.values()]
        is_live = all(tensor.untyped_storage().data_ptr() in memory or not tensor.numel() for tensor in tensors)
        self._model, self._key, self._found = (model, key, found) if is_live else (None, None, None)
        if not is_live and not self._has_said:
            self._has_said = True
            say("this model's weights are converted for its files: each save takes the time of that, too")
        return found


# --- what is refused


def _why_not(trainer, memory_steps, settings):
    """None: this Trainer can be saved for."""
    arguments = trainer.args
    missing = [f"{name}()" for name in (*_TAKEN_OVER, *_CALLED) if not callable(getattr(trainer, name, None))]
    if not hasattr(transformers.TrainerState, "best_global_step"):
        missing.append("TrainerState.best_global_step")
    if missing:
        return (
            f"the Trainer of transformers {transformers.__version__} has no {missing[0]}: expected transformers 4.51 "
            "or later, or 5"
        )
    own = type(trainer)._save_checkpoint
    if own is not transformers.Trainer._save_checkpoint:
        return (
            f"{own.__qualname__}() would not be called any more: expected a Trainer without a _save_checkpoint() of "
            "its own; callbacks have on_save"
        )
    if isinstance(memory_steps, bool) or not isinstance(memory_steps, int) or memory_steps < 0:
        return f"memory_steps is {memory_steps!r}; expected a number of steps, 0 for never"
    taken = {"keep_last", "keep_every", "trackers", "layout", "weights_only"}.intersection(settings)
    if taken:
        return f"{taken.pop()} is given, which save_total_limit and the Trainer decide: leave it out"
    strategies = (
        (getattr(trainer, "is_deepspeed_enabled", False), "DeepSpeed: use phalanx.checkpoint.adapters.deepspeed"),
        (getattr(trainer, "is_fsdp_enabled", False), "FSDP: its loops save by phalanx.checkpoint.dcp"),
        (getattr(trainer, "is_tp_enabled", False), "tensor parallelism"),
        (getattr(trainer, "is_fsdp_xla_enabled", False), "XLA"),
        (
            getattr(trainer, "is_distributed_loading_by_transformers", False),
            "a model that is sharded when it is loaded",
        ),
    )
    for is_so, what in strategies:
        if is_so:
            return f"this Trainer uses {what}. Here DDP and single processes are saved for"
    settings_of = (
        ("save_only_model", arguments.save_only_model, "nothing could be resumed from such checkpoints"),
        ("save_on_each_node", arguments.save_on_each_node, "output_dir is a path that all nodes see"),
    )
    for name, is_set, why in settings_of:
        if is_set:
            return f"{name}=True: {why}: leave it out"
    if getattr(arguments, "save_safetensors", True) is False:
        return "save_safetensors=False: weights are stored as safetensors: leave it out"
    if arguments.push_to_hub and str(getattr(arguments.hub_strategy, "value", arguments.hub_strategy)) != "end":
        return f"hub_strategy is {arguments.hub_strategy}: folders appear behind the save: expected 'end'"
    return None


# --- small things


def _best_of(state):
    """The step of the best folder, and that of the best metric, which may lie nowhere, or come to storage late. None:
    there is none."""
    name = os.path.basename(state.best_model_checkpoint or "")
    number = name[len(_PREFIX) :]
    named = int(number) if name.startswith(_PREFIX) and number.isdigit() else None
    return named, state.best_global_step


@functools.lru_cache(None)
def _know_cpu_by_number():
    """So accelerate names the device of several ranks on the CPU, and transformers 4 has torch load an optimizer's
    state for it. torch knows "cpu" alone, so that this Trainer resumes on GPUs only, until torch is told."""

    def restored(storage, location):
        return storage if location == _CPU_BY_NUMBER else None

    torch.serialization.register_package(5, lambda storage: None, restored)


def _torch_bytes(state):
    data = io.BytesIO()
    torch.save(state, data)
    return data.getvalue()


def _is_finished(state, arguments):
    if arguments.max_steps > 0:
        return state.global_step >= arguments.max_steps
    wanted = math.ceil(arguments.num_train_epochs)
    return 0 < state.max_steps <= state.global_step and wanted <= state.num_train_epochs


def _written(found):
    return disk.manifest_of(found.folder)["written_unix_ms"] / 1000


@contextlib.contextmanager
def _told(what):
    """What is in the way of tidying costs no training."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        say(f"{what} stays: {error}")
