"""Checkpoints in Megatron's torch format: the files that it would write itself, as one transaction of named files."""

import contextlib
import functools
import inspect
import os
import tempfile
import weakref

import torch

from phalanx.checkpoint.adapters import (
    captured,
    early,
    exact,
    megatron_dist,
    megatron_folder,
    megatron_layout,
    megatron_sources,
    megatron_state,
    megatron_stock,
    published,
    restored,
    saver,
)
from phalanx.checkpoint.handle import Storage
from phalanx.checkpoint.people import say
from phalanx.checkpoint.ranks import place

WHO = "phalanx.checkpoint.adapters.megatron"
FORMATS = ("torch", "torch_dist")
_BELOW = {"torch": "_phalanx", "torch_dist": "_phalanx_dist"}  # in args.save
_TAKEN = ("keep_every", "trackers", "layout", "weights_only")


class Checkpointer:
    """Of one directory, Megatron's args.save. To be made behind initialize_model_parallel(), on all ranks, which call
    each method together. save_checkpoint() and load_checkpoint() then go through this one.

    `ckpt_format`: "torch", or "torch_dist", which worlds of any tensor and pipeline parallel size load; either is
    loaded. `keep_last`: so many iterations stay on disk; None: all. `settings`: those of phalanx.checkpoint's, but
    `layout`, `keep_every`, `trackers` and `weights_only`, which Megatron's files decide.
    """

    def __init__(self, directory, keep_last=None, ckpt_format="torch", **settings):
        why = _why_not(keep_last, ckpt_format, settings)
        if why is not None:
            raise ValueError(f"{WHO}: {why}")
        self.directory, self.ckpt_format = os.path.abspath(directory), ckpt_format
        self.source = None  # of the last load(): "memory", "disk" or None
        self.why = None  # of the last load(): what was decided, and which sources were passed over
        below = os.path.join(self.directory, _BELOW[ckpt_format])
        os.makedirs(below, exist_ok=True)
        self._is_sharded = ckpt_format == "torch_dist"
        self._files = (megatron_dist.Files if self._is_sharded else _Files)(below, trackers=(), **settings)
        self._saver = saver.Saver(self._files)
        self._early = None  # of the model that load() was given
        self._restorer = restored.Restorer(self._files, "megatron", WHO)
        self._layout = megatron_state.layout()
        mark = megatron_dist.CONFIG if self._is_sharded else self._layout.first(megatron_layout.MODEL)
        folders = megatron_dist.Folders if self._is_sharded else megatron_folder.Folders
        self._shown = megatron_folder.Directory(
            self.directory, self._files, mark, keep_last, settings.get("archive_every"), folders
        )
        self._rank = place.here().rank
        self._scratch = captured.scratch("megatron", below, self._rank)
        weakref.finalize(self, captured.release, self._scratch)
        self._has_told = self._has_begun = False

    def tell_of_replicas(self, count):
        if count and count > 1 and self._rank == 0 and not self._has_told:
            self._has_told = True
            say(
                f"replica_count is {count}: no node keeps what another has in memory. Where a node is lost, the newest "
                "iteration on disk is gone on from"
            )

    # --- saving

    def save(
        self,
        iteration,
        model,
        optimizer=None,
        opt_param_scheduler=None,
        num_floating_point_operations_so_far=0,
        *more,
        storage=Storage.DISK,
        args=None,
        **named,
    ):
        """A SaveHandle, in general before all of it is copied. With Storage.DISK the iteration's folder appears, and
        then the tracker names it, when all of it is stored."""
        why = self._why_not_saved(optimizer)
        if why is not None:
            raise ValueError(f"{WHO}: {why}")
        if self._early is not None:
            self._early.saves()
        megatron_state.synchronize(model)
        given = (iteration, model, optimizer, opt_param_scheduler, num_floating_point_operations_so_far)
        contents = self._collect(given, args, more, named)
        is_told = storage is Storage.DISK and self._rank == 0
        return self._saver.save(iteration, contents, storage, self._shown.settle if is_told else None)

    def _why_not_saved(self, optimizer):
        return None if self._is_sharded else megatron_state.why_not_loaded(optimizer)

    def _make_ready(self, args, model, optimizer, scheduler):
        """For the first save, which load() comes before."""
        if self._early is not None or optimizer is None or self._why_not_saved(optimizer) is not None:
            return
        given = (0, model, optimizer, scheduler, 0)
        self._early = early.Early(self._files, functools.partial(self._collect, given, args))
        # All ranks make it, also those that have nothing to write, and it tells whether anything was written.
        self._early.behind_first_call(optimizer, "step", lambda told: bool(told[0]))

    def _collect(self, given, args, more=(), named=None):
        """What the Checkpointer below saves."""
        if megatron_stock.is_here(args):
            return self._collect_of_stock(given, more, named or {})
        _refuse_more(more, named or {})
        return self._collect_of_core(given, args)

    def _collect_of_core(self, given, args):
        _, model, optimizer, *_ = given
        self._files.writes(model, optimizer)
        if self._is_sharded:
            metadata = megatron_state.content_metadata(optimizer)
            state = megatron_state.sharded(args, *given, metadata)
            is_parallel = getattr(args, "ckpt_fully_parallel_save", True)
            return megatron_dist.collect(state, self._scratch, metadata, is_parallel)
        return _by_names(megatron_state.collect(args, *given, self._scratch))

    def _collect_of_stock(self, given, more, named):
        """The same of what Megatron's own save_checkpoint() would write."""
        stock, args = megatron_stock.checkpointing(), megatron_stock.args()
        call = _call_of(stock.save_checkpoint, given, more, named)
        for name in ("release", "non_persistent_ckpt"):
            if {**call.arguments, **call.kwargs}.get(name):
                raise ValueError(f"{WHO}: {name} is given; Megatron's own save_checkpoint() saves such checkpoints")
        settings = {"save": self._scratch, **({"async_save": False} if hasattr(args, "async_save") else {})}
        quiet = _with_words(stock, None)
        strategy = None
        if self._is_sharded:
            strategy = megatron_dist.Strategy()
            is_parallel = getattr(args, "ckpt_fully_parallel_save", False)
            _give_strategy(call, megatron_dist.parallel(strategy, is_parallel))
        with _set(args, **settings), _set(stock, **quiet), captured.saves_below(self._scratch) as saved:
            stock.save_checkpoint(*call.args, **call.kwargs)
        self._files.writes(given[1], given[2])
        if strategy is not None:
            return megatron_dist.with_common(strategy.parts, saved, self._scratch)
        others = megatron_folder.take_others(self._scratch)
        captured.empty(self._scratch)
        found = {path.partition("/")[2]: state for path, state in {**saved, **others}.items()}
        return _by_names({path: state for path, state in found.items() if path})  # the tracker is none

    # --- restoring

    def load(
        self, model, optimizer=None, opt_param_scheduler=None, load_arg="load", strict=True, *more, args=None, **named
    ):
        """(iteration, num_floating_point_operations_so_far) of what the model, the optimizer and the scheduler have
        then; where there is nothing (0, 0), or what Megatron's own args say. RuntimeError, on all ranks, says why
        nothing that is there fits. What this job has saved is for `load_arg` "load" alone: another names the directory
        of another model."""
        of = megatron_stock.args() if args is None else args
        directory = getattr(of, load_arg, None)
        is_own = load_arg == "load" and not _is_of_reference(directory, optimizer, args)
        choose = self._source if is_own else self._source_of_another
        source = choose(directory, getattr(of, "ckpt_step", None), optimizer)
        self.source = source and source.kind
        if is_own:
            self._make_ready(args, model, optimizer, opt_param_scheduler)
        if megatron_stock.is_here(args):
            given = (model, optimizer, opt_param_scheduler, load_arg, strict, *more)
            return (
                self._load_nothing_by_stock(given, named)
                if source is None
                else self._load_by_stock(source, given, named)
            )
        if source is None:
            return 0, 0
        _refuse_more(more, named)
        return self._load_by_core(source, args, model, optimizer, opt_param_scheduler, strict)

    def _source(self, directory, wanted, optimizer):
        """What all ranks go on from, or None. `directory`: where Megatron's own may lie; `wanted`: the iteration that
        was asked for; None: any."""
        is_later_life = self._restorer.is_later_life()
        if self._rank == 0:
            self._shown.repair()
            if not is_later_life and not self._has_begun:
                self._shown.begin()
        self._has_begun = True
        # One that ended while it built its model has saved nothing: what is there is an earlier job's.
        has_stepped = self._restorer.has_stepped_before()
        self._layout.parts = set(self._restorer.of_all(self._layout.part))
        found, ours = self._files.find()  # also where another was asked for: what is saved then is newer than this
        self.why = found.why
        is_distributed = megatron_state.is_distributed(optimizer)
        decided = None
        if self._rank == 0:
            decided = self._decided(found, ours, directory, wanted, is_later_life and has_stepped, is_distributed)
        theirs, failed, may_be_ours = self._restorer.agreed(decided)
        ours = ours if may_be_ours else None
        if theirs is not None:
            self.why = f"{theirs.where} is gone on from"
            return theirs
        if ours is None and failed is not None:
            raise RuntimeError(f"{WHO}: {failed}")
        if ours is not None and not ours.is_sharded:
            why_not = megatron_layout.why_not(ours.paths, self._layout, is_distributed)
            if why_not is not None:
                raise RuntimeError(f"{WHO}: {ours.where}: {why_not}")
        return ours

    def _source_of_another(self, directory, wanted, optimizer):
        """What all ranks load of the model in that directory, whatever this job has saved of its own; or None."""
        theirs = failed = None
        self._layout.parts = set(self._restorer.of_all(self._layout.part))
        if self._rank == 0 and directory is not None:
            where = megatron_sources.Elsewhere(os.path.abspath(directory))
            is_distributed = megatron_state.is_distributed(optimizer)
            theirs, failed = megatron_sources.choose_theirs(where, self._layout, is_distributed, wanted)
        theirs, failed = self._restorer.agreed((theirs, failed))
        if failed is not None:
            raise RuntimeError(f"{WHO}: {failed}")
        self.why = "nothing is there" if theirs is None else f"{theirs.where} is loaded"
        return theirs

    def _decided(self, found, ours, directory, wanted, is_later_life, is_distributed):
        """On rank 0: (Theirs to go on from or None, why none of these fits or None, whether it may be ours then)."""
        is_elsewhere = directory is not None and os.path.abspath(directory) != self.directory
        # What was asked for, by its iteration or by another path, is what this job has begun with.
        has_gone_on = is_later_life and (wanted is not None or is_elsewhere) and self._is_of_this_job(found, ours)
        wanted = None if has_gone_on else wanted
        is_in_memory = ours is not None and ours.kind == "memory"
        if wanted is None and (is_in_memory or (is_elsewhere and has_gone_on)):
            return None, None, True  # newer than all that Megatron has written
        where = megatron_sources.Elsewhere(os.path.abspath(directory)) if is_elsewhere else self._shown
        theirs, failed = megatron_sources.choose_theirs(where, self._layout, is_distributed, wanted)
        return theirs, failed, wanted is None

    def _is_of_this_job(self, found, ours):
        return ours is not None and (ours.kind == "memory" or self._shown.is_of_this_job(found.directory))

    def _load_by_core(self, source, args, model, optimizer, scheduler, strict):
        is_release = source.iteration == megatron_layout.RELEASE
        begins_anew = is_release or (getattr(args, "finetune", False) and not source.is_resumed)
        load_optimizer = None
        if source.is_sharded:
            state = self._load_sharded(source, args, model, None if begins_anew else optimizer, scheduler)
        else:
            state = source.load(self._layout.path(megatron_layout.MODEL))
            self._must_fit(source, state, model, strict)
            load_optimizer = functools.partial(self._load_optimizer, source, optimizer)
        with torch.no_grad():
            megatron_state.give_back(state, model, optimizer, scheduler, strict, begins_anew, load_optimizer)
        if begins_anew:
            return 0, 0
        return state["iteration"], state.get("num_floating_point_operations_so_far", 0)

    def _load_optimizer(self, source, optimizer):
        path = self._layout.path(megatron_layout.OPTIMIZER)
        with captured.loads_below(self._scratch, source.load):
            optimizer.load_parameter_state(os.path.join(self._scratch, path))

    def _load_sharded(self, source, args, model, optimizer, scheduler):
        reader = source.reader or megatron_dist.reader_of(source.where)
        metadata = source.load(megatron_dist.COMMON).get("content_metadata") or {}
        with_random = megatron_dist.has_own_random_numbers(reader, megatron_state.place_of_random_numbers())
        wanted = megatron_state.sharded(
            args, 0, model, optimizer, scheduler, 0, metadata, is_loading=True, with_random=with_random
        )
        try:
            with self._view(source) as folder:
                return megatron_dist.load(
                    wanted, os.path.join(folder, megatron_layout.folder_of(source.iteration)), source.reader
                )
        except RuntimeError as error:
            raise RuntimeError(f"{WHO}: {source.where}: {error}") from error

    def _must_fit(self, source, state, model, strict):
        """On all ranks, where it is of another model."""
        here = megatron_state.shapes_of(megatron_state.weights_of(model))
        why = megatron_layout.why_another_model(megatron_state.shapes_of(state), here) if strict else None
        failed = next((each for each in self._restorer.of_all(why) if each is not None), None)
        if failed is not None:
            raise RuntimeError(
                f"{WHO}: {source.where}: {failed}. Give the model that was saved, or another directory to save to"
            )

    def _load_by_stock(self, source, given, named):
        """Megatron's own load_checkpoint() finds a directory in which there is nothing else."""
        stock, args, load_arg = megatron_stock.checkpointing(), megatron_stock.args(), given[3]
        states = {}

        def load(path):
            inner = path.partition("/")[2]
            if inner not in states:
                states[inner] = source.load(inner)
            return states[inner]

        own = self._layout.path(megatron_layout.MODEL)
        if own in source.paths:
            states[own] = source.load(own)
            self._must_fit(source, states[own], given[0], given[4])
        settings = {load_arg: None}
        if hasattr(args, "ckpt_step"):
            settings["ckpt_step"] = None
        if source.is_resumed and getattr(args, "finetune", False):
            settings["finetune"] = False
        with self._view(source) as folder:
            settings[load_arg] = folder
            words = _with_words(stock, lambda text: text.replace(folder, source.where))
            reads = megatron_dist.reads_by(source.reader)
            # Without gradients, since the distributed optimizer writes into weights in fp32.
            with _set(args, **settings), _set(stock, **words), captured.loads_below(
                folder, load
            ), reads, torch.no_grad():
                return _with_flops(stock.load_checkpoint(*given, **named))

    def _load_nothing_by_stock(self, given, named):
        """Megatron's own load_checkpoint() finds nothing either, also where all that is there is damaged, and does what
        its args say of that: it loads args.pretrained_checkpoint, or ends the job."""
        stock, args, load_arg = megatron_stock.checkpointing(), megatron_stock.args(), given[3]
        directory, nowhere = getattr(args, load_arg, None), os.path.join(self._scratch, "nowhere")
        settings = {} if directory is None else {load_arg: nowhere}
        words = _with_words(stock, lambda text: text.replace(nowhere, str(directory)))
        with _set(args, **settings), _set(stock, **words), torch.no_grad():
            return _with_flops(stock.load_checkpoint(*given, **named))

    @contextlib.contextmanager
    def _view(self, source):
        """A directory as Megatron's, in which there is that one iteration."""
        with tempfile.TemporaryDirectory(prefix="phalanx-megatron-") as folder:
            with open(os.path.join(folder, megatron_layout.TRACKER), "x") as file:
                file.write(str(source.iteration))
            source.put_names(folder)
            yield folder

    # --- as of phalanx.checkpoint.Checkpointer

    def wait(self):
        """Waits until nothing of the last save is read any more: to be called before anything but optimizer.step() or a
        load writes weights or optimizer states."""
        self._files.wait()

    def wait_stored(self, timeout=None):
        """Waits until the last save to disk is where it belongs, or will not be. TimeoutError."""
        self._saver.finish(timeout)
        if not self._files.finish_telling(timeout):
            raise TimeoutError(
                f"the last save is stored, and after {timeout} s not in its place in {self.directory} yet"
            )

    def steps(self):
        """[StoredStep] of what is stored whole, the one that was stored last first."""
        return self._files.steps()

    def close(self):
        """Waits for what is to be stored, and until it is where it belongs."""
        self._files.close()
        captured.release(self._scratch)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._files.__exit__(*error)


