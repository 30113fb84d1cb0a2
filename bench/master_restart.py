#!/usr/bin/env python3
"""The master is killed and started again: what ranks notice of it, and how soon the next one decides.

    python bench/master_restart.py [--rounds 5] [--agents 1000] [--json F]

A job of two nodes with one rank each. The master is killed alone (how many ranks are restarted?), and together with a
rank, whose death the next master has to decide about. "started" is just before the new master's process is; where
phalanx-run starts it, the kill of the old one. Decisions have the time of their row in the event record. Then the same
with simulated agents (phalanx-master-bench), which dial as soon as the new master is ready; real ones dial every 0.2 s.
"""

import argparse
import json
import os
import signal
import subprocess
import time
from pathlib import Path

from support.arguments import amount, count
from support.job import Job
from support.peers import ROOT, phalanx, phalanx_with_master
from support.results import Results, finish

KINDS = {"embedded, from its journal": phalanx, "stand-alone with --resume": phalanx_with_master}


def master_pid(job):
    (pid,) = (p for p in job.processes() if Path(f"/proc/{p}/comm").read_text().startswith("phalanx-master"))
    return pid


def record(job):
    folder = next(job.folder.glob("**/events.db")).parent
    command = [str(Path(job.launcher.command[0]).parent / "phalanx"), "events", "--json", f"--state-dir={folder}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def renew_master(job, *victims):
    """SIGKILL to the master and to ranks; returns the time at which the next one is started."""
    pid = master_pid(job)
    began = time.time()
    for victim in (pid, *victims):
        os.kill(victim, signal.SIGKILL)
    if job.service:
        job.service.wait()
        began = time.time()
        job.service = job.start_service(2, (*job.launcher.service, "--resume"))
    return began


def measure(results, counts, kind, options):
    job = Job(KINDS[kind](), 2, 1, flags=["--max-restarts=100"])
    try:
        life, _ = job.wait_whole_life()
        for _ in range(options.rounds):
            job.settle(life, options.settle)
            renew_master(job)
            at = time.monotonic()
            job.wait(lambda at=at: any(e["t"] > at + 1.5 for e in job.events), "steps behind the restart", 60)
            counts.add(f"{kind}: ranks restarted by a master's restart", "phalanx-run", newest(job) - life)
            began = renew_master(job, job.pid(1, life))
            killed = time.monotonic()
            life, ranks = job.wait_whole_life(life)
            decided = [row["unix_ms"] for row in record(job) if row["kind"] == "round-started"][-1]
            results.add(f"{kind}: started to its decision about a dead rank", "phalanx-run", decided / 1000 - began)
            first = max(event["t"] for event in ranks.values())
            results.add(f"{kind}: kill of master and rank to the first step", "phalanx-run", first - killed)
    finally:
        job.kill()


def newest(job):
    return max(event["life"] for event in job.events)


def simulated(results, options):
    program = ROOT / "build" / "release" / "bin" / "phalanx-master-bench"
    master = ROOT / "build" / "release" / "bin" / "phalanx-master"
    command = [program, master, str(options.agents), str(options.rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        ready, first, last = (int(word) / 1000 for word in line.split())
        who = f"{options.agents} simulated agents: started to"
        results.add(f"{who} ready", "phalanx-master", ready)
        results.add(f"{who} its decision about a dead rank", "phalanx-master", first)
        results.add(f"{who} the last agent told of it", "phalanx-master", last)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--agents", type=count, default=1000)
    parser.add_argument("--settle", type=amount, default=2.0, help="seconds of training before each kill")
    parser.add_argument("--json")
    options = parser.parse_args()
    results, counts = Results("s"), Results("ranks")
    for kind in KINDS:
        measure(results, counts, kind, options)
    simulated(results, options)
    finish(options.json, "master_restart", results, counts)


if __name__ == "__main__":
    main()
