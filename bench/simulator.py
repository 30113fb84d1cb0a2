#!/usr/bin/env python3
"""How fast the simulation of docs/simulation.md goes: 3,000 seeds on all processors.

With --beside, programs of other commits run in turn with ours. They tell other stories: what a world holds has grown,
so that times for the same seeds compare less than events a second do.

python bench/simulator.py [--rounds 5] [--seeds 3000] [--beside phalanx-sim-OLD] [--json F]
"""

import argparse
import re
import subprocess
from pathlib import Path

from support.arguments import count, program
from support.results import Results, finish

PROGRAM = Path(__file__).resolve().parent.parent / "build" / "release" / "bin" / "phalanx-sim"


def simulate(path, seeds):
    """The events of these seeds, and the seconds that they took."""
    done = subprocess.run([path, f"--seeds={seeds}"], check=True, capture_output=True, text=True)
    events, seconds = re.search(r"(\d+) events in ([\d.]+) s", done.stdout + done.stderr).groups()
    return int(events), float(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--seeds", type=count, default=3000)
    parser.add_argument("--beside", type=program, action="append", default=[], metavar="PROGRAM")
    parser.add_argument("--json")
    options = parser.parse_args()
    times, rates = Results("s"), Results("events/s")
    for _ in range(options.rounds):
        for path in (PROGRAM, *options.beside):
            events, seconds = simulate(path, options.seeds)
            times.add(f"{options.seeds} seeds", path.name, seconds)
            rates.add(f"{options.seeds} seeds", path.name, events / seconds)
    finish(options.json, "simulator", times, rates)


if __name__ == "__main__":
    main()
