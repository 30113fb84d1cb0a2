"""DeepSpeed's checkpoints, ZeRO 1 to 3: each save one transaction, from memory after a failure, and on disk what stock
DeepSpeed reads (`latest`, <step>/mp_rank_00_model_states.pt, .., zero_to_fp32.py).

    engine, *_ = deepspeed.initialize(model=model, config=config)
    ckpt = Checkpointer(engine, "/data/run7", keep_last=3)
    client_state, done = ckpt.load()
    ckpt.save({"epoch": 3})
"""

import contextlib
import os
import sys
import tempfile
import time

import torch
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointEngine
from deepspeed.runtime.pipe.module import PipelineModule

from phalanx.checkpoint.adapters import deepspeed_folder, early, exact, universal_load, zero_files
from phalanx.checkpoint.handle import Storage
from phalanx.checkpoint.universal import source

_NOWHERE = "nowhere"  # where nothing is written


class Checkpointer:
    """Saves and restores a DeepSpeed engine. All ranks make one for the same directory, and call each method together.

    A step is saved under its number: the folder <directory>/<step> is DeepSpeed's tag. What DeepSpeed itself has stored
    in `directory` is loaded where it is the newest there.
    """

    def __init__(self, engine, directory, **settings):
        """`engine`: of deepspeed.initialize(). `settings`: those of phalanx.checkpoint.Checkpointer, but `layout`,
        `weights_only` (DeepSpeed's files hold objects of its own, and are read as DeepSpeed reads them) and `trackers`
        beside "latest"."""
        for name in ("layout", "weights_only"):
            if name in settings:
                raise TypeError(f"phalanx.checkpoint: {name} is given, and DeepSpeed's files have but one form")
        why_not = _why_not(engine)
        if why_not is not None:
            raise ValueError(f"phalanx.checkpoint: {why_not}")
        self.engine = engine
        trackers = {deepspeed_folder.LATEST: None, **dict.fromkeys(settings.pop("trackers", ()))}
        self._files = Files(engine, directory, trackers=tuple(trackers), **settings)
        self.directory = self._files.directory
        self.source = None  # of the last load(): "memory", "disk" or None
        self.why = None  # of the last load(): what was decided, and which sources were passed over
        self._has_script = False
        self._early = early.Early(self._files, lambda: collect(engine, engine.global_steps))
        self._early.behind_first_call(engine, "step", _Steps(engine))

    # --- saving

    def prepare(self):
        """Has the memory made ready that the first save would wait for, once the engine has made a step. All ranks
        call it together. Returns None, or why there is less memory than was asked for. Below phalanx-run that is begun
        behind the engine's first step, beside the next ones: this one waits for it."""
        self._early.saves()
        return self._files.prepare(collect(self.engine, self.engine.global_steps))

    def save(
        self,
        client_state=None,
        storage=Storage.DISK,
        step=None,
        exclude_frozen_parameters=False,
        on_stored=None,
    ):
        """Saves what engine.save_checkpoint() would, and returns a SaveHandle, in general before all of it is copied.
        `client_state`: a dict of the script's own, from rank 0; `step`: engine.global_steps where it is not given.
        `storage` and `on_stored` as in phalanx.checkpoint.Checkpointer.save()."""
        began_ns = time.monotonic_ns()
        self._early.saves()
        step = self.engine.global_steps if step is None else int(step)
        content = collect(self.engine, step, client_state, exclude_frozen_parameters)
        collected_ns = time.monotonic_ns() - began_ns
        handle = self._files.save(step, content, storage=storage, on_stored=on_stored)
        handle.held_ns += collected_ns
        if handle.storage is Storage.DISK:
            self._put_script()
        return handle

    def _put_script(self):
        """Once in a life, as DeepSpeed does at each save; where the disk does not take it, that is of no save."""
        if self._has_script or self._files.rank != 0:
            return
        self._has_script = True
        with contextlib.suppress(OSError):
            deepspeed_folder.put_script(self.directory)

    # --- restoring

    def load(
        self, step=None, timeline=None, load_module_strict=True, load_lr_scheduler_states=True, custom_load_fn=None
    ):
        """(client_state, step) of the newest step that every rank has, after the engine has it: from memory where that
        has outlived the last life, else from disk; ({}, 0) where there is none. `step` and `timeline` as in
        phalanx.checkpoint.Checkpointer.load(); the others as in engine.load_checkpoint().

        What another number of data-parallel ranks, or another stage of ZeRO, has saved is converted to a universal
        checkpoint for that, in the directory, where all nodes see it; it is gone when all ranks have loaded it.

        Under ZeRO 3 the engine has to be new: DeepSpeed cannot load into one that has saved or trained."""
        how = {
            "load_module_strict": load_module_strict,
            "load_lr_scheduler_states": load_lr_scheduler_states,
            "custom_load_fn": custom_load_fn,
        }
        found, stored = self._files.find(step, timeline)
        self.source, self.why = self._files.source, self._files.why
        tag = self._tag_of_deepspeed() if step is None and timeline is None and self.source != "memory" else None
        if tag is not None:
            return self._load_of_deepspeed(tag, how)
        if found.source is None:
            return {}, 0
        where = f"step {found.step} of {self.directory}"
        why_not = self._why_not_as_it_is(where, stored)
        if why_not is not None:
            in_memory = found.source == "memory"
            given = source.Stored(stored, where) if in_memory else source.Folder(found.directory)
            return self._load_universal(given, why_not, how), found.step
        if found.source == "disk":
            folder, tag = os.path.split(found.directory)
            return self._load(folder, tag, None, how), found.step
        with tempfile.TemporaryDirectory(prefix="phalanx-deepspeed-") as folder:
            tag = str(found.step)
            _put_names(os.path.join(folder, tag), stored)
            return self._load(folder, tag, stored, how), found.step

    def _load(self, folder, tag, in_memory, how):
        """The client_state, when the engine has loaded <folder>/<tag>."""
        with _engine_of(self.engine, _Loading(in_memory)):
            path, client_state = self.engine.load_checkpoint(folder, tag=tag, **how)
        if path is None:
            raise RuntimeError(f"phalanx.checkpoint: DeepSpeed has found nothing to load in {folder}/{tag}")
        return client_state

    def _tag_of_deepspeed(self):
        """The tag that `latest` names where DeepSpeed has written it, not we: None where we have, or nobody."""
        tag = deepspeed_folder.read_latest(self.directory)
        folder = os.path.join(self.directory, tag or "")
        is_ours = any(os.path.lexists(os.path.join(folder, name)) for name in deepspeed_folder.OURS)
        return tag if tag and os.path.isdir(folder) and not is_ours else None

    def _load_of_deepspeed(self, tag, how):
        folder = os.path.join(self.directory, tag)
        why_not = self._why_not_as_it_is(folder, os.listdir(folder))
        if why_not is None:
            client_state = self._load(self.directory, tag, None, how)
        else:
            client_state = self._load_universal(source.Folder(folder), why_not, how)
        self.source = "disk"
        self.why = (
            f"{folder} is restored, which DeepSpeed has stored: {self.directory}/{deepspeed_folder.LATEST} names it"
        )
        return client_state, self.engine.global_steps

    def _why_not_as_it_is(self, where, names):
        """None: the engine loads it as it is; else why it is to be converted before. RuntimeError, where that does not
        help: DeepSpeed's own words for what does not fit are those of a KeyError or a missing file, or none."""
        engine = self.engine
        zero = _stage_of(engine)
        why_never = zero_files.why_not_any(names, zero)
        if why_never is not None:
            raise RuntimeError(f"phalanx.checkpoint: {where}: {why_never}")
        if engine.load_universal_checkpoint():
            return "the engine's config has checkpoint.load_universal"
        size = torch.distributed.get_world_size(engine.optimizer.dp_process_group) if zero else 1
        return zero_files.why_not(names, zero, size, engine.bfloat16_enabled())

    # --- restoring what another number of ranks has saved

    def _load_universal(self, given, why, how):
        """The client_state, when the engine has loaded what `given` is converted to."""
        if self._files.rank == 0:
            sys.stderr.write(f"phalanx.checkpoint: {given.where}: {why}: it is converted to a universal checkpoint\n")
        with universal_load.converted(self.engine, given, self.directory, _stage_of(self.engine), why) as folder:
            return self._load(*os.path.split(folder), None, how)

    # --- as of phalanx.checkpoint.Checkpointer

    def wait(self):
        """Waits until nothing of the last save is read any more: to be called before anything but engine.step() or a
        load writes parameters or optimizer states."""
        self._files.wait()

    def steps(self):
        """[StoredStep] of what lies whole in the directory, the one that was stored last first."""
        return self._files.steps()

    def delete(self, step, timeline=None):
        """As of phalanx.checkpoint.Checkpointer."""
        return self._files.delete(step, timeline)

    def close(self):
        """As of phalanx.checkpoint.Checkpointer: waits for what is to be stored."""
        self._files.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._files.__exit__(*error)


