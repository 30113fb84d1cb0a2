"""In its first life rank 1 takes memory until it is killed, or ends as told; else a step, and a good end together.

HOW is "self", "child" (a forked process takes the memory, the rank fails when it is gone) or "killed" (the rank says
that it waits for its test). PHALANX_TEST_GROUP names a cgroup to move to first.
"""

import os
import signal
import sys

import phalanx
from report import report


def take_memory():
    taken = []
    while True:
        taken.append(b"x" * (4 << 20))


def fail_with_child():
    pid = os.fork()
    if pid == 0:
        take_memory()
    _, status = os.waitpid(pid, 0)
    report("child", signal=os.WTERMSIG(status))
    sys.exit(1)


def move(group):
    with open(os.path.join(group, "cgroup.procs"), "w") as file:
        file.write(str(os.getpid()))


how = sys.argv[1]
report("main")
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if os.environ["RANK"] != "1":
        signal.pause()  # ended by the round
    if "PHALANX_TEST_GROUP" in os.environ:
        move(os.environ["PHALANX_TEST_GROUP"])
    if how == "killed":
        report("waits")
        signal.pause()
    if how == "child":
        fail_with_child()
    take_memory()
phalanx.step(1)
