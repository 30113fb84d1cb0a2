#!/usr/bin/env python3
"""What a large job's master takes: nodes that come, one rank's death, beats; in clear and with a token.

    python bench/scale.py [--rounds 3] [--agents 1000,3000,10000] [--deaths 3] [--beats 10] [--json F]

A phalanx-master as it is, and simulated agents of one process (phalanx-scale-bench), each with a connection and a
stream of its own over the loopback device. All dial at once. They share this machine's processors with the master, and
take more of them than it does: the master's CPU says what nodes of their own would leave. With a token each connection
is a TLS handshake in which both sides show a certificate.
"""

import argparse
import json
import subprocess
from pathlib import Path

from support.arguments import count, counts
from support.results import Results, finish

BINARIES = Path(__file__).resolve().parent.parent / "build" / "release" / "bin"
HOW = {"open": "in clear", "token": "with a token"}


def measure(tables, agents, how, options):
    command = [BINARIES / "phalanx-scale-bench", BINARIES / "phalanx-master", str(agents), how]
    done = subprocess.run(
        [*command, str(options.deaths), str(options.beats)], check=True, capture_output=True, text=True
    )
    told = json.loads(done.stdout)
    seconds, milliseconds, megabytes, cores = tables
    job = f"{agents:,} agents {HOW[how]}"
    seconds.add(f"{job}: dialled until the last one has its world", "phalanx-master", told["registered_s"])
    seconds.add(f"{job}: the master's CPU of that", "phalanx-master", told["master_cpu_s"])
    for decided, last in zip(told["decided_ms"], told["last_told_ms"]):
        milliseconds.add(f"{job}: a rank dies until the first agent is told", "phalanx-master", decided)
        milliseconds.add(f"{job}: a rank dies until the last agent is told", "phalanx-master", last)
    megabytes.add(f"{job}: the master's memory", "phalanx-master", told["rss_then_mb"])
    cores.add(f"{job}: the master's CPU while they beat", "phalanx-master", 100 * told["beating_core"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--agents", type=counts, default=[1_000, 3_000, 10_000])
    parser.add_argument("--deaths", type=count, default=3)
    parser.add_argument("--beats", type=count, default=10, help="seconds of beats whose CPU is measured")
    parser.add_argument("--json")
    options = parser.parse_args()
    tables = Results("s"), Results("ms"), Results("MB"), Results("% of a core")
    for _ in range(options.rounds):
        for agents in options.agents:
            for how in HOW:
                measure(tables, agents, how, options)
    finish(options.json, "scale", *tables)


if __name__ == "__main__":
    main()
