#!/usr/bin/env python3
"""What a save of a DeepSpeed engine costs the training: phalanx.checkpoint.adapters.deepspeed beside DeepSpeed's own
save_checkpoint(), in the same process and in turn.

    python bench/deepspeed_checkpoint.py [--mib 500] [--ranks 1] [--stages 1,3] [--saves 8]
                                         [--version 0.19.8] [--json F]

A stack of linear layers in bf16 with AdamW, so large that rank 0 stores so many MiB. Between two saves are a few steps.
Of several ranks the slowest counts.

held          save() itself, and what a later step waits for it
busy step     the first step behind a save, over the median of those that follow
on disk       save() called -> written and synced. DeepSpeed's has returned then, and syncs nothing
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from support.arguments import amount, count, names
from support.job import Job
from support.peers import Launcher
from support.results import Results, finish

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import deepspeeds  # noqa: E402

STAGES = ("1", "2", "3")
OURS, THEIRS = "phalanx", "DeepSpeed"


def launcher(version):
    """phalanx-run of an environment that has DeepSpeed."""
    command = deepspeeds.prepare(version) / "bin" / "phalanx-run"
    environment = (("DS_ACCELERATOR", "cpu"), ("CUDA_VISIBLE_DEVICES", ""))
    return Launcher("phalanx-run", (str(command),), environment=environment)


def samples_of(options, stage):
    """{who: [one dict of seconds a save]}, of the slowest rank each."""
    with tempfile.TemporaryDirectory(prefix="deepspeed-checkpoint-", dir=options.dir) as folder:
        settings = {"mib": options.mib, "stage": int(stage), "saves": options.saves, "directory": folder}
        job = Job(
            launcher(options.version),
            1,
            options.ranks,
            flags=["--max-restarts=0"],
            workload="save_deepspeed.py",
            environment={"BENCH_SAVING": json.dumps(settings)},
        )
        try:
            code = job.nodes[0].wait(options.limit)
            if code != 0:
                raise SystemExit(f"the job ended with {code}:\n{job.logs()[-3000:]}")
            return told(job.events, options.ranks)
        finally:
            job.kill()


def told(events, ranks):
    found = {OURS: [], THEIRS: []}
    saves = [event for event in events if event["ev"] == "saved"]
    for number in sorted({event["n"] for event in saves}):
        of_ranks = [event for event in saves if event["n"] == number]
        assert len(of_ranks) == ranks, of_ranks
        who = OURS if of_ranks[0]["ours"] else THEIRS
        found[who].append({key: max(event[key] for event in of_ranks) for key in ("held", "busy", "stored", "mib")})
        found[who][-1]["why"] = next((event["why"] for event in of_ranks if event["why"]), None)
    return found


def add(seconds, ratios, what, found):
    for who, saves in found.items():
        for number, save in enumerate(saves):
            when = "the first save" if number == 0 else "a later save"
            seconds.add(f"{what}: held by {when}", who, save["held"], save["why"] if number else None)
            if number:
                seconds.add(f"{what}: on disk", who, save["stored"])
                ratios.add(f"{what}: busy step", who, save["busy"])


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=count, default=500, help="of what rank 0 stores")
    parser.add_argument("--ranks", type=count, default=1)
    parser.add_argument("--stages", type=names(STAGES), default=["1", "3"], metavar="1,2,3")
    parser.add_argument("--saves", type=count, default=8, help="of each")
    parser.add_argument("--version", choices=deepspeeds.VERSIONS, default=deepspeeds.VERSIONS[-1])
    parser.add_argument("--dir", type=Path, default=ROOT / "build")
    parser.add_argument("--limit", type=amount, default=600.0, help="seconds for one job")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    return parser.parse_args()


def main():
    options = parse()
    seconds, ratios, notes = Results("s"), Results("x"), []
    for stage in options.stages:
        found = samples_of(options, stage)
        mib = statistics.median(save["mib"] for save in found[OURS])
        what = f"ZeRO {stage}, {options.ranks} rank{'s' * (options.ranks > 1)}, {mib:.0f} MiB"
        add(seconds, ratios, what, found)
    notes.append(
        f"DeepSpeed {options.version}, on the CPU; {os.cpu_count()} cores for all ranks and what they copy with."
    )
    finish(options.json, "deepspeed_checkpoint", seconds, ratios, notes=notes)


if __name__ == "__main__":
    main()
