#!/usr/bin/env python3
"""What a large job's master takes: nodes that come, one rank's death, beats; in clear and with a token.

    python bench/scale.py [--rounds 3] [--agents 1000,3000,10000,12500] [--deaths 3] [--beats 10] [--json F]

A phalanx-master as it is, and simulated agents of one process (phalanx-scale-bench), each of 8 ranks, with a connection
and a stream of its own over the loopback device. All dial at once. They share this machine's processors with the
master; the master's CPU says what nodes of their own would leave. With a token each connection is a TLS handshake in
which both sides show a certificate. The agents speak HTTP/2 by themselves: a channel of gRPC for each would take more
of the processors than the master does.

A model says what the largest of these jobs would take: a line through the smaller ones. Its own figures stand beside
it, and the events of the same worlds in the simulator.
"""

import argparse
import json
import re
import statistics
import subprocess
from pathlib import Path

from support.arguments import count, counts
from support.results import Results, finish

BINARIES = Path(__file__).resolve().parent.parent / "build" / "release" / "bin"
HOW = {"open": "in clear", "token": "with a token"}
RANKS = 8  # of an agent
SEEDS = 3
# A line has two unknowns; a third point says whether it is one.
POINTS_LEAST = 3


def job(agents, how):
    return f"{agents:,} agents {HOW[how]}"


def measure(tables, agents, how, options):
    command = [BINARIES / "phalanx-scale-bench", BINARIES / "phalanx-master", str(agents), how]
    done = subprocess.run(
        [*command, str(options.deaths), str(options.beats)], check=True, capture_output=True, text=True
    )
    told = json.loads(done.stdout)
    seconds, milliseconds, megabytes, cores = tables
    name = job(agents, how)
    seconds.add(f"{name}: dialled until the last one has its world", "phalanx-master", told["registered_s"])
    seconds.add(f"{name}: the master's CPU of that", "phalanx-master", told["master_cpu_s"])
    for decided, last in zip(told["decided_ms"], told["last_told_ms"]):
        milliseconds.add(f"{name}: a rank dies until the first agent is told", "phalanx-master", decided)
        milliseconds.add(f"{name}: a rank dies until the last agent is told", "phalanx-master", last)
    megabytes.add(f"{name}: the master's memory", "phalanx-master", told["rss_then_mb"])
    cores.add(f"{name}: the master's CPU while they beat", "phalanx-master", 100 * told["beating_core"])


def simulated_events(agents):
    """Of some worlds of the simulator with so many machines."""
    done = subprocess.run(
        [BINARIES / "phalanx-sim", f"--seeds={SEEDS}", f"--machines={agents}"],
        check=True,
        capture_output=True,
        text=True,
    )
    return int(re.search(r"(\d+) events in", done.stdout + done.stderr)[1])


def model_row(what, unit, figures, largest):
    """`figures`: by agents. What a line through the smaller jobs says of the largest, beside what that one came to."""
    smaller = sorted(agents for agents in figures if agents < largest)
    line = statistics.linear_regression(smaller, [figures[agents] for agents in smaller])
    said = line.intercept + line.slope * largest
    shown = (line.intercept, line.slope * 1_000, said, figures[largest])
    return f"| {what} | {' | '.join(f'{value:,.3g} {unit}' for value in shown)} | {figures[largest] / said:.2f} |"


def model(tables, agents):
    """Its notes: a sentence, and a table in Markdown."""
    largest = max(agents)
    rows = []
    for table in tables:
        whats = dict.fromkeys(what.partition(": ")[2] for what, _ in table.rows)
        for how in HOW:
            for what in whats:
                by_agents = {n: table.median(table.rows[f"{job(n, how)}: {what}", "phalanx-master"]) for n in agents}
                rows.append(model_row(f"{HOW[how]}: {what}", table.unit, by_agents, largest))
    events = {n: simulated_events(n) for n in agents}
    rows.append(model_row(f"simulated: events of {SEEDS} worlds", "", events, largest))
    head = f"| what | fixed | each 1,000 agents | said of {largest:,} | measured | measured / said |"
    return [
        f"A line through the smaller jobs, and what it says of {largest:,} agents, {largest * RANKS:,} ranks:",
        "\n".join([head, "|---|---|---|---|---|---|", *rows]),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--agents", type=counts, default=[1_000, 3_000, 10_000, 12_500])
    parser.add_argument("--deaths", type=count, default=3)
    parser.add_argument("--beats", type=count, default=10, help="seconds of beats whose CPU is measured")
    parser.add_argument("--json")
    options = parser.parse_args()
    tables = Results("s"), Results("ms"), Results("MB"), Results("% of a core")
    for _ in range(options.rounds):
        for agents in options.agents:
            for how in HOW:
                measure(tables, agents, how, options)
    notes = model(tables, options.agents) if len(set(options.agents)) > POINTS_LEAST else ()
    finish(options.json, "scale", *tables, notes=notes)


if __name__ == "__main__":
    main()
