"""Waiting for signals without missing one."""

import os
import signal


def hear_signals():
    """Never returns; handlers of signals run in it.

    Not signal.pause(): a signal between Python's last look for signals and the system call would be served at the next.
    """
    heard, hear = os.pipe()
    os.set_blocking(hear, False)
    signal.set_wakeup_fd(hear)
    while True:
        os.read(heard, 1)
