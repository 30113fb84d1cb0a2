"""What became of a save on disk, told to a function of the user's."""

import collections
import dataclasses
import threading
import typing


@dataclasses.dataclass(frozen=True)
class StoreResult:
    """`stored`: the step is on disk, of all nodes. `why` explains what is not. `may_come`: nobody has said that it will
    not be, and it may be stored later."""

    step: int
    stored: bool
    why: typing.Optional[str]
    may_come: bool = False


class Teller:
    """Calls functions with what became of saves, one after another in the order of the saves, in a thread of its own,
    which is there while one is to be called."""

    def __init__(self, what_became):
        """`what_became(handle)` waits for the StoreResult."""
        self._what_became = what_became
        self._asked = collections.deque()  # (handle, function)
        self._thread = None
        # Held for a moment, never while somebody waits; a signal handler may come in between.
        self._lock = threading.RLock()

    def tell(self, handle, function):
        with self._lock:
            self._asked.append((handle, function))
            if self._thread is None:
                # A daemon: the interpreter joins all others before it closes Checkpointers.
                self._thread = threading.Thread(target=self._run, name="phalanx-on-stored", daemon=True)
                self._thread.start()

    def is_here(self):
        """Whether one of these functions is called at this moment, and asks."""
        return self._thread is threading.current_thread()

    def finish(self, timeout_s=None):
        """Waits until all are told, or that long. Whether they are."""
        thread = self._thread
        if thread is None or self.is_here():
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    def _run(self):
        while True:
            with self._lock:
                if not self._asked:
                    self._thread = None
                    return
                handle, function = self._asked.popleft()
            result = self._what_became(handle)
            try:
                function(result)
            except BaseException as error:
                threading.excepthook(
                    threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread()))
                )
