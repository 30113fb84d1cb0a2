"""Waits for signals and reports them. Modes: end (leave at the first), save (after 1 s of work), ignore, default.

Imports no torch.
"""

import signal
import sys
import time

from hearing import hear_signals
from report import report

HANDLED = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]
ENDING = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


def on_signal(number, _frame):
    report("signal", signal=number)
    if number not in ENDING or mode == "ignore":
        return
    if mode == "save":
        time.sleep(1)
        report("saved")
    sys.exit(0)


mode = sys.argv[1]
if mode != "default":
    for number in HANDLED:
        signal.signal(number, on_signal)
report("main")
hear_signals()
