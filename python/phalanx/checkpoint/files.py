"""For checkpoints that are folders of named files: each rank saves as many as it has, under the names that programs of
others look for, and any rank loads what it wants, in a world of any size.

    ckpt = phalanx.checkpoint.files.Checkpointer("/data/run7")
    files, step = ckpt.load(default={})
    if files:
        model.load_state_dict(files["model.pt"])
        optimizer.load_state_dict(files[f"optimizer_{rank}.pt"])
    ckpt.save(step, {"model.pt": model, f"optimizer_{rank}.pt": optimizer, "config.json": text.encode()})
"""

import collections.abc
import contextlib
import io
import os
import pickle

import torch

from phalanx._bootstrap import board
from phalanx.checkpoint import shared_out
from phalanx.checkpoint.formats import disk, mapped, several
from phalanx.checkpoint.ranks import peers
from phalanx.checkpoint.state import loadable, refuse, states

_ZIP = b"PK\x03\x04"
_NODE_FILES_MAX = 8192
_NODE_BYTES_MAX = 700 << 10  # of their names, with what a manifest has beside each
_BESIDE_NAME = 40


class Safetensors:
    """Stands in a state for a file of `tensors`, {name: tensor}, as safetensors.torch.save_file(tensors, .., metadata)
    would write it. Tensors that share memory are written each under its name."""

    def __init__(self, tensors, metadata=None):
        self.tensors, self.metadata = tensors, metadata


class AsIs:
    """Stands in a state for a file of `value` as torch.save(value, ..) would write it, object for object: a module in
    it does not stand for its state_dict(), as elsewhere, but is pickled."""

    def __init__(self, value):
        self.value = value


