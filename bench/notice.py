#!/usr/bin/env python3
"""How soon the agent knows of a death: of a trivial worker, and of a torch rank, which the kernel takes apart first.

    python bench/notice.py [--kills 20] [--json F]

Three figures for each kill, from just before kill(2): the kernel says the process is gone (a pidfd of the benchmark's
own becomes readable), the agent has noticed (the time in its report of the death, from `phalanx events`), and the
difference, which is ours. Both wait on a pidfd at the same time: on few cores either may come first.
"""

import argparse
import json
import os
import select
import signal
import subprocess
import time

from support.arguments import count
from support.job import Job
from support.peers import phalanx
from support.results import Results, finish


def kill_and_watch(pid):
    """Kills; returns (wall time of the kill, wall time at which the kernel said it is gone), in ms."""
    handle = os.pidfd_open(pid)
    began = time.time()
    os.kill(pid, signal.SIGKILL)
    select.select([handle], [], [])
    gone = time.time()
    os.close(handle)
    return began * 1000, gone * 1000


def deaths(job):
    """{pid: wall time in ms at which the agent noticed the death} as the job's record has it."""
    command = [os.path.join(os.path.dirname(job.launcher.command[0]), "phalanx"), "events", job.name, "--json"]
    command += [f"--state-dir={job.state}0"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    return [event for event in events if event["kind"] == "worker-exited"]


def measure(results, workload, what, kills, ready):
    job = Job(phalanx(), 1, 2, flags=[f"--max-restarts={kills + 1}"], workload=workload, named=True)
    watched = []
    try:
        life = ready(job, -1)
        for _ in range(kills):
            watched.append(kill_and_watch(job.pid(1, life)))
            life = ready(job, life)
        noticed = deaths(job)
    finally:
        job.kill()
    for (began, gone), event in zip(watched, noticed):
        detail = event.get("detail") or {}
        seen = detail.get("unix_ms", event["unix_ms"])
        results.add(f"{what}: kill to gone, by the kernel", "kernel", gone - began)
        results.add(f"{what}: kill to noticed", "phalanx-run", seen - began)
        results.add(f"{what}: gone to noticed", "phalanx-run", seen - gone)


def trivial_ready(job, life):
    def both():
        lives = {}
        for event in list(job.events):
            if event["ev"] == "main" and event["life"] > life:
                lives.setdefault(event["life"], set()).add(event["rank"])
        return next((number for number, ranks in lives.items() if len(ranks) == 2), None)

    found = job.wait(lambda: (both() is not None) and [both()], "both workers", 60)
    return found[0]


def torch_ready(job, life):
    new_life, _ = job.wait_whole_life(life)
    job.settle(new_life, 1.0)
    return new_life


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=count, default=20)
    parser.add_argument("--json")
    options = parser.parse_args()
    results = Results("ms")
    measure(results, "trivial.py", "trivial worker", options.kills, trivial_ready)
    measure(results, "ddp_steps.py", "torch rank", options.kills, torch_ready)
    finish(options.json, "notice", results)


if __name__ == "__main__":
    main()
