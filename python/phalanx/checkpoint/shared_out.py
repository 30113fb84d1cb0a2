"""States that the ranks share out among them: each writes its part, any rank may need any part, and what names the
parts lies once on each node."""

import abc
import functools
import weakref

from phalanx import _door as door
from phalanx.checkpoint import checkpointer
from phalanx.checkpoint.formats import disk, fetching
from phalanx.checkpoint.handle import SaveHandle
from phalanx.checkpoint.ranks import peers
from phalanx.checkpoint.state import states


class Checkpointer(checkpointer.Checkpointer, abc.ABC):
    """As phalanx.checkpoint.Checkpointer, but that prepare(), save() and load() are for all ranks together: where one
    is called, all must come."""

    layouts = ("torch",)

    def __init__(self, *settings, **named_settings):
        self._shared = None  # of who leads: the writer of what names the parts
        self._given = weakref.WeakSet()  # readers of what memory held: expire() is called before it may hold it no more
        super().__init__(*settings, **named_settings)
        self._peers = peers.Peers(self._here, self.directory)

    # What classes for one layout of parts change.

    layouts_on_disk = ()  # one

    @abc.abstractmethod
    def _planned(self, state, step):
        """(Expanded, image) of this rank, agreed upon with all others. peers.NotTogether."""

    @abc.abstractmethod
    def _index(self):
        """The image of what names the parts as they were planned last, on the first rank of each node."""

    # --- saving

    def _make_writers(self, answer, slots, overlapping, verify):
        super()._make_writers(answer, slots, overlapping, verify)
        if self._here.leads:
            self._shared = self._writer_of("main", answer["main"], self.kind, slots, False, "never")

    def prepare(self, state, waits=True):
        self._must_be_able_to_save()
        try:
            expanded, image = self._planned(state, 0)
        except peers.NotTogether as error:
            return str(error)
        return self._prepare_part(expanded, image, self._index, waits)

    def _prepare_part(self, expanded, image, index, waits):
        """`index()`: the image of what names the parts."""
        why = self._writer.prepare(expanded, image, waits)
        if self._shared is None:
            return why
        return why or self._shared.prepare(states.Expanded(), index(), waits)

    def _close_writers(self):
        if self._shared is not None:
            self._shared.close()
        super()._close_writers()

    def _write(self, handle, state, began_ns):
        try:
            expanded, image = self._planned(state, handle.step)
        except peers.NotTogether as error:
            return self._writer.give_up(handle, str(error))
        return self._write_part(handle, expanded, image, self._index, began_ns)

    def _write_part(self, handle, expanded, image, index, began_ns):
        """`index()`: the image of what names the parts."""
        for reader in list(self._given):
            reader.expire()
        if self._shared is not None:
            first = SaveHandle(self, handle.step, handle.storage, handle.branch)
            self._shared.write(first, states.Expanded(), index(), began_ns)
            if not first.is_sealed:
                handle.is_over = True
                return handle.explain(first.why)
        return self._writer.write(handle, expanded, image, began_ns)

    # --- restoring

    def _find_in(self):
        """No agent has the nodes read all files before: each rank reads some of them."""
        return functools.partial(
            disk.found_for_any_rank, layout=self.layouts_on_disk[0], world_size=self._here.world_size
        )

    def _fetch(self, found, parts):
        """{rank: path} of images that other nodes have in memory. `parts`: {rank: [(from, behind the last), ..]} of the
        bytes that are wanted; the file may have no others."""
        paths = {}
        for portion in fetching.portions(parts):
            joined = fetching.joined(portion)
            wanted = {str(rank): ranges for rank, ranges in joined.items() if ranges}
            more = {"ranges": wanted} if wanted else {}
            answer = self._ask("images", branch=found.branch, ranks=sorted(joined), **more)
            paths.update((int(rank), path) for rank, path in answer["ranks"].items())
        return paths

    def _tell_read(self, found):
        """This rank can do without more of what was found. Where nobody has said so before the rank's first step, the
        loss of a node that lends parts of it ends the round."""
        if found.source == "memory":
            self._door.tell(door.packet(type="restored", dir=self.directory, branch=found.branch))
