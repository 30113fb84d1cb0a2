#!/usr/bin/env python3
"""Whether the agent's and the master's memory grow with the number of saves: 1,000 to memory, of which each 50th goes
to disk.

    python bench/checkpoint_rss.py [--saves 1000] [--disk-every 50] [--mib 64] [--ranks 2] [--json F]

The memory is read when all ranks have told every 20th save, without stopping them. RSS holds pages of the slots in
/dev/shm while the agent has them mapped; anonymous memory is what a leak would be in. The slope is that of the
straight line through the second half of the readings (least squares).
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

from idle import kind
from support.arguments import amount, count, count_or_zero
from support.job import Job
from support.peers import phalanx
from support.results import Results, finish

FIELDS = {"VmRSS": "RSS", "RssAnon": "anonymous memory", "RssShmem": "shared memory pages"}


def reading(pid):
    """{what: KiB}, and how many descriptors and threads there are."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    values = {name: int(line.split()[1]) for line in lines for name in FIELDS if line.startswith(f"{name}:")}
    values["descriptors"] = len(os.listdir(f"/proc/{pid}/fd"))
    values["threads"] = len(os.listdir(f"/proc/{pid}/task"))
    return values


def slope(points):
    """Of y over x, by least squares."""
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    across = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / across


def follow(job, options):
    """{process: [(saves so far, reading)]}."""
    found = {"agent": [], "master": []}
    for number in range(options.read_every, options.saves + 1, options.read_every):

        def told(number=number):
            return sum(e["ev"] == "saved" and e["n"] == number for e in list(job.events)) == options.ranks

        job.wait(told, f"save {number}", options.limit)
        for pid in job.processes():
            process = kind(job, pid)
            if process in found:
                found[process].append((number, reading(pid)))
    return found


def add(memory, slopes, counts, found):
    for process, readings in found.items():
        half = readings[len(readings) // 2 :]
        for field, name in FIELDS.items():
            what = f"{name} of the {process}"
            memory.add(f"{what}: first", "phalanx", readings[0][1][field] / 1024)
            for _, values in readings:
                memory.add(f"{what}: all readings", "phalanx", values[field] / 1024)
            memory.add(f"{what}: last", "phalanx", readings[-1][1][field] / 1024)
            slopes.add(f"{what}", "phalanx", slope([(saves, values[field]) for saves, values in half]) * 1000)
        for name in ("descriptors", "threads"):
            for when, values in (("first", readings[0][1]), ("last", readings[-1][1])):
                counts.add(f"{name} of the {process}: {when}", "phalanx", values[name])


def run(options):
    with tempfile.TemporaryDirectory(prefix="checkpoint-rss-", dir=options.dir) as folder:
        settings = {"mib": options.mib, "saves": options.saves, "disk_every": options.disk_every, "directory": folder}
        job = Job(
            phalanx(), 1, options.ranks, workload="many_saves.py", environment={"BENCH_SAVES": json.dumps(settings)}
        )
        try:
            found = follow(job, options)
            code = job.nodes[0].wait(60)
            if code != 0:
                raise SystemExit(f"the job ended with {code}:\n{job.logs()[-3000:]}")
            return found, [event for event in job.events if event["ev"] == "saved"]
        finally:
            job.kill()


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--saves", type=count_or_zero, default=1000)
    parser.add_argument("--disk-every", type=count_or_zero, default=50)
    parser.add_argument("--read-every", type=count, default=20)
    parser.add_argument("--mib", type=count, default=64, help="of a rank's state")
    parser.add_argument("--ranks", type=count, default=2)
    parser.add_argument("--dir", type=Path, default=Path(__file__).resolve().parent.parent / "build")
    parser.add_argument("--limit", type=amount, default=300.0, help="seconds for so many saves as --read-every")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    return parser.parse_args()


def main():
    options = parse()
    found, saves = run(options)
    memory, slopes, counts = Results("MiB"), Results("KiB/1000 saves"), Results("")
    add(memory, slopes, counts, found)
    counts.add("saves of a rank", "phalanx", max(event["n"] for event in saves))
    counts.add("saves that were not committed or stored", "phalanx", sum(not event["done"] for event in saves))
    finish(options.json, "checkpoint_rss", memory, slopes, counts)


if __name__ == "__main__":
    main()
