#!/usr/bin/env python3
"""SIGKILL of a worker -> the first new step on all ranks: phalanx-run beside torchrun and dlrover-run, in turn.

    python bench/recovery.py [--shapes 1x2,1x4,2x2] [--rounds 3] [--kills 5] [--who phalanx,torchrun] [--json F]

Each round starts one job a launcher and kills its last rank several times, after --settle seconds of training each.
The time is from just before kill(2) to the latest first step, both on CLOCK_MONOTONIC. A launcher that has no new step
within --limit seconds is cut there, and its job is started anew in the next round.
"""

import argparse
import os
import signal
import time

from support.arguments import amount, count, names, shapes
from support.job import Job, measured
from support.peers import BY_NAME
from support.results import Results, finish

PHASES = {
    "main": "the script's first line runs",
    "imported": "torch is imported",
    "group": "the process group is there",
    "model": "model and optimizer are there",
}
PEERS_KILLS = 2  # a peer's restart takes seconds: fewer of them in each round


def kill_once(job, life, limit_s):
    """Kills the last rank; returns (seconds until the slowest rank came to each phase, the new life)."""
    victim = job.pid(job.world - 1, life)
    began = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    new_life, _ = job.wait_whole_life(life, limit_s)
    phases = {}
    for event in list(job.events):
        if event["life"] == new_life and event.get("n", 1) == 1:
            phases[event["ev"]] = max(phases.get(event["ev"], 0), event["t"] - began)
    return phases, new_life


def one_job(results, details, launcher, shape, options):
    nodes, nproc = shape
    what = f"kill to first step, {nodes * nproc} ranks on {nodes} node{'s' * (nodes > 1)}"
    job = Job(launcher, nodes, nproc, flags=["--max-restarts=100"])
    with measured(job, results, what, note=launcher.note):
        life, _ = job.wait_whole_life(limit_s=120)
        for _ in range(options.kills if launcher.name.startswith("phalanx-run") else min(options.kills, PEERS_KILLS)):
            job.settle(life, options.settle)
            phases, new_life = kill_once(job, life, options.limit)
            lost = new_life - life - 1
            results.add(what, launcher.name, phases["step"], f"{lost} more restarts burned" if lost else launcher.note)
            for phase, text in PHASES.items():
                details.add(f"{what}: {text}", launcher.name, phases[phase])
            life = new_life
        job.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=shapes, default="1x2,1x4,2x2", help="nodes x ranks on each")
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--kills", type=count, default=5, help=f"in each round; peers at most {PEERS_KILLS}")
    parser.add_argument("--settle", type=amount, default=2.0, help="seconds of training before each kill")
    parser.add_argument("--limit", type=amount, default=60.0, help="seconds after which a launcher is cut")
    parser.add_argument(
        "--who", type=names(BY_NAME), default="phalanx,phalanx-token,torchrun,torchrun-own-store,dlrover"
    )
    parser.add_argument("--json")
    options = parser.parse_args()
    launchers = [BY_NAME[name]() for name in options.who]
    results, details = Results("s", options.limit), Results("s", options.limit)
    for shape in options.shapes:
        for round_number in range(options.rounds):
            for launcher in launchers if round_number % 2 == 0 else reversed(launchers):
                one_job(results, details, launcher, shape, options)
    finish(options.json, "recovery", results, details)


if __name__ == "__main__":
    main()