class PhalanxCheckpointEngine(CheckpointEngine):
    """For scripts that call engine.save_checkpoint() and load_checkpoint() themselves:

        engine.checkpoint_engine = PhalanxCheckpointEngine(engine, "/data/run7", keep_last=3)
        engine.save_checkpoint("/data/run7")
        engine.load_checkpoint("/data/run7")

    Each save is one transaction. It waits until the step is on disk, since DeepSpeed then writes `latest` itself, and
    raises RuntimeError on all ranks where it will not be: Checkpointer.save() is what nobody has to wait for.
    <dir>/<tag> is a link to the step's folder; what DeepSpeed itself has left there is put aside. `save_dir` has to be
    `directory`. With `save_latest=False`, of which DeepSpeed 0.16 says nothing to us, `latest` names what it named.
    What engine.save_16bit_model() writes is a file at its path, and no step."""

    def __init__(self, engine, directory, **settings):
        super().__init__()
        self.name = type(self).__name__
        self.checkpointer = Checkpointer(engine, directory, **settings)
        self._content = {}  # of the save under way, by paths

    def create(self, info):
        self._content = {}

    def makedirs(self, path, exist_ok=False):
        """The folder of a step is made when it is stored."""
        if os.path.abspath(path) == self.checkpointer.directory:
            os.makedirs(path, exist_ok=True)

    def save(self, state_dict, path):
        self._content[os.path.abspath(path)] = state_dict

    def commit(self, info):
        content, self._content = self._content, {}
        # Not every rank has files, and all are to come to the same.
        of_ranks = _of_all((self._stray(content), any(path.endswith(zero_files.MODEL_STATES) for path in content)))
        stray = next((path for path, _ in of_ranks if path is not None), None)
        if not any(is_step for _, is_step in of_ranks):
            why = _why_not_written(content)
        elif stray is not None:
            why = (
                f"{stray} is to be saved; expected a file in a folder of {self.checkpointer.directory}, for which this "
                "PhalanxCheckpointEngine was made"
            )
        else:
            why = self._why_not_stored(info, {os.path.basename(path): state for path, state in content.items()})
        why = next((each for each in _of_all(why) if each is not None), None)
        if why is not None:
            raise RuntimeError(f"phalanx.checkpoint: {why}")
        return True

    def _stray(self, content):
        """One of the paths that is of no step in the directory, or None."""
        directory = self.checkpointer.directory
        return next((path for path in content if os.path.dirname(os.path.dirname(path)) != directory), None)

    def _why_not_stored(self, info, content):
        """None: the tag leads to it."""
        tag = getattr(info, "tag", info)
        self.checkpointer._early.saves()
        ours = self.checkpointer._files
        latest, why = None, None
        if ours.rank == 0 and not getattr(info, "save_latest", True):
            latest, why = self._latest()
        handle = ours.save_anew(self.checkpointer.engine.global_steps, content)
        if not handle.wait_stored():
            return f"{tag} is not stored: {handle.why}"
        return why or (self._why_not_linked(info, tag, handle.step, latest) if ours.rank == 0 else None)

    def _latest(self):
        """(the tag that `latest` names or None, why that cannot be told or None): a save waits for all ranks."""
        try:
            return deepspeed_folder.read_latest(self.checkpointer.directory), None
        except (OSError, ValueError) as error:
            return None, f"{self.checkpointer.directory}/{deepspeed_folder.LATEST} cannot be read: {error}"

    def _why_not_linked(self, info, tag, step, latest):
        """`latest`: the tag in that file, before."""
        directory = self.checkpointer.directory
        try:
            # That of the highest sequence: the step may have been stored before, under another tag.
            folders = [stored.path for stored in self.checkpointer.steps() if stored.step == step]
            if not folders:
                return f"{tag} leads to no step: {step} is not in {directory} any more"
            deepspeed_folder.link(directory, tag, os.path.basename(folders[0]))
            if not getattr(info, "save_latest", True):
                deepspeed_folder.put_latest(directory, latest)
        except (OSError, RuntimeError) as error:
            return f"step {step} is stored, and {tag} does not lead to it: {error}"
        return None

    def load(self, path, map_location=None):
        return torch.load(path, map_location=map_location, weights_only=False)


