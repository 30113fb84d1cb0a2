#!/usr/bin/env python3
"""What a save holds a framework's training: to memory by phalanx.checkpoint.adapters, beside the framework's own save.

    python bench/framework_checkpoint.py [--mib 500] [--rounds 5] [--who huggingface,lightning,..] [--json F]

For each framework one job of one rank under phalanx-run (workloads/framework_saves.py): its own save to disk and ours
to memory take turns, the first behind ten steps and then three apart, in the same training. "held" is the call, and for
ours what a later step waits for it; of that, "collected" is what goes by before anything of phalanx.checkpoint's own
Checkpointer is asked: the framework's state_dict() and the like; and "on a processor" is what the call itself has
computed, which other programs of the machine lengthen less than all that goes by. The first save of each, which makes
its files, is a row of its own, and so is what making ours ready has held behind the first step. A framework that this
Python does not have is left out with a sentence; ./run test --callers makes an environment that has all.
"""

import argparse
import importlib.util
import os

from support import arguments
from support.job import Job
from support.peers import phalanx
from support.results import Results, finish, load_note

LIMIT_S = 900
MODULES = {
    "huggingface": "transformers",
    "lightning": "lightning",
    "fabric": "lightning",
    "accelerate": "accelerate",
    "megatron": "megatron",
    "megatron-dist": "megatron",
}
OWN = {
    "huggingface": "Trainer's own",
    "lightning": "Trainer.save_checkpoint",
    "fabric": "fabric.save",
    "accelerate": "save_state",
    "megatron": "torch.save of its state",
    "megatron-dist": "dist_checkpointing.save",
}


def measure(results, framework, mib, rounds):
    what = f"{framework}, {mib} MiB"
    module = MODULES[framework]
    if importlib.util.find_spec(module) is None:
        return f"{framework} is left out: this Python has no {module}"
    saves = {"BENCH_SAVES": f"{framework} {mib} {rounds}", "TORCHDYNAMO_DISABLE": "1"}
    job = Job(phalanx(), 1, 1, flags=["--max-restarts=0"], workload="framework_saves.py", environment=saves)
    try:
        job.wait(lambda: [event for event in job.events if event["ev"] == "over"], f"{framework}'s training", LIMIT_S)
        for event in (event for event in job.events if event["ev"] == "ready"):
            results.add(f"{what}: held once, behind the first step", "phalanx", event["seconds"] * 1e3)
        for who, name in (("phalanx", "phalanx"), ("own", OWN[framework])):
            held = [event for event in job.events if event["ev"] == "held" and event["who"] == who]
            for number, event in enumerate(held[: rounds + 1]):
                row = f"{what}: held by a save" if number else f"{what}: held by the first save"
                results.add(row, name, event["seconds"] * 1e3, event["why"])
                if number and who == "phalanx":
                    results.add(f"{what}: of that, collected", name, event["collected"] * 1e3)
                    results.add(f"{what}: of the call, on a processor", name, event["cpu"] * 1e3)
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
    results, load = Results("ms"), os.getloadavg()
    chosen = options.who if isinstance(options.who, list) else options.who.split(",")
    left_out = [measure(results, framework, options.mib, options.rounds) for framework in chosen]
    finish(options.json, "framework_checkpoint", results, notes=[*filter(None, left_out), load_note(load)])


if __name__ == "__main__":
    main()
