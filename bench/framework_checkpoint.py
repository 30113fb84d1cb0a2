#!/usr/bin/env python3
"""What a save holds a framework's training: to memory by phalanx.checkpoint.adapters, beside the framework's own save.

    python bench/framework_checkpoint.py [--mib 500] [--rounds 5] [--who huggingface,lightning,accelerate] [--json F]

For each framework one job of one rank under phalanx-run (workloads/framework_saves.py): its own save to disk and ours
to memory take turns, three steps apart, in the same training. "held" is the call, and for ours what a later step waits
for it. The first of each is left out: it makes files and memory. A framework that this Python does not have is left out
with a sentence; ./run test --callers makes an environment that has all.
"""

import argparse
import importlib.util

from support import arguments
from support.job import Job
from support.peers import phalanx
from support.results import Results, finish

LIMIT_S = 900
MODULES = {"huggingface": "transformers", "lightning": "lightning", "accelerate": "accelerate"}
OWN = {"huggingface": "Trainer's own", "lightning": "Trainer.save_checkpoint", "accelerate": "save_state"}


def measure(results, framework, mib, rounds):
    what = f"{framework}, {mib} MiB: held by a save"
    module = MODULES[framework]
    if importlib.util.find_spec(module) is None:
        return f"{framework} is left out: this Python has no {module}"
    saves = {"BENCH_SAVES": f"{framework} {mib} {rounds}"}
    job = Job(phalanx(), 1, 1, flags=["--max-restarts=0"], workload="framework_saves.py", environment=saves)
    try:
        job.wait(lambda: [event for event in job.events if event["ev"] == "over"], f"{framework}'s training", LIMIT_S)
        for who, name in (("phalanx", "phalanx"), ("own", OWN[framework])):
            held = [event for event in job.events if event["ev"] == "held" and event["who"] == who]
            for event in held[1 : rounds + 1]:
                results.add(what, name, event["seconds"] * 1e3, event["why"])
        job.close()
    finally:
        job.kill()
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=arguments.count, default=500)
    parser.add_argument("--rounds", type=arguments.count, default=5)
    parser.add_argument("--who", type=arguments.names(MODULES), default=",".join(MODULES))
    parser.add_argument("--json")
    options = parser.parse_args()
    results = Results("ms")
    chosen = options.who if isinstance(options.who, list) else options.who.split(",")
    left_out = [measure(results, framework, options.mib, options.rounds) for framework in chosen]
    finish(options.json, "framework_checkpoint", results, notes=[note for note in left_out if note])


if __name__ == "__main__":
    main()