def _of_all(value):
    """[what each rank gives]. All ranks call it together."""
    values = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values


def _why_not_written(content):
    """None: each file is at its path, whole."""
    for path, state in content.items():
        draft = f"{path}.writing"
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            torch.save(state, draft)
            os.replace(draft, path)
        except (OSError, RuntimeError) as error:
            with contextlib.suppress(OSError):
                os.unlink(draft)
            return f"{path} is not written: {error}"
    return None


# --- what DeepSpeed gives and takes


def collect(engine, step, client_state=None, exclude_frozen_parameters=False):
    """{file name: state} of what engine.save_checkpoint() writes on this rank. All ranks call it together."""
    collecting = _Collecting()
    # It writes nothing, and so needs no place: a full /tmp of one node would have its ranks raise alone.
    with _engine_of(engine, collecting), _without_scripts(engine):
        engine.save_checkpoint(
            _NOWHERE,
            tag=str(step),
            client_state=client_state or {},
            save_latest=False,
            exclude_frozen_parameters=exclude_frozen_parameters,
        )
    return collecting.content


@contextlib.contextmanager
def _without_scripts(engine):
    """DeepSpeed copies its zero_to_fp32.py beside each step by itself."""
    engine._copy_recovery_script = lambda save_path: None
    try:
        yield
    finally:
        del engine._copy_recovery_script


