"""Steps that need no torch, each with a line on stdout and one on stderr, until the stop file appears."""

import os
import sys
import threading

import phalanx
from report import report

report("main")
pace = threading.Event()
step = 0
while not os.path.exists(os.environ["PHALANX_TEST_STOP"]):
    step += 1
    print(f"step {step} " + "x" * 200)
    print(f"error {step}", file=sys.stderr)
    phalanx.step(step)
    if step <= 3 or step % 20 == 0:
        report("step", n=step)
    pace.wait(0.005)
report("done")
