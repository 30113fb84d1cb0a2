"""Saves to two directories every tenth step, and waits only for what the second has stored."""

import argparse
import os
import time

import torch
from phalanx.checkpoint import Checkpointer, Storage
from report import report

parser = argparse.ArgumentParser()
parser.add_argument("first")
parser.add_argument("second")
options = parser.parse_args()

EVERY = 10
STEP_S = 0.005
STORED_WITHIN_S = 20


def main():
    report("main")
    torch.set_num_threads(1)
    weight = torch.zeros(1 << 16)
    with Checkpointer(options.first) as first, Checkpointer(options.second) as second:
        begun = {name: place.load()[1] for name, place in (("first", first), ("second", second))}
        report("begun", **begun)
        step = max(begun.values())
        while not os.path.exists(os.environ["PHALANX_TEST_STOP"]):
            step += 1
            time.sleep(STEP_S)
            weight.fill_(step)
            if step % EVERY:
                continue
            first.save(step, {"weight": weight}, storage=Storage.DISK)
            handle = second.save(step, {"weight": weight}, storage=Storage.DISK)
            try:
                report("stored" if handle.wait_stored(timeout=STORED_WITHIN_S) else "unstored", n=step, why=handle.why)
            except TimeoutError:
                report("late", n=step)


main()
