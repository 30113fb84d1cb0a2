#!/usr/bin/env python3
"""From starting the launcher to the first step of both ranks: first and second launch, beside the peers, in turn.

    python bench/cold_start.py [--rounds 5] [--nproc 2] [--who phalanx,torchrun,dlrover] [--json F]

"First launch" has an empty state directory; "second launch" has what the first one learnt. Files are in the page cache
for all. torchrun and dlrover-run keep nothing between launches: one figure stands beside both.
"""

import argparse
import shutil
import sys
import tempfile

from support.arguments import count, names
from support.job import Job, TimedOut
from support.peers import BY_NAME
from support.results import Results, finish

LIMIT_S = 120.0


def one_launch(results, launcher, what, nproc, state=None):
    job = Job(launcher, 1, nproc, state=state)
    try:
        _, steps = job.wait_whole_life(limit_s=LIMIT_S)
        results.add(what, launcher.name, max(event["t"] for event in steps.values()) - job.started_at)
        job.close()
    except TimedOut as error:
        print(f"   {error}\n{job.logs()[-2000:]}", file=sys.stderr)
        results.add(what, launcher.name, None)
    finally:
        job.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--nproc", type=count, default=2)
    parser.add_argument("--who", type=names(BY_NAME), default="phalanx,torchrun,dlrover")
    parser.add_argument("--json")
    options = parser.parse_args()
    launchers = [BY_NAME[name]() for name in options.who]
    results = Results("s", LIMIT_S)
    one_launch(Results("s", LIMIT_S), launchers[-1], "not counted: fills the page cache", options.nproc)
    first = f"first launch to first step, {options.nproc} ranks"
    second = f"second launch to first step, {options.nproc} ranks"
    for round_number in range(options.rounds):
        for launcher in launchers if round_number % 2 == 0 else reversed(launchers):
            if launcher.name != "phalanx-run":
                one_launch(results, launcher, first, options.nproc)
                results.add(second, launcher.name, results.rows[first, launcher.name]["samples"][-1])
                continue
            state = tempfile.mkdtemp(prefix="phalanx-bench-state-")
            one_launch(results, launcher, first, options.nproc, state)
            one_launch(results, launcher, second, options.nproc, state)
            shutil.rmtree(state, ignore_errors=True)
    finish(options.json, "cold_start", results)


if __name__ == "__main__":
    main()
