"""Checkpoints in Megatron's torch_dist format, which is DCP's with common.pt and metadata.json beside: through
phalanx.checkpoint.dcp, and read by stock megatron.core.dist_checkpointing.load() in a world of any size.

What would be common.pt and metadata.json lies in the step as one more value, and becomes these files where the step
becomes a folder.
"""

import contextlib
import io
import os
import pickle

import torch
import torch.distributed.checkpoint as stock
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing import mapping
from megatron.core.dist_checkpointing.strategies import async_utils, fully_parallel
from megatron.core.dist_checkpointing.strategies import torch as strategies

from phalanx.checkpoint import dcp
from phalanx.checkpoint.adapters import captured, megatron_layout, published
from phalanx.checkpoint.handle import SaveHandle

COMMON, CONFIG = "common.pt", "metadata.json"
_METADATA = ".metadata"
_KEY = "phalanx.common"
_READER = "_get_filesystem_reader"  # by which megatron-core opens a folder


class Strategy(strategies.TorchDistSaveShardedStrategy):
    """For dist_checkpointing.save(): writes nothing, and keeps what DCP would be given."""

    def __init__(self):
        super().__init__("torch_dist", 1)
        self.state = None

    def save(self, sharded_state_dict, checkpoint_dir):
        flat, _, _ = strategies._replace_state_dict_keys_with_sharded_keys(
            sharded_state_dict, self.keep_only_main_replica
        )
        self.state = strategies.mcore_to_pyt_state_dict(flat, False)

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
    """{key: value} for DCP of what dist_checkpointing.save() would write. `folder`: an empty one, which stays so."""
    strategy = Strategy()
    inner = os.path.join(folder, "collected")
    os.makedirs(inner)
    with captured.saves_below(folder) as saved:
        dist_checkpointing.save(
            sharded_state, inner, parallel(strategy, is_parallel), content_metadata=content_metadata
        )
    return with_common(strategy.state, saved, folder)


def with_common(state, saved, folder):
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
    if not files:
        return state
    common = io.BytesIO()
    torch.save(files, common)
    return {**state, _KEY: common}


class Files(dcp.Checkpointer):
    """Saves the values of collect(), of all ranks together."""

    @property
    def rank(self):
        return self._here.rank

    def find(self):
        """(Found, Sharded or None)."""
        found = self._find()
        return found, None if found.source is None else Sharded(found, self.get_storage_reader(found))

    def save(self, step, state, storage, on_stored=None):
        """A SaveHandle, when all of this rank is copied. What is in the way costs the save."""
        writer, why = self._begun_by_all(step, storage)
        if why is not None:
            return self._not_begun(step, storage, why, on_stored)
        planner = strategies.MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False)
        try:
            stock.save(state, storage_writer=writer, planner=planner)
        except stock.CheckpointException as error:
            writer.handle.is_over = True
            writer.handle.explain("; ".join(sorted({str(failure[0]) for failure in error.failures.values()})))
        if on_stored is not None:
            self._teller.tell(writer.handle, on_stored)
        return writer.handle

    def _begun_by_all(self, step, storage):
        """(the writer, None), or (None, why there is none), on all ranks alike: one that passed a save over would leave
        the others in what they exchange for it."""
        writer = why = None
        try:
            writer = self.get_storage_writer(step, storage, waits=False)
        except RuntimeError as error:
            why = str(error)
        begun, group = torch.tensor(int(why is None)), self._peers_of_writers.group()
        if group is not None:
            torch.distributed.all_reduce(begun, torch.distributed.ReduceOp.MIN, group)
        if begun.item():
            return writer, None
        return None, why or "another rank cannot begin it"

    def _not_begun(self, step, storage, why, on_stored):
        """The handle of a save for which the ranks do not come together."""
        self._must_be_open()
        handle = SaveHandle(self, step, storage)
        handle.is_over = True
        handle.explain(why)
        if on_stored is not None:
            self._teller.tell(handle, on_stored)
        return handle


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
    named = {each.relative_path for each in reader_of(folder).read_metadata().storage_data.values()}
    missing = sorted(named - paths)
    return f"{missing[0]} is missing, in which a part of it lies" if missing else None


# --- a step becomes a folder


class Folders(published.Folders):
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
