#!/usr/bin/env python3
"""What phalanx-run costs while a job trains: CPU of each of its processes, and their memory.

    python bench/idle.py [--seconds 60] [--who phalanx,torchrun] [--json F]

CPU is the run time of all threads (/proc/<pid>/task/*/schedstat, in ns) over the wall time, in % of one core; the
two ranks step each 20 ms meanwhile. Memory is RSS of the agent and the master, PSS and private memory of the Python
processes, which share most of torch. "waiting" is the same node before its job has enough nodes: no worker runs.
"""

import argparse
import time
from pathlib import Path

from support.arguments import amount, names
from support.job import Job
from support.peers import BY_NAME
from support.results import Results, finish


def run_time_ns(pid):
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total


def memory_mb(pid, field):
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    return 0.0


def private_mb(pid):
    return memory_mb(pid, "Private_Clean") + memory_mb(pid, "Private_Dirty")


def kinds(job):
    """{kind: [pid, ...]} of the job's processes but its workers."""
    workers = {event["pid"] for event in job.events}
    found = {}
    for pid in sorted(job.processes(), key=started_at):
        if pid not in workers:
            found.setdefault(kind(job, pid), []).append(pid)
    warm = found.pop("python", [])
    if warm:
        found.update(zygote=warm[:1], spare=warm[1:])  # forks of it look like it
    return found


def started_at(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])


def kind(job, pid):
    command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    if pid in [node.pid for node in job.nodes]:
        return "agent"
    if "phalanx-master" in command:
        return "master"
    return "python" if "python" in command else "guard"


def cpu_percent(job, pids_by_kind, seconds):
    before = {name: sum(run_time_ns(pid) for pid in pids) for name, pids in pids_by_kind.items()}
    began = time.monotonic()
    job.stay(seconds)
    passed_ns = (time.monotonic() - began) * 1e9
    return {
        name: 100 * (sum(run_time_ns(pid) for pid in pids) - before[name]) / passed_ns
        for name, pids in pids_by_kind.items()
    }


def measure_waiting(results, launcher, seconds):
    """A job that lacks a node: the agent and the master have nothing to do but live."""
    job = Job(launcher, 1, 2, flags=["--nnodes=2"], named=True, workload="trivial.py")
    try:
        job.stay(10)  # the zygote's imports are over
        add_cpu(results, launcher.name, "waiting", cpu_percent(job, kinds(job), seconds))
    finally:
        job.kill()


def measure_training(cpu, memory, launcher, seconds):
    job = Job(launcher, 1, 2, flags=["--max-restarts=1"])
    try:
        life, _ = job.wait_whole_life()
        job.settle(life, 10)  # spares are there
        processes = kinds(job)
        add_cpu(cpu, launcher.name, "training", cpu_percent(job, processes, seconds))
        for name, pids in processes.items():
            for pid in pids:
                add_memory(memory, launcher.name, name, pid)
        job.close()
    finally:
        job.kill()


def add_cpu(results, who, when, by_kind):
    for name, percent in by_kind.items():
        results.add(f"{when}: {name}", who, percent)
    results.add(f"{when}: all but the workers", who, sum(by_kind.values()))


def add_memory(results, who, name, pid):
    results.add(f"RSS of the {name}", who, memory_mb(pid, "Rss"))
    if name in ("zygote", "spare"):
        results.add(f"PSS of the {name}", who, memory_mb(pid, "Pss"))
        results.add(f"private memory of the {name}", who, private_mb(pid))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=amount, default=60.0)
    parser.add_argument("--who", type=names(BY_NAME), default="phalanx,torchrun")
    parser.add_argument("--json")
    options = parser.parse_args()
    cpu, memory = Results("%"), Results("MB")
    for name in options.who:
        launcher = BY_NAME[name]()
        if name == "phalanx":
            measure_waiting(cpu, launcher, options.seconds)
        measure_training(cpu, memory, launcher, options.seconds)
    finish(options.json, "idle", cpu, memory)


if __name__ == "__main__":
    main()