class Checkpointer(shared_out.Checkpointer):
    """As phalanx.checkpoint.Checkpointer, but that a state is {file name: what is in it}: bytes as they are, a
    Safetensors as such a file, anything else as torch.save() would write it, with the state_dict() of what has one, but
    for what is AsIs. prepare(), save() and load() are for all
    ranks together: where one is called, all must come; a rank that has nothing to save gives {}.

    Where several ranks give a file of the same name they give the same content: it lies once on each of their nodes,
    and the copy of the lowest rank goes to storage.
    """

    kind = "files"
    layouts_on_disk = ("files",)

    def __init__(self, *settings, **named_settings):
        self._agreed = None
        super().__init__(*settings, **named_settings)

    def _new_describer(self):
        return several.Describer()

    # --- saving

    def prepare_nothing(self):
        """This rank has no state for a prepare() to which all others come; they make nothing ready either."""
        self._peers.vote_failed(0)

    def _index(self):
        return several.index_image(self._agreed.ranks_of)

    def _planned(self, state, step):
        try:
            expanded, contents = self._described_files(state)
        except Exception:
            self._peers.vote_failed(step)
            raise
        is_known = self._agreed is not None and self._agreed.given == list(contents)
        if self._peers.vote(peers.SAME if is_known else peers.CHANGED, step) != peers.SAME:
            self._agreed = None
            try:
                self._agreed = self._peers.arrange(lambda: _Names(list(contents), self._here.first_rank), _agreed)
            except ValueError as error:  # of the only rank
                raise peers.NotTogether(str(error)) from None
        kept = {name: contents[name] for name in self._agreed.written}
        return expanded, self._describer.image(kept, self._agreed.copied)

    def _described_files(self, state):
        """(Expanded, {name: what is in the file}) of all that this rank has."""
        if not isinstance(state, dict):
            raise refuse.CannotSave(f"a {type(state).__name__}; expected a dict of file names and what is in them")
        if len(state) > several.FILES_MAX:
            raise refuse.CannotSave(f"{len(state)} files of one rank; expected at most {several.FILES_MAX}")
        expanded, contents = states.Expanded(), {}
        expanded.state = {}
        for name in sorted(state, key=str):
            why = several.why_no_name(name)
            if why is not None:
                raise refuse.CannotSave(f"state[{name!r}]: {why}")
            contents[name] = self._described_file(name, state[name], expanded)
        return expanded, contents

    def _described_file(self, name, value, expanded):
        if isinstance(value, (bytes, bytearray, memoryview)):
            if not memoryview(value).nbytes:
                raise refuse.CannotSave(f"state[{name!r}] is empty; expected a byte or more")
            return self._describer.describe(name, value)
        if isinstance(value, Safetensors):
            return self._described_safetensors(name, value, expanded)
        if isinstance(value, (str, bool)):
            raise refuse.CannotSave(
                f"state[{name!r}] is {value!r}: a file holds bytes as they are (of a text its encode()), or a state: a "
                "module, an optimizer, a tensor, a dict or the like, in which other values stand"
            )
        try:
            own = states.as_is(value.value) if isinstance(value, AsIs) else self._expanded(value)
            content = self._describer.describe(name, own.state)
            if self.weights_only:
                self._loadable.check(content.classes, own.state)
        except (refuse.CannotSave, pickle.PicklingError) as error:
            raise refuse.CannotSave(f"state[{name!r}]: {error}") from None
        expanded.modules += own.modules
        expanded.optimizers += own.optimizers
        expanded.state[name] = own.state
        return content

    def _expanded(self, value):
        """What is pickled of a file's content, as an Expanded."""
        return states.expand(value, rng_into=self._rng)

    def _described_safetensors(self, name, value, expanded):
        expanded.state[name] = value.tensors
        try:
            return self._describer.describe_safetensors(name, value.tensors, value.metadata)
        except refuse.CannotSave as error:
            raise refuse.CannotSave(f"state[{name!r}]{error}") from None

    def _is_lent(self):
        """A node that goes takes its ranks' files with it, and who needs which of them is known when it has gone."""
        return not board.node_leaves()

    # --- restoring

    def load(self, default=None, step=None, timeline=None, map_location="cpu"):
        """(files, step) of the newest step that every rank has: a StoredFiles, from which this rank takes what it wants
        before the next save is committed. (default, 0) where there is none. Arguments as in
        phalanx.checkpoint.Checkpointer; `map_location` is that of files[name]."""
        map_location = loadable.location(map_location)
        found = self._find(step, timeline)
        if found.source is None:
            return default, 0
        return self._opened(found, map_location), found.step

    def _opened(self, found, map_location):
        if found.source == "memory":
            return self._in_memory(found, map_location)
        return StoredFiles(found, _on_disk(found), None, self._open_file, map_location)

    def _in_memory(self, found, map_location):
        where = f"step {found.step} of {self.directory}"
        if found.main is None:
            raise RuntimeError(f"phalanx.checkpoint.files: {where} in memory is none of phalanx.checkpoint.files")
        try:
            ranks_of = several.read_index(found.main)
        except ValueError as error:
            raise RuntimeError(f"phalanx.checkpoint.files: {where}: {error}") from None
        images = _Images(found, ranks_of, self._fetch)
        files = StoredFiles(found, ranks_of, images, self._open_file, map_location)
        self._given.add(files)
        return files

    def _open_file(self, found, name, place, map_location):
        """What torch.load() gives for it."""
        path, begin, length = place
        mmap = found.source == "memory" and found.stable
        try:
            if mmap and map_location == "cpu":
                with contextlib.suppress(mapped.NotPlain):
                    return states.restore(mapped.load(path, begin, length))
            with io.BufferedReader(several.Section(path, begin, length)) as file:
                if file.peek(len(_ZIP))[: len(_ZIP)] != _ZIP:
                    raise ValueError("it is no zip file of torch.save: read() gives its bytes")
                loaded = torch.load(file, map_location=map_location, weights_only=self.weights_only)
        except loadable.NOT_LOADED as error:
            raise RuntimeError(
                f"phalanx.checkpoint.files: {name!r} of step {found.step}, in {path}, cannot be loaded: "
                f"{type(error).__name__}: {error}"
            ) from error
        return states.restore(loaded)