class _Files(exact.Files):
    """Knows what of a model only its optimizer's steps write."""

    def __init__(self, directory, **settings):
        self._modules, self._optimizers = [], []
        super().__init__(directory, **settings)

    def writes(self, model, optimizer):
        self._modules = megatron_state.chunks_of(model)
        self._optimizers = megatron_state.torch_optimizers_of(optimizer)

    def find(self):
        """(Found, megatron_sources.Ours or None)."""
        found, files = super().find()
        return found, None if found.source is None else megatron_sources.Ours(found, files)

    def _described_files(self, state):
        expanded, contents = super()._described_files(state)
        return megatron_state.written_by(expanded, self._modules, self._optimizers), contents


# --- small things


def _by_names(content):
    return {published.name_of(path): state for path, state in content.items()}


def _why_not(keep_last, ckpt_format, settings):
    if ckpt_format not in FORMATS:
        return f"ckpt_format is {ckpt_format!r}; expected {' or '.join(map(repr, FORMATS))}"
    for name in _TAKEN:
        if name in settings:
            return f"{name} is given, which Megatron's files decide: leave it out"
    if keep_last is not None and (type(keep_last) is not int or keep_last < 1):
        return f"keep_last is {keep_last!r}; expected a number above 0, or None for all"
    return None


def _refuse_more(more, named):
    if more or named:
        given = ", ".join([*(f"{len(more)} more" for _ in more[:1]), *named])
        raise TypeError(f"{WHO}: arguments of Megatron's own are given ({given}), and there is no megatron.training")


