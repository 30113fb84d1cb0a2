"""What save() returns."""

import enum
import math
import time


class Storage(enum.Enum):
    """Where a save goes to."""

    MEMORY = "memory"  # of this node; written to disk only where a breakpoint or a later save asks for it
    DISK = "disk"  # to memory first, and from there to disk while the training goes on


class SaveHandle:
    """One save on its way: copied (staged), committed once every rank of the world has it, stored once it is on disk.

    `why` explains a save that was skipped or given up, and one that had to hold the training for its copy; None where
    there is nothing to explain. `held_ns` is how long the training was held so far, `staged_ns` how long after
    save() was called the image was complete (None before).
    """

    def __init__(self, checkpointer, step, storage, branch=0):
        self.step = step
        self.branch = branch  # how often the ranks had gone back in this life
        self.storage = storage
        self.why = None
        self.held_ns = 0
        self.staged_ns = None
        self.tells_step = True  # the training has come to that step where the save begins
        self.is_over = False  # the copy: it is sealed or given up
        self.is_sealed = False
        self.values = {}  # {name: CRC-32} of what is to be the same on all ranks
        self._checkpointer = checkpointer

    def wait_staged(self, timeout=None):
        """Waits until the image is complete in this node's memory. False where it will not be; `why` says why. Raises
        TimeoutError behind `timeout` seconds for the copy, which goes on."""
        until_ns = None if timeout in (None, math.inf) else time.monotonic_ns() + int(timeout * 1e9)
        if not self.is_over and not self._checkpointer.finish(self, until_ns):
            raise TimeoutError(f"phalanx.checkpoint: step {self.step} is not staged within {timeout} s")
        return self.is_sealed

    def wait_committed(self, timeout=None):
        """Waits until every rank of the world has its image: from then on this step survives the death of any process.
        False where that cannot be any more, or ranks do not come to this save, those of other nodes within five minutes
        (math.inf: they are waited for without end); `why` says why. Raises TimeoutError behind `timeout` seconds: it
        may be committed later."""
        return self._wait("committed", timeout)

    def wait_stored(self, timeout=None):
        """Waits until the step is on disk, on all nodes. False where that cannot be any more, or ranks do not come to
        this save, as with wait_committed(); `why` says why. Raises TimeoutError behind `timeout` seconds: it may be
        stored later. Storage is waited for without end where no `timeout` is given."""
        if self.storage is not Storage.DISK:
            self.explain("it was saved with Storage.MEMORY")
            return False
        return self._wait("stored", timeout)

    def _wait(self, until, timeout):
        if timeout in (None, math.inf):
            return self.wait_staged() and self._checkpointer.ask_wait(self, until, timeout)
        began_s = time.monotonic()
        if not self.wait_staged(timeout):
            return False
        left_s = max(0.0, timeout - (time.monotonic() - began_s))
        try:
            return self._checkpointer.ask_wait(self, until, left_s)
        except TimeoutError:
            late = self._checkpointer.who_is_late(self) if until == "committed" else None
            what = f"step {self.step} is not {until} within {timeout} s{f': {late}' if late else ''}"
            raise TimeoutError(f"phalanx.checkpoint: {what}") from None

    def explain(self, why):
        if why and why not in (self.why or ""):
            self.why = why if self.why is None else f"{self.why}; {why}"

    def __repr__(self):
        state = "sealed" if self.is_sealed else "given up" if self.is_over else "copying"
        return f"<save of step {self.step}: {state}{', ' + self.why if self.why else ''}>"
