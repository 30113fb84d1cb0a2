"""Sharded state as files of torch.distributed.checkpoint: which rank writes what, where in its file, and the .metadata
that names it all. torch's own planner says what there is; docs/formats/checkpoint-image.md how a file is laid out.

What several ranks have is written once on each node, so that a node's memory holds all that its ranks need.
"""

import pickle
import re

import torch
from torch.distributed.checkpoint import DefaultSavePlanner, filesystem
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.checkpoint.utils import find_state_dict_object
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from phalanx.checkpoint import native
from phalanx.checkpoint.formats import framed, plan, zipped
from phalanx.checkpoint.state import refuse

_FILE_NAME = re.compile(r"__(\d+)_0\.distcp")
ALIGNMENT = 64  # of the items of a file
_VALUE_ROOM = 64  # bytes that a value that is no tensor may grow by, or a quarter


def file_name(rank):
    return f"__{rank}_0.distcp"


def rank_of(name):
    """Whose file it is. ValueError for other names."""
    match = _FILE_NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is no file of a rank")
    return int(match.group(1))


class Local:
    """What one rank has: the flat state, and its parts by torch's index."""

    def __init__(self, state, values):
        self.planner = DefaultSavePlanner()
        self.planner.set_up_planner(state, is_coordinator=True)  # the coordinator is who plans values, too
        self.state = self.planner.state_dict
        self._values = values
        self._pickled = {}  # fqn -> plan.Image

    def structure(self):
        """What a plan depends upon."""
        kinds = [(fqn, *_kind_of(value)) for fqn, value in self.state.items()]
        return kinds, self.planner.mappings

    def value(self, fqn):
        """A value that is no tensor, as an image."""
        image = self._pickled.get(fqn)
        if image is None:
            try:
                image = self._pickled[fqn] = self._values.describe(self.state[fqn])
            except refuse.CannotSave as error:
                raise refuse.CannotSave(f"{fqn}: {error}") from None
        return image

    def check(self):
        """Raises CannotSave for a tensor that no file can hold."""
        for fqn, value in self.state.items():
            for tensor in _tensors_of(value):
                _refuse_unless_savable(fqn, tensor)

    def tensor(self, index):
        """An item."""
        value = self.state[index.fqn]
        found = getattr(value, "_local_tensor", value)
        if type(found) is not torch.Tensor:
            found = find_state_dict_object(self.state, index)
        return found


def _refuse_unless_savable(fqn, tensor):
    try:
        refuse.unless_savable(tensor)
    except refuse.Refused as refused:
        raise refuse.CannotSave(f"{fqn}: {refused}") from None


def _tensors_of(value):
    if hasattr(value, "local_shards"):
        return [shard.tensor for shard in value.local_shards()]
    if isinstance(value, torch.Tensor):
        return [getattr(value, "_local_tensor", value)]
    return []


def _kind_of(value):
    if not isinstance(value, torch.Tensor) and not hasattr(value, "local_shards"):
        return ()
    if hasattr(value, "device_mesh"):
        return value.shape, value.dtype, value.device_mesh, value.placements
    if hasattr(value, "local_shards"):
        return (value.metadata(),)
    return value.shape, value.dtype


class Forms:
    """How items are written: remembered, since most are of the same few shapes."""

    def __init__(self):
        self._pickles = {}  # (shape, data type) -> pickle
        self._zips = {}

    def tensor(self, shape, dtype):
        """(zipped, bytes of its data) of a contiguous tensor in an item of its own."""
        key = tuple(shape), dtype
        if key not in self._pickles:
            image = plan.Describer().describe(torch.empty(shape, dtype=dtype))
            self._pickles[key] = image.pickle, image.sizes[0]
        pickled, size = self._pickles[key]
        return self.zipped(pickled, (size,))

    def zipped(self, pickled, sizes):
        key = pickled, sizes
        if key not in self._zips:
            self._zips[key] = zipped.zipped(pickled, sizes)
        return self._zips[key]


class Part:
    """What a rank tells of its state when all plan."""

    def __init__(self, local, forms, node):
        self.node = node  # ranks with the same share memory
        self.plan = local.planner.create_local_plan()
        self.lengths = {item.index: _length(item, local, forms) for item in self.plan.items}