def _is_of_reference(directory, optimizer, args):
    """Whether Megatron-LM loads weights alone, and from no directory: its loop for reinforcement learning does, for the
    reference, which is args.pretrained_checkpoint."""
    return directory is None and optimizer is None and megatron_stock.is_here(args)


def _with_flops(loaded):
    """What load_checkpoint() gives, of a Megatron that counts none, too."""
    return loaded if isinstance(loaded, tuple) else (loaded, 0)


def _call_of(function, given, more, named):
    """The arguments of Megatron's own save_checkpoint(), each by its name however it was given. TypeError."""
    signature = inspect.signature(function)
    flops = given[4:] if "num_floating_point_operations_so_far" in signature.parameters else ()
    return signature.bind(*given[:4], *flops, *more, **named)


def _give_strategy(call, strategy):
    """By which it saves in the format torch_dist. The caller's own dictionary stays as it is."""
    name = "checkpointing_context"
    if name not in call.signature.parameters:
        raise ValueError(
            f"{WHO}: ckpt_format is 'torch_dist', and save_checkpoint() of this Megatron-LM has no {name}: expected "
            "one that has, of core_r0.8.0 or later, or the format 'torch'"
        )
    call.arguments[name] = {**(call.arguments.get(name) or {}), "save_strategy": strategy}


def _with_words(stock, change):
    """What Megatron says while it works in a folder of ours, for _set(): changed or, where that is None, not at all: it
    would say that a checkpoint is stored."""
    original = getattr(stock, "print_rank_0", None)
    if original is None:
        return {}
    return {"print_rank_0": lambda text, *more: None if change is None else original(change(str(text)), *more)}


@contextlib.contextmanager
def _set(target, **values):
    """Attributes of `target`, as they were when this is over."""
    before = {name: getattr(target, name) for name in values}
    for name, value in values.items():
        setattr(target, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(target, name, value)
