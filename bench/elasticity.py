#!/usr/bin/env python3
"""Elastic batch plans beside DeepSpeed's own Python, on the same requests, in turn; and the command that explains
100,000 GPUs. All of it is CPU time, of one thread.

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

from support.arguments import count
from support.peers import deepspeed_elasticity
from support.results import Results, finish

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from elasticity_oracle import import_deepspeed  # noqa: E402

ROWS = ROOT / "tests" / "data" / "elasticity" / "public.jsonl"
ASKED = ("id", "ds_config", "world_size", "return_microbatch", "target_version", "env")
MILLION = 1e6
GPUS = 100_000
# The example of DeepSpeed's documentation; the first of the rows is the one that its users copy.
DEEPSPEEDS = {"max_train_batch_size": 2000, "micro_batch_sizes": [2, 4, 6], "min_gpus": 1, "max_gpus": 10000}


def row_of(block):
    config = {"elasticity": {"enabled": True, "version": 0.1, **block}}
    return {"ds_config": config, "world_size": 0, "return_microbatch": False, "target_version": "0.16.5"}


def requests():
    """What is asked, by its name: (rows, our passes over them, DeepSpeed's)."""
    public = [{key: row[key] for key in ASKED if key in row} for row in map(json.loads, ROWS.open())]
    return {
        "ms-swift's documented config": ([public[0]], 50_000, 2_000),
        "DeepSpeed's documented config": ([row_of(DEEPSPEEDS)], 50_000, 500),
        f"the {len(public):,} public rows": (public, 20, 1),
    }


def ours(program, rows, passes):
    """Seconds of CPU time of a plan: of a parsed config, and from JSON to JSON."""
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    done = subprocess.run([program, str(passes)], input=text, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    return [told[key] / passes / len(rows) for key in ("parsed_s", "lines_s")]


def theirs(compute, refusals, rows, passes):
    """Seconds of CPU time of a plan."""
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

    return compute, (ElasticityError, ArithmeticError, AssertionError, RuntimeError, TypeError, ValueError)


def compare(program, rounds):
    """Times of a plan, and our rates."""
    compute, refusals = load_deepspeed()
    warnings.simplefilter("ignore")  # numpy's, of integers that overflow
    times, rates = Results("us"), Results("plans/s")
    for _ in range(rounds):
        for what, (rows, our_passes, their_passes) in requests().items():
            parsed_s, lines_s = ours(program, rows, our_passes)
            times.add(what, "phalanx", parsed_s * MILLION)
            times.add(what, "DeepSpeed 0.16.5", theirs(compute, refusals, rows, their_passes) * MILLION)
            rates.add(f"{what}, parsed", "phalanx", 1 / parsed_s)
            rates.add(f"{what}, JSON to JSON", "phalanx", 1 / lines_s)
    return [times, rates]


def command_cpu_ms(*command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([str(word) for word in command], stdout=subprocess.DEVNULL, check=True)
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
    results = [*compare(options.bin / "phalanx-elasticity-bench", options.rounds)]
    finish(options.json, "elasticity", *results, explain(options.bin / "phalanx", options.rounds))


if __name__ == "__main__":
    main()
