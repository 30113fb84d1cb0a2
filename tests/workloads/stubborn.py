"""A rank that is hard to end: rank 0 holds the GIL in C for ever, rank 1 stops itself, each with grandchildren."""

import ctypes
import os
import signal
import subprocess
import sys

from report import report

if "--torch" in sys.argv:
    import torch  # noqa: F401 - so that there is a zygote with it


def grandchildren():
    """One in the rank's group, one in a session of its own, one orphan in a session of its own."""
    subprocess.Popen(["sleep", "1000"])
    subprocess.Popen(["sleep", "1001"], start_new_session=True)
    subprocess.run(["sh", "-c", "setsid sleep 1002 & echo"], stdout=subprocess.DEVNULL, check=True)


for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
grandchildren()
report("main")
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGSTOP)
ctypes.PyDLL(None).sleep(1000)
