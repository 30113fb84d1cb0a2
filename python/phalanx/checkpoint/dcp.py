"""For sharded state, FSDP and DTensor: each rank saves its shards, as files of torch.distributed.checkpoint (DCP). What
is on disk is read by stock dcp.load(), into any world; memory by load(), where all of it is in it.

    ckpt = phalanx.checkpoint.dcp.Checkpointer("/data/run7")
    state = {"model": model, "optimizer": optimizer, "step": 0, "rng": True}
    step = ckpt.load(state)
    ckpt.save(step, state)
"""

import collections
import contextlib
import functools
import io
import itertools
import pathlib

import torch
import torch.distributed.checkpoint as stock
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint import state_dict as torch_state
from torch.distributed.checkpoint._traverse import set_element

from phalanx.checkpoint import checkpointer, shared_out
from phalanx.checkpoint.copying import overlap
from phalanx.checkpoint.formats import plan, sharded
from phalanx.checkpoint.handle import SaveHandle, Storage
from phalanx.checkpoint.ranks import peers, safe_point, together
from phalanx.checkpoint.state import per_rank, position, rng, shared_values, states
from phalanx.checkpoint.storage_writer import Preparer, StorageWriter

_OWN = "phalanx.rank_"  # keys of what is a rank's own
_OWN_ROOM = 64 << 10  # random numbers at the start of an epoch come and go
_LENGTH_BYTES = 8
_PACKED_MAX = 3  # times that a rank's own is packed until two in a row are the same