def _length(item, local, forms):
    if item.type is not WriteItemType.BYTE_IO:
        return forms.tensor(item.tensor_data.chunk.sizes, item.tensor_data.properties.dtype).length
    image = local.value(item.index.fqn)
    _, length = native.zip_lengths(image.pickle, image.sizes)
    return length + max(_VALUE_ROOM, length // 4)


class Assignment:
    """What a rank writes: (index, place, length) each, in the file's order. `metadata`: for its node; None but on
    a node's first rank."""

    def __init__(self, items, metadata):
        self.items, self.metadata = items, metadata
        self.structure = self.file = None  # of whom it is for


def arranged(planner, parts):
    """An Assignment for each part. Raises ValueError where the parts make up no state."""
    _, metadata = planner.create_global_plan([part.plan for part in parts])
    return _assigned(metadata, parts, {})


def _assigned(metadata, parts, chosen):
    """`chosen`: {index: the rank that is to write it where it is one of the node's}."""
    nodes = {}
    for rank, part in enumerate(parts):
        nodes.setdefault(part.node, []).append(rank)
    items = [[] for _ in parts]
    stored = {}  # index -> where it lies: on the first node that has it
    of_node = {}
    for node, ranks in nodes.items():
        of_node[node] = _place_on_node(ranks, parts, items, chosen)
        for index, info in of_node[node].items():
            if index not in stored or chosen.get(index) in ranks:
                stored[index] = info
    assignments = []
    for rank, part in enumerate(parts):
        is_first = nodes[part.node][0] == rank
        described = _described(metadata, {**stored, **of_node[part.node]}) if is_first else None
        assignments.append(Assignment(items[rank], described))
    return assignments


def _place_on_node(ranks, parts, items, chosen):
    """Gives each item of a node to the rank that is chosen, or to that which has it and the least to write so far."""
    holders = {}
    for rank in ranks:
        for index in parts[rank].lengths:
            holders.setdefault(index, []).append(rank)
    ends = dict.fromkeys(ranks, 0)
    infos = {}
    for index, have_it in holders.items():
        rank = chosen.get(index)
        if rank not in have_it:
            rank = min(have_it, key=lambda each: ends[each])
        at, length = ends[rank], parts[rank].lengths[index]
        items[rank].append((index, at, length))
        infos[index] = _info(rank, at, length)
        ends[rank] = _aligned(at + length)
    return infos


def _described(metadata, stored):
    """The .metadata, as torch's own writer pickles it."""
    metadata.storage_data = stored
    if hasattr(metadata, "version"):
        metadata.version = getattr(filesystem, "CURRENT_DCP_VERSION", None)
    return pickle.dumps(metadata)


class Outgrown(Exception):
    """A value does not fit where the plan has put it: plan again."""


class _Otherwise(Exception):
    """What lies in the file is made up otherwise than its frame says."""


class File:
    """The image of a rank's file. Its frame is made once: from save to save there are other pointers and values."""

    def __init__(self, assignment, forms):
        self._items, self._forms = assignment.items, forms
        self._frame = None  # framed.Image, without memory: what is saved is kept alive by its copy alone
        self._sizes = None  # of its records
        self._values = {}  # fqn -> (what its frame is made up of, where that lies)

    def image(self, local):
        """Of what `local` holds now. It is to be used up before the next is asked for: they share their frame."""
        if self._frame is not None:
            try:
                return self._made(local, self._frame.without_memory())
            except _Otherwise:
                self._frame = None
        return self._made(local, framed.Image())

    def _made(self, local, image):
        for index, at, length in self._items:
            if index.offset is None:
                self._add_value(image, local.value(index.fqn), index.fqn, at, length)
            else:
                self._add_tensor(image, local.tensor(index), index.fqn, at, length)
        if self._frame is not None and image.sizes != self._sizes:
            raise _Otherwise
        self._frame, self._sizes = image.without_memory(), image.sizes
        return image

    def _add_tensor(self, image, tensor, fqn, at, length):
        part = [framed.Part.of(tensor)]
        if self._frame is not None:
            return image.add_memory(part)
        item = self._forms.tensor(tensor.shape, tensor.dtype)
        if item.length != length:
            raise Outgrown(fqn)
        return image.add(at, item, part)

    def _add_value(self, image, value, fqn, at, length):
        """Each value is compared by itself: two may hold the tensors of both otherwise, and their sizes are the same in
        a row."""
        item = zipped.zipped(value.pickle, value.sizes, length)
        if item.length > length:
            raise Outgrown(fqn)
        made_of = len(item.frame), item.records, item.patches
        if self._frame is None:
            self._values[fqn] = made_of, image.add(at, item, value.storages)
            return
        expected, begin = self._values[fqn]
        if made_of != expected:
            raise _Otherwise
        image.add_memory(value.storages)
        image.frame[begin : begin + len(item.frame)] = item.frame


def _aligned(at):
    return -(-at // ALIGNMENT) * ALIGNMENT


# --- what a planner of the user's has planned


class Resolved:
    """What this rank has of a save. `final`: the planner's plan for this rank; `local`: the one that it has made of
    this rank's state alone, with what other ranks are to write in its place. Of tensors among those only the size is
    taken: the planner may make a copy of each that it is asked for."""

    def __init__(self, final, local, planner, forms):
        self._planner, self._forms = planner, forms
        self._items = {item.index: item for item in (*local.items, *final.items)}
        self._data = {}
        self.final = {item.index for item in final.items}
        self.lengths, self.kinds = {}, {}
        # (name, place, length, (address, shape) of a tensor or None) of each item, when it is laid out.
        self.laid = []
        for index, item in self._items.items():
            if index in self.final or item.type is WriteItemType.BYTE_IO:
                self._take(index, planner.resolve_data(item))
            else:
                found = item.tensor_data
                self._tell(index, found.chunk.sizes, found.properties.dtype)

    def _take(self, index, data):
        self._data[index] = data
        if isinstance(data, torch.Tensor):
            _refuse_unless_savable(index.fqn, data)
            if is_traceable_wrapper_subclass(data):
                kind = type(data).__name__
                raise refuse.CannotSave(f"{index.fqn}: tensors of {kind}, which hold others, are not supported")
            self._tell(index, data.shape, data.dtype)
        else:
            self.lengths[index], self.kinds[index] = data.getbuffer().nbytes, None

    def _tell(self, index, shape, dtype):
        self.lengths[index] = self._forms.tensor(shape, dtype).length
        self.kinds[index] = tuple(shape), dtype

    def laid_out(self, assignment):
        """(image, {fqn: tensor} of the memory in it) of the file that this rank writes. Raises CannotSave."""
        image, state = framed.Image(), {}
        for index, at, length in assignment.items:
            if index not in self._data:
                kind = self.kinds[index]
                self._take(index, self._planner.resolve_data(self._items[index]))
                if self.kinds[index] != kind:
                    raise refuse.CannotSave(f"{index.fqn}: planned as {kind}, and is {self.kinds[index]}")
            data = self._data.pop(index)
            is_tensor = isinstance(data, torch.Tensor)
            self.laid.append((index.fqn, at, length, (data.data_ptr(), tuple(data.shape)) if is_tensor else None))
            if not isinstance(data, torch.Tensor):
                image.add(at, zipped.Zipped(data.getvalue(), (), (), length), ())
                continue
            state[index.fqn] = data
            image.add(at, self._forms.tensor(data.shape, data.dtype), [framed.Part.of(data)])
        return image, state


class Choice:
    """What a rank tells of a save that a planner of the user's has planned. `metadata`: of who coordinates, None on all
    others."""

    def __init__(self, step, node, resolved, metadata):
        self.step, self.node, self.metadata = step, node, metadata
        self.final, self.lengths, self.kinds = resolved.final, resolved.lengths, resolved.kinds


def arranged_as_planned(parts):
    """An Assignment for each Choice. What the planner has saved once, as several ranks have it, lies on each of their
    nodes, as with arranged(), and on storage as the planner's choice of rank has it; what it has left out of all ranks'
    plans is left out. Raises ValueError where they do not save the same step."""
    steps = sorted({part.step for part in parts})
    if len(steps) > 1:
        raise ValueError(f"they save different steps, from {steps[0]} to {steps[-1]}")
    chosen = {}  # index -> the rank that the planner has writing it
    for rank, part in enumerate(parts):
        for index in part.final:
            chosen.setdefault(index, rank)
    for part in parts:
        part.lengths = {
            index: length
            for index, length in part.lengths.items()
            if index in chosen and part.kinds[index] == parts[chosen[index]].kinds[index]
        }
    (metadata,) = (part.metadata for part in parts if part.metadata is not None)
    return _assigned(metadata, parts, chosen)


def results(rank, assignment):
    """For torch: where each item of this rank's file lies."""
    return [WriteResult(index, length, _info(rank, at, length)) for index, at, length in assignment.items]


def _info(rank, at, length):
    return filesystem._StorageInfo(file_name(rank), at, length)


def metadata_image(described):
    image = framed.Image()
    image.add_bytes(described)
    return image
