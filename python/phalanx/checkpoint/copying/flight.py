"""One save between its begin and its end."""

import threading
import time

import torch

from phalanx.checkpoint import native
from phalanx.checkpoint.state import refuse

_NO_MEMORY = "the device had no memory for the second look"
_CUT_OFF = "its copy was cut off"


class Flight:
    """A copy under way. It keeps all memory alive that is read.

    A thread of its own waits for what is copied later, asks the alarms behind that, and hands over to the native side,
    which seals nothing before: nobody else has to come by until the image is sealed. Of a copy from devices it queues
    what save() has left, too. It alone does so: a signal handler that waits within another's wait waits, too.
    """

    def __init__(self, handle, image, alarms, began_ns, state, copies=None, is_host_later=False):
        """`copies`: device.Copies; `is_host_later`: the host copies later, too."""
        self.handle = handle
        self.image = image
        self.began_ns = began_ns  # after save() was called
        self.state = state  # for the names of tensors
        self.hooks = None  # overlap.Loading
        self.changed = None  # (record number, sentence) of what gives the image away before it is sealed
        self.is_by_the_script = True  # what gives it away, and the script may do so again
        self._alarms = alarms  # overlap.Alarms, or None where nothing is copied later
        self._lock = threading.RLock()  # of the alarms
        self._thread = None
        self._copies, self._is_host_later = copies, is_host_later
        self.landed = threading.Event()  # no device writes to the slot any more, and the alarms were asked
        if copies is None and alarms is None:
            self.landed.set()

    def begin(self, slots):
        if self.landed.is_set():
            return
        self._thread = threading.Thread(target=self._land_in_thread, args=(slots,), name="phalanx-copies", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # this process may have no more threads
            self._land(slots)

    def cut_off(self):
        """In the place of begin(), or where that was cut off: whoever waits for it must not wait for ever."""
        if self._thread is None or self._thread.ident is None:
            self._end_copies()
            self.landed.set()

    def protect(self, slots):
        """Behind this call the sources may be changed: by the caller, and by what it queues on its CUDA streams. The
        outcome so far."""
        if self._copies is None or self._is_host_later:
            # What the host copied is looked at again behind what devices have copied, so all of it is waited for here.
            return self.wait(slots)
        self._copies.fence()
        # CUDA's records are looked at, and their checksums made, while the training goes on.
        outcome = slots.poll()
        if outcome.state != native.COPYING:
            self.landed.wait()  # of a save that was given up: whoever takes its slot must not find copies under way
        return outcome

    def wait(self, slots, until_ns=None):
        """Waits for the end of the copy: the outcome is final, but for COPYING where time.monotonic_ns() came to
        `until_ns` before."""
        left_s = None if until_ns is None else max(0, until_ns - time.monotonic_ns()) / 1e9
        if not self.landed.wait(left_s):
            return native.Outcome(state=native.COPYING)
        return slots.wait_copied(until_ns)

    def release(self):
        if self.hooks is not None:
            self.hooks.remove()

    def look_for_alarms(self):
        """The number of a record that was perhaps torn, or None; `changed` says why. To be asked behind the last byte
        that is copied, and before a step changes what they watch: once. What is written behind that is no alarm."""
        with self._lock:
            alarms, self._alarms = self._alarms, None
            changed = alarms.what_changed() if alarms is not None else None
        if changed is None:
            return None
        self.changed = changed[0], f"{self.path_of(changed[0])}: {changed[1]}"
        return changed[0]

    def path_of(self, record):
        """What the user calls a record: the path of the first tensor in it."""
        storage = self.image.storages[record]
        copied = getattr(storage, "copied", None)
        identity = storage._cdata if copied is None else refuse.storage_identity(copied[0])
        return refuse.path_of_storage(self.state, identity) or f"record {record}"

    def _land_in_thread(self, slots):
        try:
            if self._copies is not None:
                self._copies.enter_thread()
        except RuntimeError:
            pass  # what is queued from here says so, too
        self._land(slots)

    def _land(self, slots):
        """Queues the rest, of which the second look comes behind all that is copied, by devices or by the host. Then
        tells the native side that what devices have copied is there, or that it is not proven."""
        failed, differing = _CUT_OFF, None
        try:
            if self._copies is None:
                slots.wait_copied()
            else:
                self._copies.go_on(slots.wait_copied if self._is_host_later else lambda: None)
                self._copies.wait()
                differing = self._copies.land()
            failed = None
        except torch.cuda.OutOfMemoryError:
            failed = _NO_MEMORY
        except (RuntimeError, native.Failure) as error:  # as torch says what CUDA says
            failed = f"{_CUT_OFF}: {error}"
        finally:
            try:
                self._end_copies()
                self._settle(slots, failed, differing)
            finally:
                self.landed.set()

    def _end_copies(self):
        if self._copies is not None:
            self._copies.end()

    def _settle(self, slots, failed, differing):
        if failed is not None and self.changed is None:
            self.changed, self.is_by_the_script = (0, failed), False
        if self.changed is not None:
            differing = self.changed[0]
        elif differing is None:
            differing = self.look_for_alarms()
        if differing is not None:
            slots.give_up(differing)
        slots.filled()


def reason(outcome, current):
    """Why the image was not sealed."""
    if outcome.state == native.CHANGED and current.changed is not None:
        return current.changed[1]
    if outcome.state == native.CHANGED:
        path = current.path_of(outcome.differing_record)
        return f"{path} changed while it was copied, though no optimizer was seen to step"
    if outcome.state == native.LATE:
        return "another life of the job has begun, or the agent has replaced the slot"
    return "the copy was given up"
