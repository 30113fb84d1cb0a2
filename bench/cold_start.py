#!/usr/bin/env python3
"""From starting the launcher to the first step of both ranks: first and second launch, beside the peers, in turn.

    python bench/cold_start.py [--rounds 5] [--nproc 2] [--who phalanx,torchrun,dlrover] [--script ddp_steps] [--json F]

"First launch" has an empty state directory; "second launch" has what the first one learnt. Files are in the page cache
for all. torchrun and dlrover-run keep nothing between launches: one figure stands beside both. --script fine_tuning
imports transformers and accelerate behind its arguments; they lie in an environment of their own, whose Python all
launchers are told of by PYTHON_EXEC. --who forked adds a bound: torch imported once and a fork for each rank, which
nothing watches (support/forked.py).
"""

import argparse
import dataclasses
import shutil
import tempfile

from support.arguments import count, names
from support.job import Job, measured
from support.peers import BOUNDS, BY_NAME, ROOT, transformers_environment
from support.results import Results, finish

LIMIT_S = 120.0
SCRIPTS = ("ddp_steps", "fine_tuning")


def with_transformers(launcher):
    python = str(transformers_environment() / "bin" / "python")
    if launcher.has_python:
        return dataclasses.replace(launcher, command=(python, *launcher.command[1:]))
    bootstrap = str(ROOT / "python" / "phalanx" / "_bootstrap")  # which phalanx-run looks for beside itself
    variables = (("PYTHON_EXEC", python), ("PHALANX_BOOTSTRAP_DIR", bootstrap))
    return dataclasses.replace(launcher, environment=(*launcher.environment, *variables))


def one_launch(results, launcher, what, nproc, script, state=None):
    job = Job(launcher, 1, nproc, state=state, workload=f"{script}.py")
    with measured(job, results, what):
        _, steps = job.wait_whole_life(limit_s=LIMIT_S)
        results.add(what, launcher.name, max(event["t"] for event in steps.values()) - job.started_at)
        job.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--nproc", type=count, default=2)
    parser.add_argument("--who", type=names(BY_NAME | BOUNDS), default="phalanx,torchrun,dlrover")
    parser.add_argument("--script", choices=SCRIPTS, default=SCRIPTS[0])
    parser.add_argument("--json")
    options = parser.parse_args()
    nproc, script = options.nproc, options.script
    launchers = [(BY_NAME | BOUNDS)[name]() for name in options.who]
    if script == "fine_tuning":
        launchers = [with_transformers(launcher) for launcher in launchers]
    results = Results("s", LIMIT_S)
    one_launch(Results("s", LIMIT_S), launchers[-1], "not counted: fills the page cache", nproc, script)
    which = "" if script == SCRIPTS[0] else f", {script}"
    first = f"first launch to first step, {nproc} ranks{which}"
    second = f"second launch to first step, {nproc} ranks{which}"
    for round_number in range(options.rounds):
        for launcher in launchers if round_number % 2 == 0 else reversed(launchers):
            if launcher.name != "phalanx-run":
                one_launch(results, launcher, first, nproc, script)
                results.add(second, launcher.name, results.rows[first, launcher.name]["samples"][-1])
                continue
            state = tempfile.mkdtemp(prefix="phalanx-bench-state-")
            one_launch(results, launcher, first, nproc, script, state)
            one_launch(results, launcher, second, nproc, script, state)
            shutil.rmtree(state, ignore_errors=True)
    finish(options.json, "cold_start", results)


if __name__ == "__main__":
    main()
