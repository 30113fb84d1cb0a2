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
to universal  a step of it to a universal checkpoint: a call of phalanx.checkpoint.universal.convert() in a process that
              has DeepSpeed already, as a trainer has, and written and synced; the command that is a process of its own,
              and DeepSpeed's ds_to_universal.py, another, which syncs nothing
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from support.arguments import amount, count, names
from support.job import Job
from support.peers import Launcher
from support.results import Results, finish, load_note

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import deepspeeds  # noqa: E402

STAGES = ("1", "2", "3")
OURS, THEIRS = "phalanx", "DeepSpeed"
CONVERSIONS = 5
# Its seconds are those of each call.
CONVERT = """
import shutil, sys, time
import deepspeed
from phalanx.checkpoint import universal
for _ in range(int(sys.argv[3])):
    began = time.monotonic()
    universal.convert(sys.argv[1], sys.argv[2])
    print("seconds", time.monotonic() - began)
    shutil.rmtree(sys.argv[2])
"""


def launcher(version):
    """phalanx-run of an environment that has DeepSpeed."""
    command = deepspeeds.prepare(version) / "bin" / "phalanx-run"
    environment = (("DS_ACCELERATOR", "cpu"), ("CUDA_VISIBLE_DEVICES", ""))
    return Launcher("phalanx-run", (str(command),), environment=environment)


def samples_of(options, stage):
    """{who: [one dict of seconds a save]}, of the slowest rank each; {who: [seconds of a conversion]}."""
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
            return told(job.events, options.ranks), conversions(options, Path(folder) / "ours")
        finally:
            job.kill()


def conversions(options, directory):
    """Of the step that is the newest there."""
    step, target = directory / (directory / "latest").read_text(), directory / "universal"
    tagged = directory / "global_step1"  # DeepSpeed's converter reads a step from the name
    step.rename(tagged)
    python = deepspeeds.prepare(options.version) / "bin" / "python"
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}

    def seconds_of(*line):
        began = time.monotonic()
        done = subprocess.run([python, *line], env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{line} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        return time.monotonic() - began, done.stdout

    told = seconds_of("-c", CONVERT, tagged, target, str(CONVERSIONS))[1]
    calls = [float(line.split()[1]) for line in told.splitlines() if line.startswith("seconds ")]
    ours = seconds_of("-m", "phalanx.checkpoint.universal", tagged, target)[0]
    stock = ["-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
    theirs = seconds_of(*stock, f"--input_folder={tagged}", f"--output_folder={directory / 'stock'}")[0]
    return {"a call": {OURS: calls}, "a process": {OURS: [ours], THEIRS: [theirs]}}


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
    seconds, ratios, notes, load = Results("s"), Results("x"), [], os.getloadavg()
    for stage in options.stages:
        found, converted = samples_of(options, stage)
        mib = statistics.median(save["mib"] for save in found[OURS])
        what = f"ZeRO {stage}, {options.ranks} rank{'s' * (options.ranks > 1)}, {mib:.0f} MiB"
        add(seconds, ratios, what, found)
        for how, by_whom in converted.items():
            for who, samples in by_whom.items():
                for sample in samples:
                    seconds.add(f"{what}: to universal, {how}", who, sample)
    notes.append(
        f"DeepSpeed {options.version}, on the CPU; {os.cpu_count()} cores for all ranks and what they copy with."
    )
    notes.append(load_note(load))
    finish(options.json, "deepspeed_checkpoint", seconds, ratios, notes=notes)


if __name__ == "__main__":
    main()
