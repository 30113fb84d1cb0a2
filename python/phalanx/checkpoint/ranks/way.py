"""Where this life is on its way through the steps of a directory: going back begins a new branch, whose saves are newer
than all before, whatever their steps. Each rank counts for itself, and all come to the same: they load and save
together."""

_ways = {}  # Way by directory: of all Checkpointers of this process


def of(directory):
    return _ways.setdefault(directory, Way())


class Way:
    def __init__(self):
        self._branch = 0
        self._has_loaded = False
        self._last_step = None  # that was saved on this branch
        self._from_disk = {}  # folder of the stored step with which a branch began, by branch

    def goes_back(self):
        """The branch that begins with a load(). The first one, with which a life begins, goes back to nothing of it."""
        if self._has_loaded or self._last_step is not None:
            self._branch += 1
        self._has_loaded, self._last_step = True, None
        return self._branch

    def goes_on_from(self, folder):
        """What the load() that has begun this branch has found on disk; "": nothing."""
        self._from_disk[self._branch] = folder

    def began_from(self, branch):
        """What goes_on_from() was told; "" too where the script went back by itself, or has loaded nothing."""
        return self._from_disk.get(branch, "")

    def begins(self, step):
        """As saves(), but that the same step once more is a new branch, too: who tries a save again that has failed."""
        if step == self._last_step:
            self._branch += 1
        return self.saves(step)

    def saves(self, step):
        """The branch of a save: a new one where the script has gone back by itself."""
        if self._last_step is not None and step < self._last_step:
            self._branch += 1
        self._last_step = step
        return self._branch
