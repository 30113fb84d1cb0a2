#!/usr/bin/env python3
"""How fast the simulation of docs/simulation.md goes: 3,000 seeds, one process, one thread.

python bench/simulator.py [--rounds 5] [--seeds 3000] [--json F]
"""

import argparse
import re
import subprocess
from pathlib import Path

from support.arguments import count
from support.results import Results, finish

PROGRAM = Path(__file__).resolve().parent.parent / "build" / "release" / "bin" / "phalanx-sim"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--seeds", type=count, default=3000)
    parser.add_argument("--json")
    options = parser.parse_args()
    times, rates = Results("s"), Results("events/s")
    for _ in range(options.rounds):
        done = subprocess.run([PROGRAM, f"--seeds={options.seeds}"], check=True, capture_output=True, text=True)
        events, seconds = re.search(r"(\d+) events in ([\d.]+) s", done.stdout + done.stderr).groups()
        times.add(f"{options.seeds} seeds", "phalanx-sim", float(seconds))
        rates.add(f"{options.seeds} seeds", "phalanx-sim", int(events) / float(seconds))
    finish(options.json, "simulator", times, rates)


if __name__ == "__main__":
    main()
