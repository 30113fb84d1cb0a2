"""Checkpoints in Megatron's torch_dist format, which is DCP's with common.pt and metadata.json beside: through
phalanx.checkpoint.dcp, and read by stock megatron.core.dist_checkpointing.load() in a world of any size.

What would be common.pt and metadata.json lies in the step as one more value, and becomes these files where the step
becomes a folder.
"""

import contextlib
import dataclasses
import functools
import io
import math
import os
import pickle
import time

import torch
import torch.distributed.checkpoint as stock
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing import mapping
from megatron.core.dist_checkpointing.strategies import async_utils, fully_parallel
from megatron.core.dist_checkpointing.strategies import torch as strategies

from phalanx.checkpoint import dcp
from phalanx.checkpoint.adapters import captured, megatron_folder, megatron_layout, megatron_state
from phalanx.checkpoint.formats import framed, zipped
from phalanx.checkpoint.handle import SaveHandle
from phalanx.checkpoint.ranks import peers
from phalanx.checkpoint.state import loadable

COMMON, CONFIG = "common.pt", "metadata.json"
_METADATA = ".metadata"
_KEY = "phalanx.common"
_PAGE_BYTES, _ROOM_BYTES = 4096, 1024  # of what is no tensor: counts and random numbers take more or fewer bytes
_READER = "_get_filesystem_reader"  # by which megatron-core opens a folder


class Strategy(strategies.TorchDistSaveShardedStrategy):
    """For dist_checkpointing.save(): writes nothing, and keeps what DCP would be given."""

    def __init__(self):
        super().__init__("torch_dist", 1)
        self.parts = None

    def save(self, sharded_state_dict, checkpoint_dir):
        self.parts, _, _ = strategies._replace_state_dict_keys_with_sharded_keys(
            sharded_state_dict, self.keep_only_main_replica
        )

    def async_save(self, sharded_state_dict, checkpoint_dir):
        self.save(sharded_state_dict, checkpoint_dir)
        return async_utils.AsyncRequest(None, (), [])


def parallel(strategy, is_parallel):
    """As --ckpt-fully-parallel-save: what data-parallel ranks have alike is shared out among them."""
    if not is_parallel:
        return strategy
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    return fully_parallel.FullyParallelSaveStrategyWrapper(strategy, group, True)


def collect(sharded_state, folder, content_metadata, is_parallel):
    """The Contents of what dist_checkpointing.save() would write. `folder`: an empty one, which stays so."""
    strategy = Strategy()
    inner = os.path.join(folder, "collected")
    os.makedirs(inner)
    with captured.saves_below(folder) as saved:
        dist_checkpointing.save(
            sharded_state, inner, parallel(strategy, is_parallel), content_metadata=content_metadata
        )
    return with_common(strategy.parts, saved, folder)


def with_common(parts, saved, folder):
    """`saved`: {path: object} of what was to be saved by torch.save(); other files lie below `folder`, which is empty
    then."""
    files = {}
    for path, value in saved.items():
        data = io.BytesIO()
        torch.save(value, data)
        files[os.path.basename(path)] = data.getvalue()
    for inner, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(inner, name), "rb") as file:
                files[name] = file.read()
    captured.empty(folder)
    files = {name: files[name] for name in (COMMON, CONFIG) if name in files}
    return Contents(parts, files)


class Contents:
    """What a rank saves: `parts`, {key: [megatron-core's ShardedTensor, or one ShardedObject]}, and `files`, which
    stand beside them in Megatron's folder: {} but on one rank."""

    def __init__(self, parts, files):
        self.parts, self._files = parts, files
        self._bytes = {}

    def structure(self):
        """What a plan depends upon: all that megatron-core says of each part, but what is in its data."""
        return [(key, list(map(_without_data, parts))) for key, parts in self.parts.items()], bool(self._files)

    def bytes_of(self, key):
        """Of what is no tensor, a file of torch.save()."""
        if key not in self._bytes:
            self._bytes[key] = self._saved_bytes(key)
        return self._bytes[key]

    def _saved_bytes(self, key):
        if key != _KEY:
            return strategies.mcore_to_pyt_state_dict({key: self.parts[key]}, False)[key].getvalue()
        data = io.BytesIO()
        torch.save(self._files, data)
        return data.getvalue()

    def state(self):
        """{key: value} for DCP. What is no tensor has room to grow."""
        state = strategies.mcore_to_pyt_state_dict(dict(self.parts), False)
        others = {key: value for key, value in state.items() if isinstance(value, io.BytesIO)}
        self._bytes.update({key: value.getvalue() for key, value in others.items()})
        for key in [*others, _KEY] if self._files else others:
            state[key] = io.BytesIO(_padded(self.bytes_of(key)))
        return state


