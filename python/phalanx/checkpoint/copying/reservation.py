"""Memory that the agent makes ready for slots while the training goes on."""

import threading


class Reservation:
    """`ask()` is called in a thread of its own, and behind it take(answer), unless drop() was called meanwhile. Either
    may raise one of `failures`: then there is no result."""

    def __init__(self, ask, take, failures):
        self._ask, self._take, self._failures = ask, take, failures
        self._lock = threading.RLock()  # held while it is taken
        self._is_dropped = False
        self._result = None
        # Not awaited at the end of a script: close() has the answer come.
        self._thread = threading.Thread(target=self._work, name="phalanx-memory", daemon=True)
        self._thread.start()

    def result(self):
        """Waits for the end: what take() has given, or None."""
        self._thread.join()
        return self._result

    def drop(self):
        """Nothing is taken behind this."""
        with self._lock:
            self._is_dropped = True

    def _work(self):
        try:
            answer = self._ask()
            with self._lock:
                if not self._is_dropped:
                    self._result = self._take(answer)
        except self._failures:
            pass  # whoever asks next hears it
