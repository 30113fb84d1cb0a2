#!/usr/bin/env python3
"""Ten minutes of a small DDP job that saves each 10th step to memory, while a random rank is killed each 15 s: how much
of the time was training, and where the rest went, by `phalanx ledger`.

    python bench/checkpoint_goodput.py [--minutes 10] [--every-s 15] [--ranks 2] [--mib 1] [--step-ms 20] [--json F]

Goodput is the share of the job's whole life, its start and its end included, in which steps were made that had not been
made before. The victims are drawn by --seed, and the moments, up to --jitter-s about each 15 s: lives of one length,
each begun at a save, would all end the same number of steps behind one. The state is small, as that of a toy is: a
larger one makes each save and each restore longer.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from support.arguments import amount, count, count_or_zero
from support.job import Job
from support.peers import phalanx
from support.results import Results, finish

ROOT = Path(__file__).resolve().parent.parent
CAUSES = ("training", "saving", "stalled", "redoing", "recovering", "waiting", "starting", "ending")


def kill_one_each(job, options):
    """Returns how many were killed. The schedule is the clock's: a slow recovery is not given more time."""
    choose = random.Random(options.seed)
    began, kills = time.monotonic(), 0
    while (kills + 1) * options.every_s < options.minutes * 60:
        kill_at = began + (kills + 1) * options.every_s + choose.uniform(-options.jitter_s, options.jitter_s)
        job.stay(max(0.0, kill_at - time.monotonic()))
        victim = choose.randrange(options.ranks)
        life = max(event["life"] for event in job.events)
        os.kill(job.pid(victim, life), signal.SIGKILL)
        kills += 1
    job.stay(max(0.0, began + options.minutes * 60 - time.monotonic()))
    return kills


def ledger_of(job, launcher):
    command = Path(launcher.command[0]).parent / "phalanx"
    arguments = ["ledger", f"--state-dir={job.state}0"]
    text = subprocess.run([command, *arguments], check=True, capture_output=True, text=True).stdout
    read = subprocess.run([command, *arguments, "--json"], check=True, capture_output=True, text=True).stdout
    return text, json.loads(read)


def run(options):
    launcher = phalanx()
    with tempfile.TemporaryDirectory(prefix="checkpoint-goodput-") as folder:
        settings = {"mib": options.mib, "step_ms": options.step_ms, "every": options.save_every, "directory": folder}
        job = Job(
            launcher,
            1,
            options.ranks,
            flags=["--max-restarts=100000"],
            workload="goodput_steps.py",
            environment={"BENCH_GOODPUT": json.dumps(settings)},
        )
        try:
            job.wait_whole_life()
            kills = kill_one_each(job, options)
            job.stop_file.touch()
            code = job.nodes[0].wait(60)
            if code != 0:
                raise SystemExit(f"the job ended with {code}:\n{job.logs()[-3000:]}")
            return kills, list(job.events), *ledger_of(job, launcher)
        finally:
            job.kill()


def add(shares, times, steps, kills, events, ledger):
    wall_ms = ledger["wall_ms"]
    shares.add("goodput", "phalanx", 100 * ledger["causes"]["training_ms"] / wall_ms)
    for cause in CAUSES:
        times.add(f"all of the time: {cause}", "phalanx", ledger["causes"][f"{cause}_ms"] / 1000)
    times.add("all of the time: from start to end", "phalanx", wall_ms / 1000)
    for incident in ledger["incidents"]:
        times.add("a kill: recovering", "phalanx", incident["recovering_ms"] / 1000)
        times.add("a kill: redoing", "phalanx", incident["redoing_ms"] / 1000)
        if incident["steps_lost"] is not None:
            steps.add("a kill: steps done again", "phalanx", incident["steps_lost"])
    steps.add("all steps done again", "phalanx", sum(i["steps_lost"] or 0 for i in ledger["incidents"]))
    steps.add("all steps", "phalanx", max(event["at_step"] for event in events if event["ev"] == "done"))
    steps.add("kills", "phalanx", kills)
    elsewhere = [e for e in events if e["ev"] == "restored" and e["life"] > 0 and e["source"] != "memory"]
    steps.add("lives that did not begin from memory", "phalanx", len({event["life"] for event in elsewhere}))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=amount, default=10.0)
    parser.add_argument("--every-s", type=amount, default=15.0, help="seconds between kills")
    parser.add_argument("--jitter-s", type=amount, default=0.5, help="by which a kill is early or late, at most")
    parser.add_argument("--save-every", type=count, default=10, help="steps between saves")
    parser.add_argument("--ranks", type=count, default=2)
    parser.add_argument("--mib", type=count, default=1, help="of the state")
    parser.add_argument("--step-ms", type=amount, default=20.0)
    parser.add_argument("--seed", type=count_or_zero, default=1)
    parser.add_argument("--json", type=Path, help="write the numbers here")
    return parser.parse_args()


def main():
    options = parse()
    kills, events, text, ledger = run(options)
    shares, times, steps = Results("%"), Results("s"), Results("")
    add(shares, times, steps, kills, events, ledger)
    first_page = text.split("\n\nWHEN")[0].rstrip()
    finish(options.json, "checkpoint_goodput", shares, times, steps, notes=[f"```\n{first_page}\n```"])


if __name__ == "__main__":
    main()