def _without_data(part):
    # Not its shape: megatron-core puts axes before those of local_shape.
    kind = (part.data.dtype, part.data.numel()) if isinstance(part.data, torch.Tensor) else None
    fields = [getattr(part, field.name) for field in dataclasses.fields(part) if field.name != "data"]
    return type(part), kind, fields


def _padded(data):
    """Zeros behind a file of torch.save(), whose directory is found from the end."""
    return data.ljust(-(-(len(data) + _ROOM_BYTES) // _PAGE_BYTES) * _PAGE_BYTES, b"\0")


class Kept:
    """What all ranks have planned for one save, for the next ones of the same structure."""

    def __init__(self, contents, writer, forms):
        """`writer`: of the save."""
        resolved, assignment = writer.planned
        self.described = assignment.metadata
        self._structure, self._forms = contents.structure(), forms
        places = {
            (key, part.data.data_ptr(), part.data.numel()): number
            for key, parts in contents.parts.items()
            for number, part in enumerate(parts)
            if isinstance(part.data, torch.Tensor) and part.data.numel()
        }
        # (key, place, length, (number of its part in those of the key, shape as it is stored) or None: no tensor).
        self._items = []
        self._is_whole = True
        for key, at, length, tensor in resolved.laid:
            address, shape = tensor or (None, ())
            number = places.get((key, address, math.prod(shape)))
            self._is_whole &= tensor is None or number is not None
            self._items.append((key, at, length, None if tensor is None else (number, shape)))

    def fits(self, contents):
        """Whether that is saved as this was."""
        if not self._is_whole or contents.structure() != self._structure:
            return False
        others = [(key, length) for key, _, length, part in self._items if part is None]
        return all(len(contents.bytes_of(key)) <= length for key, length in others)

    def laid_out(self, contents):
        """As of sharded.Resolved."""
        image, state = framed.Image(), {}
        for key, at, length, part in self._items:
            if part is None:
                data = contents.bytes_of(key).ljust(length, b"\0")
                image.add(at, zipped.Zipped(data, (), (), length), ())
                continue
            number, shape = part
            tensor = contents.parts[key][number].data.detach().resolve_conj().resolve_neg().contiguous().view(shape)
            state[key, number] = tensor
            image.add(at, self._forms.tensor(tensor.shape, tensor.dtype), [framed.Part(tensor)])
        return image, state


class Files(dcp.Checkpointer):
    """Saves the Contents of all ranks together: megatron-core and torch plan the first time, and what comes behind that
    is laid out in the same way, as long as nothing but the data is another."""

    def __init__(self, directory, **settings):
        self._kept = None
        self._modules, self._optimizers = [], []
        super().__init__(directory, **settings)

    @property
    def rank(self):
        return self._here.rank

    def writes(self, model, optimizer):
        """What only the steps of that optimizer write."""
        self._modules = megatron_state.chunks_of(model)
        self._optimizers = megatron_state.torch_optimizers_of(optimizer)

    def _expanded_for_planner(self):
        return megatron_state.written_by(super()._expanded_for_planner(), self._modules, self._optimizers)

    def find(self):
        """(Found, Sharded or None)."""
        found = self._find()
        return found, None if found.source is None else Sharded(found, self.get_storage_reader(found))

    def prepare(self, contents, waits=True):
        """As of dcp.Checkpointer. Why nothing could be planned, or None."""
        try:
            return self.prepare_by(functools.partial(self._plan_and_save, contents), waits)
        except stock.CheckpointException as error:
            return _reasons(error)

    def save(self, step, contents, storage, on_stored=None):
        """A SaveHandle; where it had to be planned, when all of this rank is copied. What is in the way costs the
        save."""
        began_ns = time.monotonic_ns()
        writer, is_as_before, why = self._begun_by_all(step, storage, contents)
        if why is not None:
            return self._not_begun(step, storage, why, on_stored)
        try:
            if is_as_before:
                lay_out = functools.partial(self._kept.laid_out, contents)
                self.save_planned(writer.handle, lay_out, self._kept.described, began_ns)
            else:
                self._plan_and_save(contents, writer)
        except stock.CheckpointException as error:
            writer.handle.is_over = True
            writer.handle.explain(_reasons(error))
        if on_stored is not None:
            self._teller.tell(writer.handle, on_stored)
        return writer.handle

    def _plan_and_save(self, contents, writer):
        self._kept = None
        planner = strategies.MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False)
        stock.save(contents.state(), storage_writer=writer, planner=planner)
        self._kept = Kept(contents, writer, self.forms)

    def _begun_by_all(self, step, storage, contents):
        """(the writer, whether all save as before, None), or (None, False, why there is none), on all ranks alike: one
        that passed a save over would leave the others in what they exchange for it."""
        writer = why = None
        try:
            writer = self.get_storage_writer(step, storage, waits=False)
        except RuntimeError as error:
            why = str(error)
        fits = self._kept is not None and self._kept.fits(contents)
        verdict = peers.FAILED if why is not None else peers.SAME if fits else peers.CHANGED
        try:
            worst = self._peers_of_writers.vote(verdict, step)
        except peers.NotTogether as error:
            return None, False, why or str(error)
        return (writer, worst == peers.SAME, None) if why is None else (None, False, why)

    def _not_begun(self, step, storage, why, on_stored):
        """The handle of a save for which the ranks do not come together."""
        self._must_be_open()
        handle = SaveHandle(self, step, storage)
        handle.is_over = True
        handle.explain(why)
        if on_stored is not None:
            self._teller.tell(handle, on_stored)
        return handle


def _reasons(error):
    """Of a CheckpointException, which has one for each rank that failed."""
    return "; ".join(sorted({str(failure[0]) for failure in error.failures.values()}))


# --- restoring


class Sharded:
    """A step of ours that was found."""

    is_resumed = is_sharded = True

    def __init__(self, found, reader):
        self.kind, self.iteration = found.source, found.step
        where = "in memory" if self.kind == "memory" else f"in {found.directory}"
        self.where = f"iteration {found.step} {where}"
        self._files = common_of(reader)
        self.paths = sorted(self._files)
        known = reader.read_metadata()
        known.state_dict_metadata.pop(_KEY, None)
        reader.read_metadata = lambda *arguments, **named: known
        self.reader = reader

    def load(self, path):
        return torch.load(io.BytesIO(self._files[path]), map_location="cpu", weights_only=False)

    def put_names(self, folder):
        """What dist_checkpointing.load() looks at before it asks the reader."""
        own = os.path.join(folder, megatron_layout.folder_of(self.iteration))
        os.mkdir(own)
        for name, data in self._files.items():
            with open(os.path.join(own, name), "xb") as file:
                file.write(data)


def common_of(reader):
    """{name: bytes} of common.pt and metadata.json."""
    found = {_KEY: None}
    stock.load(found, storage_reader=reader, planner=stock.DefaultLoadPlanner(), no_dist=True)
    return found[_KEY]


def reader_of(folder):
    return stock.FileSystemReader(folder)


def has_own_random_numbers(reader, place):
    """Whether what was saved has those of this rank. `place`: (own indices), (sizes), of pipeline and tensor ranks."""
    own, sizes = (".".join(map(str, each)) for each in place)
    return f"rng_state/shard_{own}_{sizes}" in reader.read_metadata().state_dict_metadata


@contextlib.contextmanager
def reads_by(reader):
    """megatron-core's dist_checkpointing.load() reads by that one. None: as it does."""
    if reader is None:
        yield
        return
    original = getattr(strategies, _READER)
    setattr(strategies, _READER, lambda *arguments, **named: reader)
    try:
        yield
    finally:
        setattr(strategies, _READER, original)


def load(sharded_state, folder, reader):
    """What dist_checkpointing.load() gives. RuntimeError."""
    try:
        with reads_by(reader):
            return dist_checkpointing.load(sharded_state, folder)
    except (mapping.CheckpointingException, stock.CheckpointException) as error:
        raise RuntimeError(f"{error}") from error


def why_not_whole(folder, paths):
    """Of a folder that Megatron has written, in a sentence, or None."""
    paths = set(paths)
    for name in (COMMON, _METADATA):
        if name not in paths:
            return f"{name} is missing: it is half a checkpoint"
    try:
        named = {each.relative_path for each in reader_of(folder).read_metadata().storage_data.values()}
    except (*loadable.NOT_LOADED, ImportError) as error:
        return f"{_METADATA} cannot be read: {type(error).__name__}: {error}"
    missing = sorted(named - paths)
    return f"{missing[0]} is missing, in which a part of it lies" if missing else None


# --- a step becomes a folder


class Folders(megatron_folder.Folders):
    """A folder is as dist_checkpointing.save() would leave it."""

    def _complete(self, stored, draft):
        reader = reader_of(stored.path)
        for name, data in common_of(reader).items():
            with open(os.path.join(draft, name), "xb") as file:
                file.write(data)
        known = reader.read_metadata()
        known.state_dict_metadata.pop(_KEY, None)
        known.storage_data = {index: at for index, at in known.storage_data.items() if index.fqn != _KEY}
        with open(os.path.join(draft, _METADATA), "xb") as file:
            pickle.dump(known, file)
