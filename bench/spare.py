#!/usr/bin/env python3
"""What a warm spare costs and brings, for a script that imports torch: memory, the time to fork one, to the script's
first line, to its first step, and to its end, beside the same script started cold. Medians of a few rounds. One life
has been before: spares have the pages that it has written."""

import os
import statistics
import sys
import tempfile
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, os.path.join(ROOT, "tests"))

from zygote_agent import Agent, write_board  # noqa: E402

ROUNDS = 5
SCRIPT = """
import time
first_line = time.monotonic_ns()
import torch, torch._dynamo, torch.distributed
imported = time.monotonic_ns()
weight = torch.zeros(8, requires_grad=True)
optimizer = torch.optim.AdamW([weight])
weight.sum().backward()
optimizer.step()
print(first_line, imported, time.monotonic_ns())
"""


def memory_kb(pid):
    with open(f"/proc/{pid}/smaps_rollup") as file:
        values = {line.split(":")[0]: int(line.split()[1]) for line in file if line.endswith("kB\n")}
    return {"rss": values["Rss"], "pss": values["Pss"], "private": values["Private_Dirty"] + values["Private_Clean"]}


def one_life(worker, script):
    start = time.monotonic_ns()
    board = os.path.join(os.path.dirname(script), "board")
    write_board(board)
    run = worker.run(script, env={"OMP_NUM_THREADS": "1"}, board={"path": board, "slot": 0})
    status, out, err = run.result()
    end = time.monotonic_ns()
    assert status == 0, err
    first_line, imported, stepped = map(int, out.split())
    return {
        "run -> first line": (first_line - start) / 1e6,
        "run -> torch imported": (imported - start) / 1e6,
        "run -> first step": (stepped - start) / 1e6,
        "last line -> reaped": (end - stepped) / 1e6,
    }


def show(title, rows, unit):
    print(title)
    for name in rows[0]:
        values = [row[name] for row in rows]
        print(f"  {name:24} {statistics.median(values):10.2f} {unit}   {min(values):.2f} .. {max(values):.2f}")


def main():
    with tempfile.TemporaryDirectory() as folder, Agent() as agent:
        script = os.path.join(folder, "script.py")
        with open(script, "w") as file:
            file.write(SCRIPT)
        ready = agent.start_zygote(script)
        print(f"zygote: {ready['modules']} modules in {ready['ms']} ms, {memory_kb(ready['pid'])['rss'] >> 10} MB RSS")
        one_life(agent.fork(), script)
        forks, memory, spares = [], [], []
        for _ in range(ROUNDS):
            start = time.monotonic_ns()
            spares.append(agent.fork(ahead=True))
            forks.append({"fork -> spare ready": (time.monotonic_ns() - start) / 1e6})
        for spare in spares:
            memory.append({name: kb / 1024 for name, kb in memory_kb(spare.pid).items()})
        show(f"{ROUNDS} waiting spares", forks, "ms")
        show("memory of each, with the zygote and the others there", memory, "MB")
        show("warm", [one_life(spare, script) for spare in spares], "ms")
        show("cold", [one_life(agent.cold(), script) for _ in range(2)], "ms")


if __name__ == "__main__":
    main()
