#!/usr/bin/env python3
"""Elastic batch plans: what a Python user calls, beside DeepSpeed's own Python, in this process, on the same requests,
in turn. And the command: plans by lines of JSON, and 100,000 GPUs explained. All of it is CPU time, of one thread.

    python bench/elasticity.py [--bin build/release/bin] [--rounds 5] [--json out.json]
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

from phalanx import elasticity
from support.arguments import count
from support.peers import deepspeed_elasticity
from support.results import Results, finish

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from elasticity_oracle import import_deepspeed  # noqa: E402

ROWS = ROOT / "tests" / "data" / "elasticity" / "public.jsonl"
ASKED = ("id", "ds_config", "world_size", "return_microbatch", "target_version", "env")
# What both raise of Python's own.
PYTHONS = (ArithmeticError, AssertionError, RuntimeError, TypeError, ValueError)
MILLION = 1e6
GPUS = 100_000
LINES = 50_000  # for one start of the command
# The example of DeepSpeed's documentation; the first of the rows is the one that its users copy.
DEEPSPEEDS = {"max_train_batch_size": 2000, "micro_batch_sizes": [2, 4, 6], "min_gpus": 1, "max_gpus": 10000}


def row_of(block):
    config = {"elasticity": {"enabled": True, "version": 0.1, **block}}
    return {"ds_config": config, "world_size": 0, "return_microbatch": False, "target_version": "0.16.5"}


def requests():
    """What is asked, by its name: (rows, passes over them)."""
    public = [{key: row[key] for key in ASKED if key in row} for row in map(json.loads, ROWS.open())]
    return {
        "ms-swift's documented config": ([public[0]], 2_000),
        "DeepSpeed's documented config": ([row_of(DEEPSPEEDS)], 500),
        f"the {len(public):,} public rows": (public, 1),
    }


def plan_s(compute, refusals, rows, passes):
    """Seconds of CPU time of a plan, or of its refusal."""
    seconds = 0.0
    for row in rows:
        os.environ.pop("WORLD_SIZE", None)
        os.environ.update(row.get("env", {}))
        arguments = (row["ds_config"], row["target_version"], row["world_size"], row["return_microbatch"])
        begin = time.process_time()
        for _ in range(passes):
            try:
                compute(*arguments)
            except refusals:
                pass
        seconds += time.process_time() - begin
    return seconds / passes / len(rows)


def load_deepspeed():
    """compute_elastic_config, and what it raises."""
    compute, _ = import_deepspeed(str(deepspeed_elasticity()))
    from deepspeed.elasticity.config import ElasticityError

    return compute, (ElasticityError, *PYTHONS)


def compare(rounds):
    """Times of a plan, for who calls compute_elastic_config."""
    warnings.simplefilter("ignore")  # numpy's, of integers that overflow
    sides = {
        "phalanx": (elasticity.compute_elastic_config, (elasticity.ElasticityError, *PYTHONS)),
        "DeepSpeed 0.16.5": load_deepspeed(),
    }
    times = Results("us")
    for _ in range(rounds):
        for what, (rows, passes) in requests().items():
            for who, (compute, refusals) in sides.items():
                times.add(what, who, plan_s(compute, refusals, rows, passes) * MILLION)
    return times


def answer_lines(program, rounds):
    """Times of a plan by `plan --jsonl`, from JSON to JSON, with the start of the command shared out among them."""
    times = Results("us")
    for _ in range(rounds):
        for what, (rows, _) in requests().items():
            copies = LINES // len(rows)
            with tempfile.TemporaryFile("w+") as file:
                file.write("".join(f"{json.dumps(row)}\n" for row in rows) * copies)
                file.flush()
                file.seek(0)
                cpu_ms = command_cpu_ms(program, "elasticity", "plan", "--jsonl", stdin=file)
            times.add(f"{what}, by the command", "phalanx", cpu_ms * 1000 / (copies * len(rows)))
    return times


def command_cpu_ms(*command, stdin=subprocess.DEVNULL):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([str(word) for word in command], stdin=stdin, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1000


def explain(program, rounds):
    results = Results("ms")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ds_config.json"
        for _ in range(rounds):
            for version in (0.1, 0.2):
                row = row_of({**DEEPSPEEDS, "max_gpus": GPUS, "version": version})
                path.write_text(json.dumps(row["ds_config"]))
                what = f"explain {GPUS:,} GPUs, version {version}"
                results.add(f"{what}, table", "phalanx", command_cpu_ms(program, "elasticity", "explain", path))
                results.add(
                    f"{what}, --json", "phalanx", command_cpu_ms(program, "elasticity", "explain", path, "--json")
                )
            results.add("start and end of the command alone", "phalanx", command_cpu_ms(program, "--version"))
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=ROOT / "build/release/bin", help="folder of our commands")
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--json")
    options = parser.parse_args()
    program = options.bin / "phalanx"
    parts = (compare(options.rounds), answer_lines(program, options.rounds), explain(program, options.rounds))
    finish(options.json, "elasticity", *parts)


if __name__ == "__main__":
    main()
