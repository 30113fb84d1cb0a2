"""Named files whose content is what a trainer would have given to torch.save(), object for object."""

from phalanx.checkpoint import files
from phalanx.checkpoint.handle import Storage
from phalanx.checkpoint.link import alone
from phalanx.checkpoint.state import states


class Files(files.Checkpointer):
    """As phalanx.checkpoint.files.Checkpointer, but that nothing in a state stands for something else: what has a
    state_dict() is pickled itself, as trainers' own readers want it. They read it without weights_only, too."""

    def __init__(self, directory, **settings):
        super().__init__(directory, weights_only=False, **settings)

    @property
    def rank(self):
        return self._here.rank

    @property
    def epoch(self):
        """The round of the job, as what is stored has it."""
        return self._here.epoch if self._has_agent else alone.EPOCH

    def save_anew(self, step, content):
        """As save() to disk, but that a step which was saved before is stored once more, in a folder of its own."""
        self._way.begins(step)
        return self.save(step, content, storage=Storage.DISK)

    def find(self, step=None, timeline=None):
        """(Found, its files by their names: {} where there is none). All ranks call it together."""
        found = self._find(step, timeline)
        return found, {} if found.source is None else self._opened(found, "cpu")

    def _expanded(self, value):
        return states.as_is(value)
