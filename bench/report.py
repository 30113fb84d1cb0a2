#!/usr/bin/env python3
"""Runs benchmarks; writes a page of tables for each, with its command, and the few rows of bench/README.md.

python bench/report.py [NAME ...]      runs these (default: all), keeps their numbers in bench/results/, renders
python bench/report.py --render        renders what bench/results/ has
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import headlines
from support.results import Results

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
README = HERE / "README.md"
BEGIN, END = "<!-- results: begin (bench/report.py writes this) -->", "<!-- results: end -->"
ALL = [
    "recovery",
    "recovery_token",
    "node_loss",
    "spare_node",
    "master_restart",
    "status",
    "node_check",
    "scale",
    "simulator",
    "cold_start",
    "notice",
    "idle",
    "node_watch",
    "hook",
    "kubernetes",
    "store",
    "store_relays",
    "data_merge",
    "checkpoint_copy",
    "checkpoint_disk",
    "checkpoint_save",
    "checkpoint_save_large",
    "checkpoint_goodput",
    "checkpoint_rss",
    "checkpoint_torn",
    "checkpoint_join",
    "checkpoint_slow_disk",
    "checkpoint_reshard",
    "deepspeed_checkpoint",
    "framework_checkpoint",
    "ms_swift",
    "elasticity",
    "data_prep",
]
# Names of results -> the benchmark and its flags, where these are not its name and none.
FLAGS = {
    "recovery_token": ["recovery", *"--shapes 1x2,2x2 --who phalanx,phalanx-token".split()],
    "store_relays": ["store", *"--only-relays --relays 10000 --rounds 3".split()],
    "deepspeed_checkpoint": ["deepspeed_checkpoint", "--ranks=2", "--stages=2", "--saves=4"],
    "checkpoint_save": ["checkpoint_save", *"--tensors 800 --rounds 1 --shapes 1x1024,2x1024:shared".split()],
    "checkpoint_save_large": [
        "checkpoint_save",
        *"--tensors 800 --rounds 2 --saves 3 --disk-saves 1 --behind 1 --many 0 --shapes 1x4096,2x2048".split(),
        "--who=dlrover,phalanx",
    ],
}


def run(name):
    RESULTS.mkdir(exist_ok=True)
    print(f"== bench {name}", file=sys.stderr, flush=True)
    script, *flags = FLAGS.get(name, [name])
    return subprocess.run(
        [sys.executable, HERE / f"{script}.py", *flags, "--json", RESULTS / f"{name}.json"]
    ).returncode


# Kept by other runs than ours: bench/suite.py has a row for each.
KEPT = ["suite"]


def page(name):
    """The page of one benchmark, from its file."""
    stored = json.loads((RESULTS / f"{name}.json").read_text())
    machine = stored["machine"]
    where = f"{machine['cpus']} cores, {machine['model']}, Linux {machine['kernel']}, torch {machine['torch']}"
    notes = "".join(f"\n{note}\n" for note in stored["notes"])
    parts = [Results.of_part(part).table() for part in stored.get("parts", [])]  # suite.json has a table of its own
    tables = "\n\n".join(parts) or stored["table"]
    return f"# {name}\n\n`{stored['command']}`, {stored['day']}, {where}\n\n{tables}\n{notes}"


def render():
    for name in [*ALL, *KEPT]:
        if (RESULTS / f"{name}.json").is_file():
            (RESULTS / f"{name}.md").write_text(page(name))
    text = README.read_text()
    head, tail = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    README.write_text(f"{head}\n\n{headlines.table()}\n{tail}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--render", action="store_true")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(ALL)}")
    options = parser.parse_args()
    for name in options.names:
        if name not in ALL:
            parser.error(f"'{name}' is none of {', '.join(ALL)}")
    names = [] if options.render else options.names or [name for name in ALL if (HERE / f"{name}.py").is_file()]
    failed = [name for name in names if run(name) != 0]
    render()
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
