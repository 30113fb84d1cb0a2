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
    """Pids of one in the rank's group, one in a session of its own, one orphan in a session of its own."""
    near = subprocess.Popen(["sleep", "1000"])
    far = subprocess.Popen(["sleep", "1001"], start_new_session=True)
    parent = subprocess.Popen(["sh", "-c", "setsid sh -c 'echo $$; exec sleep 1002' &"], stdout=subprocess.PIPE)
    return [near.pid, far.pid, int(parent.stdout.readline())]


for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
report("main", grandchildren=grandchildren())
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGSTOP)
ctypes.PyDLL(None).sleep(1000)