class Checkpointer(shared_out.Checkpointer):
    """As phalanx.checkpoint.Checkpointer, but that load() writes into the state that it is given, and that prepare(),
    save() and load() are for all ranks together: where one is called, all must come. "rng", data positions and PerRank
    stand at the top level of the state, and are each rank's own.

    Modules and optimizers in the state stand for what torch.distributed.checkpoint.state_dict gives for them.
    """

    kind = "dcp"
    layouts_on_disk = ("dcp",)

    def __init__(self, *settings, **named_settings):
        self._plan = None
        self.forms = sharded.Forms()
        self._own_describer = plan.Describer()
        super().__init__(*settings, **named_settings)
        # async_save() has a thread of its own.
        self._peers_of_writers = peers.Peers(self._here, self.directory, "/writers")

    # --- saving

    def _index(self):
        return sharded.metadata_image(self._plan.metadata)

    def _write(self, handle, state, began_ns):
        handle.values = shared_values.checksums(state)
        super()._write(handle, state, began_ns)

    def get_storage_writer(self, step, storage=Storage.DISK, waits=True):
        """A writer for one stock dcp.save() or dcp.async_save(), by whatever planner, of that step: to disk, or to
        memory alone. All ranks call this together, and save with it what all have a part in. dcp.save() returns, and
        the Future of async_save() is done, when the step is stored, or committed; what is in the way raises there.
        `waits=False`: when it is copied; the writer's `handle` says what becomes of it.

        Random numbers and data positions are not added: what is saved is what dcp.save() is given.
        """
        self._must_be_open()
        storage, step = checkpointer.checked_storage(storage), checkpointer.step_number(step)
        # What all ranks count and make together is made here: async_save() goes on in a thread of its own.
        branch = self._way.begins(step)
        try:
            self._peers_of_writers.group_of_save(step)
        except peers.NotTogether as error:
            raise RuntimeError(f"phalanx.checkpoint: step {step} of {self.directory}: {error}") from None
        if not self._has_agent and storage is Storage.DISK:
            try:
                self._must_have_host(step, branch)
                self._alone.meet(step, branch)
            except together.Apart as error:
                raise RuntimeError(f"phalanx.checkpoint: step {step} of {self.directory}: {error}") from None
        handle = SaveHandle(self, step, storage, branch)
        return StorageWriter(self, self._here, self._peers_of_writers, handle, waits)

    def save_planned(self, handle, lay_out, described, began_ns):
        """For a StorageWriter: saves this rank's file. `lay_out()` gives its image, and the tensors in it by name;
        `described`: the .metadata, on the first rank of each node."""

        def write():
            expanded = self._expanded_for_planner()
            image, expanded.state = lay_out()
            index = functools.partial(sharded.metadata_image, described)
            return self._write_part(handle, expanded, image, index, began_ns)

        handle.tells_step = safe_point.is_here()  # else the training is further by now
        self._begin(handle, write, began_ns)

    def prepare_by(self, save, waits=True):
        """As prepare(), of what `save(writer)` would save: a stock dcp.save() by whatever planner. All ranks call it
        together."""
        self._must_be_able_to_save()
        whys = []

        def prepare(lay_out, described):
            expanded = self._expanded_for_planner()
            image, expanded.state = lay_out()
            index = functools.partial(sharded.metadata_image, described)
            whys.append(self._prepare_part(expanded, image, index, waits))

        save(Preparer(self, self._here, self._peers_of_writers, prepare))
        return whys[0] if whys else None

    def _expanded_for_planner(self):
        """Of a save by a planner of the user's, without its state."""
        return states.Expanded()

    def _planned(self, state, step):
        """(Expanded, image) of this rank, agreed upon with all others."""
        try:
            expanded, local = self._local(state)
            image = self._image_by_plan(local)
        except Exception:
            self._peers.vote_failed(step)
            raise
        verdict = self._peers.vote(peers.SAME if image is not None else peers.CHANGED, step)
        if verdict != peers.SAME:
            self._plan_anew(local)
            image = self._plan.file.image(local)
        return expanded, image

    def _local(self, state):
        expanded = _expand(state)
        expanded.state.update(self._own(state))
        local = sharded.Local(expanded.state, self._describer)
        local.check()
        expanded.state = local.state
        if self.weights_only:
            for fqn, value in local.state.items():
                if not isinstance(value, torch.Tensor) and not hasattr(value, "local_shards"):
                    self._loadable.check(local.value(fqn).classes, {fqn: value})
        return expanded, local

    def _image_by_plan(self, local):
        """None where there is no plan for it."""
        if self._plan is None or self._plan.structure != local.structure():
            return None
        try:
            return self._plan.file.image(local)
        except sharded.Outgrown:
            return None

    def _plan_anew(self, local):
        self._plan = None
        found = self._peers.arrange(
            lambda: sharded.Part(local, self.forms, self._here.first_rank),
            lambda parts: sharded.arranged(local.planner, parts),
        )
        found.structure, found.file = local.structure(), sharded.File(found, self.forms)
        self._plan = found

    def _own(self, state):
        """{key: tensor} of what is this rank's own. NotTogether where another thread writes it all the time."""
        own = states.own_part(state)
        if not own:
            return {}
        values = states.expand(own).state
        if self.weights_only:
            self._loadable.check(self._own_describer.describe(values).classes, values)
        data = _packed_whole(values)
        room = -(-(_LENGTH_BYTES + len(data) + _OWN_ROOM) // _OWN_ROOM) * _OWN_ROOM
        packed = bytearray(len(data).to_bytes(_LENGTH_BYTES, "little") + data).ljust(room, b"\0")
        return {f"{_OWN}{self._here.rank}": torch.frombuffer(packed, dtype=torch.uint8)}

    def _is_lent(self):
        """A node that goes stays until the others have read its ranks' parts."""
        return True

    # --- restoring

    def get_storage_reader(self, found=None):
        """A reader for stock dcp.load() of the newest step that every rank has, or of what was `found`. None where
        there is none. Parts of a step in memory that are in other nodes' are read from there when dcp.load() wants
        them."""
        found = self._find() if found is None else found
        if found.source is None:
            return None
        if found.source == "disk":
            return filesystem.FileSystemReader(found.directory)
        return self._memory_reader(found)

    def _memory_reader(self, found):
        where = f"step {found.step} of {self.directory}"
        if found.main is None:
            raise RuntimeError(f"phalanx.checkpoint: {where} in memory is none of phalanx.checkpoint.dcp")
        paths = {sharded.file_name(rank): path for rank, path in found.ranks.items()}
        paths[".metadata"] = found.main

        def fetch(parts):
            fetched = self._fetch(found, {sharded.rank_of(name): ranges for name, ranges in parts.items()})
            return {sharded.file_name(rank): path for rank, path in fetched.items()}

        reader = _MemoryReader(_Slots(paths, where), fetch)
        self._given.add(reader)
        return reader

    def load(self, state, step=None, timeline=None, map_location=None):
        """Writes the newest step that every rank has into `state`, and returns the step; 0, and `state` stays as it is,
        where there is none. `step`, `timeline`: as in phalanx.checkpoint.Checkpointer.

        Tensors, modules and optimizers are written in place, other values stand in the dicts and lists of `state` then.
        Random numbers and data positions are set where this rank has saved some. A `map_location` is a TypeError.
        """
        if map_location is not None:
            raise TypeError(
                f"phalanx.checkpoint.dcp: map_location is {map_location!r}; expected None: load() writes into the "
                "tensors of the state that it is given, on their devices"
            )
        try:  # first: a rank that comes to it alone has gone back to nothing
            group = self._peers.group_of_load()
            found, reader = self._found_by_all(step, timeline)
        except peers.NotTogether as error:
            raise RuntimeError(f"phalanx.checkpoint: {self.directory}: {error}") from None
        if reader is None:
            return 0
        packed = self._load_from(reader, state, group)
        self._tell_read(found)
        if packed is not None:
            self._restore_own(state, packed)
        return found.step

    def _found_by_all(self, step, timeline):
        """(what is loaded, its reader or None). Where each rank asks its agent by itself, none goes on to read with the
        others before all have an answer."""
        if step is not None or timeline is not None or not self._asks_agent():
            found = self._find(step, timeline)
            return found, self.get_storage_reader(found)
        try:
            found = self._find()
            reader = self.get_storage_reader(found)
        except (RuntimeError, OSError):
            with contextlib.suppress(peers.NotTogether):  # this rank has an error of its own
                self._peers.all_can_load(False)
            raise
        self._peers.all_can_load(True)
        return found, reader

    def _load_from(self, reader, state, group):
        """What is this rank's own comes back as it was packed; None where there is none."""
        known = reader.read_metadata().state_dict_metadata
        stepped = _stepped_in(state, known)
        own = known.get(f"{_OWN}{self._here.rank}") if states.own_part(state) else None
        with _taken_back_on_failure(each for each in stepped if not each.state):
            expanded = _expand(state, stepped)
            loaded = dict(expanded.state)
            if own is not None:
                loaded[f"{_OWN}{self._here.rank}"] = torch.empty(own.size, dtype=torch.uint8)
            stock.load(
                loaded,
                storage_reader=reader,
                planner=_LoadPlanner(self.weights_only),
                process_group=group,
            )
            packed = loaded.pop(f"{_OWN}{self._here.rank}", None)
            for key, value in loaded.items():
                state[key] = _put(state[key], value, expanded.modules)
        return packed

    def _restore_own(self, state, packed):
        data = packed.numpy().tobytes()
        length = int.from_bytes(data[:_LENGTH_BYTES], "little")
        values = torch.load(io.BytesIO(data[_LENGTH_BYTES : _LENGTH_BYTES + length]), weights_only=self.weights_only)
        for key, value in values.items():
            if rng.is_captured(value):
                rng.restore(value)
            elif isinstance(state.get(key), position.DataPosition):
                state[key].load_state_dict(value)
            elif isinstance(state.get(key), per_rank.PerRank):
                state[key].value = value["value"]


class _LoadPlanner(stock.DefaultLoadPlanner):
    """torch's own, which however takes pickles of any kind."""

    def __init__(self, weights_only):
        super().__init__()
        self._weights_only = weights_only

    def load_bytes(self, read_item, value):
        loaded = torch.load(value, weights_only=self._weights_only)
        set_element(self.original_state_dict, self.mappings[read_item.dest_index.fqn], loaded)


class _Slots(filesystem.FileSystem):
    """The files of a step that lie in memory."""

    def __init__(self, paths, where):
        self.paths, self._where = paths, where

    def concat_path(self, path, suffix):
        if suffix not in self.paths:
            raise RuntimeError(f"phalanx.checkpoint: {suffix} of {self._where} is not in this node's memory")
        return pathlib.Path(self.paths[suffix])


class _MemoryReader(filesystem.FileSystemReader):
    """Of files in `slots`. `fetch({name: [(from, behind the last), ..]})` brings parts of further ones: it returns
    their paths by name."""

    def __init__(self, slots, fetch):
        super().__init__(".")
        self.fs = slots
        self._here = set(slots.paths)
        self._fetch = fetch
        self._is_over = False

    def expire(self):
        """Memory may be written over from now on."""
        self._is_over = True

    def read_data(self, plan, planner):
        """torch's own, behind what it is going to read."""
        if self._is_over:
            raise RuntimeError(
                "phalanx.checkpoint.dcp: this reader is of what memory held before a save of this rank: ask "
                "get_storage_reader() for another"
            )
        wanted = {}
        for item in plan.items:
            place = self.storage_data[item.storage_index]
            if place.relative_path not in self._here:
                wanted.setdefault(place.relative_path, set()).add((place.offset, place.offset + place.length))
        if wanted:
            self.fs.paths.update(self._fetch(wanted))
        return super().read_data(plan, planner)


# --- what is a rank's own


def _packed(values):
    data = io.BytesIO()
    torch.save(values, data)
    return data.getvalue()


def _packed_whole(values):
    """Packed twice to the same bytes: a moment between had all of them."""
    data = _packed(values)
    for _ in range(_PACKED_MAX):
        before, data = data, _packed(values)
        if data == before:
            return data
    written = [key for key, value in values.items() if _packed(value) != _packed(value)] or values
    names = ", ".join(f"state[{key!r}]" for key in written)
    raise peers.NotTogether(f"{names} changed while it was copied, again and again: another thread writes it")


# --- what torch makes of modules and optimizers


def _expand(state, stepped=None):
    """The state without what is a rank's own. `stepped`: optimizers that are to have a state of their own in it, which
    is made for those that have none; not given: those that have one."""
    own = states.own_part(state)
    rest = {key: value for key, value in state.items() if key not in own}
    modules = list(_modules_in(rest))

    def state_of(value):
        if isinstance(value, torch.nn.Module):
            return torch_state.get_model_state_dict(value)
        if isinstance(value, torch.optim.Optimizer):
            module = _module_of(value, modules)
            if module is not None:
                has_state = bool(value.state) if stepped is None else value in stepped
                with overlap.without_hooks(value) if has_state else _without_state(value):
                    return torch_state.get_optimizer_state_dict(module, value)
        return value.state_dict()

    expanded = states.expand(rest, state_of)
    expanded.state = dict(expanded.state)
    return expanded


class _NoState(collections.defaultdict):
    """The state of an optimizer that has none. torch makes one by a step of the optimizer where it is not true."""

    def __bool__(self):
        return True


@contextlib.contextmanager
def _without_state(optimizer):
    """For torch the optimizer has made no step. What it loads meanwhile stays."""
    kept, optimizer.state = optimizer.state, _NoState(dict)
    try:
        yield
    finally:
        if isinstance(optimizer.state, _NoState):
            optimizer.state = kept


@contextlib.contextmanager
def _taken_back_on_failure(optimizers):
    """Optimizers without a state have none behind it, either, unless all goes well."""
    without = list(optimizers)
    try:
        yield
        without = []
    finally:
        for optimizer in without:
            optimizer.state.clear()


def _stepped_in(state, known):
    """The optimizers of the state that had a state of their own when they were saved. `known`: all names there."""
    return {
        optimizer
        for optimizer, path in _optimizers_in(state, "")
        if any(name.startswith(f"{path}.state.") for name in known)
    }


def _optimizers_in(value, path):
    """(optimizer, the name of its place in the state)."""
    if isinstance(value, torch.optim.Optimizer):
        yield value, path
    elif isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _optimizers_in(inner, f"{path}.{key}" if path else str(key))


def _modules_in(value):
    if isinstance(value, torch.nn.Module):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    elif not isinstance(value, (list, tuple)):
        return []
    return itertools.chain.from_iterable(_modules_in(inner) for inner in value)


def _module_of(optimizer, modules):
    """The module that has all parameters of the optimizer; None where no module of the state does."""
    wanted = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for module in modules:
        if wanted <= {id(parameter) for parameter in module.parameters()}:
            return module
    return None


def _put(present, loaded, modules):
    """Puts what was loaded into the place of `present`, and returns what stands there then."""
    if isinstance(present, torch.nn.Module):
        torch_state.set_model_state_dict(present, loaded)
    elif isinstance(present, torch.optim.Optimizer) and _module_of(present, modules) is not None:
        with contextlib.nullcontext() if loaded["state"] else _without_state(present):
            torch_state.set_optimizer_state_dict(_module_of(present, modules), present, loaded)
    elif not isinstance(present, (torch.Tensor, type)) and callable(getattr(present, "load_state_dict", None)):
        present.load_state_dict(loaded)
    elif isinstance(present, dict):
        for key, value in loaded.items():
            present[key] = _put(present[key], value, modules) if key in present else value
    elif type(present) is list:
        present[:] = [_put(*pair, modules) for pair in zip(present, loaded)]
    else:
        return loaded
    return present
