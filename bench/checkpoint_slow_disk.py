#!/usr/bin/env python3
"""SIGKILL of a worker -> the first new step on all ranks, while a save to disk is under way and the disk does not
answer: beside the same with a disk that is quick, in turn. Needs root and loop devices: the disk is one of its own.

    python bench/checkpoint_slow_disk.py [--kills 10] [--ranks 2] [--mib 4] [--settle 2] [--json F]

A small DDP job saves each 10th step, to memory and, each 20th, to disk as well. The disk is frozen (fsfreeze) --settle
seconds before the kill, so that a save hangs in it, and until all ranks step again: slower no disk can be.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from support.arguments import amount, count
from support.job import Job, to_its_end
from support.peers import phalanx
from support.results import Results, finish

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from small_disk import HangingDisk, why_no_hanging_disk

STEP_MS = 20
SAVE_EVERY = 10
DISK_EVERY = 20
LIMIT_S = 60
FIRST_SPARES_S = 15  # the first life teaches what to import ahead, and a kill before that is done meets no spare


def kill_once(results, job, life, hanging, settle_s):
    """Returns the new life."""
    with hanging() if hanging else contextlib.nullcontext():
        job.stay(settle_s)
        began = time.monotonic()
        os.kill(job.pid(job.world - 1, life), signal.SIGKILL)
        new_life, ranks = job.wait_whole_life(life, LIMIT_S)
    sources = {e["source"] for e in job.events if e["ev"] == "restored" and e["life"] == new_life}
    remark = None if sources == {"memory"} else f"restored from {', '.join(sorted(map(str, sources)))}"
    what = f"kill to first step, {job.world} ranks, {'a write to disk hangs' if hanging else 'the disk is quick'}"
    results.add(what, "phalanx-run", max(event["t"] for event in ranks.values()) - began, remark)
    return new_life


def run(results, options, disk):
    settings = {"mib": options.mib, "step_ms": STEP_MS, "every": SAVE_EVERY, "disk_every": DISK_EVERY}
    settings["directory"] = str(disk.path / "checkpoints")
    job = Job(
        phalanx(),
        1,
        options.ranks,
        flags=["--max-restarts=100000"],
        workload="goodput_steps.py",
        environment={"BENCH_GOODPUT": json.dumps(settings)},
    )
    with to_its_end(job):
        life, _ = job.wait_whole_life()
        job.stay(FIRST_SPARES_S)
        for _ in range(options.kills):
            for hanging in (None, disk.hanging):
                life = kill_once(results, job, life, hanging, options.settle)
        job.close()


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=count, default=10, help="of each kind")
    parser.add_argument("--ranks", type=count, default=2)
    parser.add_argument("--mib", type=count, default=4, help="of the state; the disk has 64 MiB")
    parser.add_argument("--settle", type=amount, default=2.0, help="seconds of training before each kill")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    return parser.parse_args()


def main():
    options = parse()
    why = "it needs root" if os.geteuid() != 0 else why_no_hanging_disk()
    if why:
        raise SystemExit(f"no disk that can hang can be made here: {why}")
    results = Results("s")
    with tempfile.TemporaryDirectory(prefix="checkpoint-slow-disk-") as folder:
        disk = HangingDisk(Path(folder) / "disk")
        try:
            run(results, options, disk)
        finally:
            disk.unmount()
    finish(options.json, "checkpoint_slow_disk", results)


if __name__ == "__main__":
    main()