class StoredFiles(collections.abc.Mapping):
    """The files of one step, of all ranks, by their names. files[name] loads one, as torch.load() does; read(name)
    gives its bytes. Each rank asks for what it wants, when it wants it: what lies in the memory of other nodes is
    fetched then. Files in memory can be asked for until this rank saves again. KeyError for names that the step does
    not have."""

    def __init__(self, found, places, images, open_file, map_location):
        """`places`: {name: place} on disk, or {name: [rank, ..]} where `images` finds the place."""
        self.step = found.step
        self._found, self._places, self._images = found, places, images
        self._open, self._map_location = open_file, map_location
        self._is_over = False

    __hash__ = object.__hash__  # of this one, for those who are told when it expires

    def __eq__(self, other):
        return self is other

    def expire(self):
        """Memory may be written over from now on."""
        self._is_over = True

    def __contains__(self, name):
        return name in self._places

    def get(self, name, default=None):
        """Mapping's own would take a file that cannot be loaded for one that is not there."""
        return default if name not in self._places else self[name]

    def __getitem__(self, name):
        return self._open(self._found, name, self.place(name), self._map_location)

    def read(self, name):
        path, begin, length = self.place(name)
        with io.BufferedReader(several.Section(path, begin, length)) as file:
            return file.read()

    def copy(self, name, path):
        """Its bytes into a new file at `path`, without a buffer of their size."""
        source, begin, length = self.place(name)
        with open(source, "rb", buffering=0) as file, open(path, "xb", buffering=0) as to:
            end = begin + length
            while begin < end:
                count = os.sendfile(to.fileno(), file.fileno(), begin, end - begin)
                if count == 0:
                    raise RuntimeError(f"phalanx.checkpoint.files: {name!r} of step {self.step} ends early in {source}")
                begin += count

    @property
    def source(self):
        """Where they lie: "memory" or "disk"."""
        return self._found.source

    @property
    def folder(self):
        """On disk, where the files lie under their names; None in memory."""
        return self._found.directory

    def place(self, name):
        """Where it lies: (path, the place of its first byte there, its bytes)."""
        if name not in self._places:
            raise KeyError(name)
        if self._is_over:
            raise RuntimeError(
                f"phalanx.checkpoint.files: {name!r} of step {self.step} was asked for behind a save of this rank: "
                "take files from memory before, or call load() again"
            )
        return self._places[name] if self._images is None else self._images.place_of(name)

    def __iter__(self):
        return iter(self._places)

    def __len__(self):
        return len(self._places)

    def __repr__(self):
        return f"<step {self.step}: {len(self)} files, from {self._found.source}>"


class _Images:
    """Images in memory: this node's, and those of which parts were fetched."""

    def __init__(self, found, ranks_of, fetch):
        self._found, self._ranks_of, self._fetch = found, ranks_of, fetch
        self._here = {int(rank): path for rank, path in found.ranks.items()}
        self._tables = {}

    def place_of(self, name):
        ranks = self._ranks_of[name]
        rank = next((each for each in ranks if each in self._here), ranks[0])
        if rank not in self._tables:
            self._tables[rank] = several.table(self._path(rank, 0, several.TABLE_BYTES_MAX))
        begin, length = self._tables[rank][name]
        return self._path(rank, begin, begin + length), begin, length

    def _path(self, rank, begin, end):
        """Of a file that has those bytes."""
        return self._here.get(rank) or self._fetch(self._found, {rank: [(begin, end)]})[rank]


def _on_disk(found):
    """{name: place} of the files of a step that was found whole."""
    folder = found.directory
    shards = (found.manifest or disk.manifest_of(folder))["shards"]
    return {shard["file"]: (os.path.join(folder, shard["file"]), 0, shard["bytes"]) for shard in shards}


# --- what the ranks agree upon


class _Names:
    """What a rank tells: the names of its files. `node`: ranks with the same share memory."""

    def __init__(self, names, node):
        self.names, self.node = names, node


class _Agreed:
    """What a rank writes. `given`: the names that it has told; `written`: those that it writes; `copied`: those of them
    that go to storage from another rank; `ranks_of`: {name: [ranks that write it]} of all ranks."""

    def __init__(self, given, written, copied, ranks_of):
        self.given, self.written, self.copied, self.ranks_of = given, written, copied, ranks_of


def _agreed(parts):
    """An _Agreed for each _Names. Raises ValueError where no rank has a file."""
    ranks_of, on_node, nodes = {}, set(), {}
    for rank, part in enumerate(parts):
        for name in part.names:
            if (name, part.node) not in on_node:
                on_node.add((name, part.node))
                ranks_of.setdefault(name, []).append(rank)
                nodes.setdefault(part.node, []).append(name)
    for node, names in nodes.items():
        size = sum(len(name.encode()) + _BESIDE_NAME for name in names)
        if len(names) > _NODE_FILES_MAX or size > _NODE_BYTES_MAX:
            raise ValueError(
                f"the node of rank {node} has {len(names)} files whose names take {size >> 10} KiB; expected at most "
                f"{_NODE_FILES_MAX} files and {_NODE_BYTES_MAX >> 10} KiB"
            )
    if not ranks_of:
        raise ValueError("no rank has a file to save")
    agreed = []
    for rank, part in enumerate(parts):
        written = [name for name in part.names if rank in ranks_of[name]]
        copied = {name for name in written if ranks_of[name][0] != rank}
        agreed.append(_Agreed(part.names, written, copied, ranks_of))
    return agreed