class _Collecting(CheckpointEngine):
    """Keeps what it is given to save."""

    def __init__(self):
        super().__init__()
        self.content = {}

    def create(self, info):
        pass

    def makedirs(self, path, exist_ok=False):
        pass

    def save(self, state_dict, path):
        self.content[os.path.basename(path)] = state_dict

    def load(self, path, map_location=None):
        raise NotImplementedError("phalanx.checkpoint: this one saves")

    def commit(self, info):
        return True


class _Loading(CheckpointEngine):
    """Loads files by their names from memory, where they are, else by their paths."""

    def __init__(self, in_memory):
        super().__init__()
        self._in_memory = in_memory

    def create(self, info):
        pass

    def save(self, state_dict, path):
        raise NotImplementedError("phalanx.checkpoint: this one loads")

    def load(self, path, map_location=None):
        if self._in_memory is None:
            return torch.load(path, map_location=map_location, weights_only=False)
        return self._in_memory[os.path.basename(path)]

    def commit(self, info):
        return True


@contextlib.contextmanager
def _engine_of(engine, checkpoint_engine):
    """DeepSpeed's own is back when this is over."""
    before, engine.checkpoint_engine = engine.checkpoint_engine, checkpoint_engine
    try:
        yield
    finally:
        engine.checkpoint_engine = before


def _put_names(folder, names):
    """Empty files: DeepSpeed looks which there are before it asks for one."""
    os.mkdir(folder)
    for name in names:
        with open(os.path.join(folder, name), "xb"):
            pass


# --- the engine


class _Steps:
    """Whether an engine has made a step since this was made: fp16's first ones are often skipped."""

    def __init__(self, engine):
        self._engine = engine
        self._before = self._made()

    def __call__(self, _):
        return self._made() > self._before

    def _made(self):
        return self._engine.global_steps - getattr(self._engine, "skipped_steps", 0)


def _stage_of(engine):
    """The stage by which its files go; 0: of no ZeRO."""
    if engine.zero_optimization():
        return engine.zero_optimization_stage()
    # Of bf16 without ZeRO DeepSpeed 0.16 shares the optimizer's states out, in files as of ZeRO 1.
    return 1 if engine.bfloat16_enabled() and hasattr(engine.optimizer, "dp_process_group") else 0


def _why_not(engine):
    """None: it can be saved."""
    for name in ("save_checkpoint", "load_checkpoint", "checkpoint_engine", "zero_optimization_stage"):
        if not hasattr(engine, name):
            return f"engine is a {type(engine).__name__}; expected what deepspeed.initialize() gives first"
    if engine.zero_nvme_offload_optimizer():
        return (
            "its optimizer states are on NVMe, in files that are none of a checkpoint engine: engine.save_checkpoint()"
        )
    if isinstance(engine.module, PipelineModule):
        return "a PipelineModule writes its layers by itself: engine.save_checkpoint() saves it"
    if engine.has_moe_layers:
        return "its experts are spread over ranks in a way that is not supported yet: engine.save_checkpoint() saves it"
    return None


class Files(exact.Files):
    """Knows what of an engine only its steps write."""

    def __init__(self, engine, directory, **settings):
        self._engine = engine
        super().__init__(directory, **settings)

    def _described_files(self, state):
        expanded, contents = super()._described_files(state)
        expanded.modules.append(self._engine.module)
        optimizer = self._engine.basic_optimizer
        if isinstance(optimizer, torch.optim.Optimizer):
            expanded.optimizers.append(optimizer)
            expanded.behind_steps = _written_behind(self._engine.optimizer)
        return expanded, contents


def _written_behind(optimizer):
    """The weights that ZeRO writes when its inner optimizer has made its step: flat buffers, of which parameters are
    views. Under ZeRO 3, and without ZeRO, no file holds any."""
    for name in ("bit16_groups_flat", "bf16_groups_flat"):
        found = getattr(optimizer, name, None)
        if found is not None:
            return [each for each in found if isinstance(each, torch.Tensor)]
    return []
