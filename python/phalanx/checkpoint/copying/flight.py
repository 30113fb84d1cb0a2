"""One save between its begin and its end."""

import time

from phalanx.checkpoint import native
from phalanx.checkpoint.state import refuse


class Flight:
    """A copy under way. It keeps all memory alive that is read."""

    def __init__(self, handle, image, alarms, began_ns, state):
        self.handle = handle
        self.image = image
        self.alarms = alarms  # overlap.Alarms, or None where nothing is copied later
        self.began_ns = began_ns  # after save() was called
        self.state = state  # for the names of tensors
        self.copies = None  # device.Copies
        self.hooks = None  # overlap.Loading
        self._filled = False

    def protect(self, slots):
        """Behind this call the sources may be changed: by the caller, and by what it queues on its CUDA streams. The
        outcome so far."""
        if self.copies is None:
            return slots.wait_copied()
        outcome = slots.poll() if self._filled else slots.wait_copied()
        if not self.copies.is_queued() or outcome.state != native.COPYING:
            # What the host copied is looked at again behind what devices have copied, so all of it is waited for here.
            return self.wait(slots)
        self.copies.fence()
        # CUDA's records are looked at, and their checksums made, while the training goes on.
        if self.copies.are_over():
            self._hand_over(slots)
        return outcome

    def wait(self, slots, until_ns=None):
        """Waits for the end of the copy: the outcome is final, but for COPYING where time.monotonic_ns() came to
        `until_ns` before."""
        if self.copies is not None:
            if not self.copies.is_queued():
                slots.wait_copied(until_ns)
                if until_ns is not None and time.monotonic_ns() >= until_ns:
                    return slots.poll()
                self.copies.look_again()
            # Also of a save that was given up: whoever takes its slot next must not find copies under way.
            if not self.copies.wait(until_ns):
                return slots.poll()
            self._hand_over(slots)
        return slots.wait_copied(until_ns)

    def release(self):
        if self.hooks is not None:
            self.hooks.remove()

    def path_of(self, record):
        """What the user calls a record: the path of the first tensor in it."""
        identity = self.image.storages[record]._cdata
        return refuse.path_of_storage(self.state, identity) or f"record {record}"

    def _hand_over(self, slots):
        """Tells the native side that what devices have copied is there, or that it was written meanwhile."""
        if self._filled:
            return
        self._filled = True
        differing = self.copies.land()
        if differing is not None:
            slots.give_up(differing)
        slots.filled()


def reason(outcome, current):
    """Why the image was not sealed."""
    if outcome.state == native.CHANGED:
        path = current.path_of(outcome.differing_record)
        return f"{path} changed while it was copied, though no optimizer was seen to step"
    if outcome.state == native.LATE:
        return "another life of the job has begun, or the agent has replaced the slot"
    return "the copy was given up"
