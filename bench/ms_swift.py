#!/usr/bin/env python3
"""ms-swift as its guide has it, by phalanx-run and on the CPU: --use_flash_ckpt true with deepspeed_elastic. One node
trains, a second one joins, ranks are killed by SIGKILL, the second node goes.

    python bench/ms_swift.py [--rounds 2] [--kills 3] [--limit 300] [--guide] [--json F]

The model has a few hundred thousand random weights, so that what is measured is all but the model. Times are those
between steps of the training, of the slowest rank:

1 -> 2, 2 -> 1   the last step that the world before made -> the first one that the next has made
kill -9          the signal -> the first step that nobody had made before
first flash save what `_save_checkpoint` of ms-swift holds the training the first time in a life, and the later ones; of
                 that, what is phalanx.checkpoint's
universal        a call that makes the universal checkpoint of a step, behind the save
commits          steps of --save_steps that came to be stored, of those that were made

What a restart is made of is a table of its own: when ranks come to each phase, from the same beginning.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from support.arguments import amount, count
from support.job import Job, to_its_end
from support.peers import Launcher
from support.results import Results, finish, load_note

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import callers, deepspeeds, lock, torches  # noqa: E402

VERSION = deepspeeds.VERSIONS[0]
SAVE_STEPS = 5
WHO = "phalanx-run"
PHASES = {
    "imported": "swift, DeepSpeed and torch are imported",
    "engine": "model, data and DeepSpeed's engine are there",
    "trainer": "the trainer begins, with what it goes on from",
}
OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "USE_HF")
# DeepSpeed's configuration, elastic.
ELASTIC = ROOT / "tests" / "data" / "ms_swift_zero1.json"


def command(folder):
    """The arguments of the guide, for a model that is made here."""
    return [
        *("--model", f"{folder}/model", "--model_type", "qwen3", "--template", "qwen3"),
        *("--tuner_type", "lora", "--lora_rank", "8", "--lora_alpha", "32", "--target_modules", "all-linear"),
        *("--torch_dtype", "bfloat16", "--dataset", f"{folder}/data.jsonl", "--split_dataset_ratio", "0"),
        *("--max_length", "128", "--max_steps", "100000", "--num_train_epochs", "100", "--learning_rate", "1e-4"),
        *("--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "8", "--warmup_ratio", "0.01"),
        *("--save_steps", str(SAVE_STEPS), "--save_total_limit", "20", "--logging_steps", "50"),
        *("--output_dir", f"{folder}/out", "--dataloader_num_workers", "0", "--dataset_num_proc", "1"),
        *("--report_to", "none", "--attn_impl", "eager", "--use_cpu", "true", "--check_model", "false"),
        *("--use_flash_ckpt", "true", "--callbacks", "deepspeed_elastic", "graceful_exit"),
        *("--deepspeed", f"{folder}/zero1.json"),
    ]


class Training:
    """A job of one node, which a second may join."""

    def __init__(self, python, folder, limit_s):
        self._limit_s = limit_s
        own = {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "HOME": str(folder), "OMP_NUM_THREADS": "1"}
        own.update(dict.fromkeys(OFFLINE, "1"), PYTHONPATH=str(ROOT / "compat" / "dlrover"))
        own["BENCH_SWIFT"] = json.dumps(command(folder))
        launcher = Launcher(WHO, (str(python.parent / "phalanx-run"),))
        places = [("127.0.0.1", []), ("127.0.0.2", [])]
        self.job = Job(
            launcher,
            1,
            1,
            flags=["--max-restarts=100"],
            workload="swift_steps.py",
            named=True,
            nnodes="1:2",
            places=places,
            environment=own,
        )

    def events(self, name, **fields):
        wanted = {"ev": name, **fields}.items()
        return [event for event in list(self.job.events) if wanted <= event.items()]

    def last_step(self):
        return max((event["step"] for event in self.events("step")), default=0)

    def train_until(self, step):
        self.job.wait(lambda: self.last_step() >= step, f"step {step}", self._limit_s)

    def train_on(self, steps):
        self.train_until(self.last_step() + steps)

    def first_steps(self, since_s, world, beyond=-1):
        """When all ranks of a world of that size have made a step of more than `beyond`, in a life since then."""

        def find():
            ranks = {}
            for event in self.events("step", world=world):
                if event["t"] > since_s and event["step"] > beyond:
                    ranks.setdefault(event["rank"], event)
            return ranks if len(ranks) == world else None

        return self.job.wait(find, f"a step in a world of {world}", self._limit_s)

    def phases(self, began_s, life):
        """{phase: (seconds until the slowest rank of that life was there, those that a rank has computed by then)}."""
        found = {}
        for name in PHASES:
            of_ranks = [event for event in self.events(name, life=life) if event["t"] > began_s]
            found[name] = max(e["t"] for e in of_ranks) - began_s, max(e["cpu"] for e in of_ranks)
        return found


def told(results, details, training, what, began_s, ranks):
    """`ranks`: {rank: its first step}."""
    life = max(event["life"] for event in ranks.values())
    results.add(what, WHO, max(event["t"] for event in ranks.values()) - began_s)
    for name, (seconds, cpu_s) in training.phases(began_s, life).items():
        details.add(f"{what}: {PHASES[name]}", WHO, seconds)
        details.add(f"{what}: {PHASES[name]}, computed by a rank", WHO, cpu_s)
    details.add(f"{what}: the first step, computed by a rank", WHO, max(e["cpu"] for e in ranks.values()))


def changes_world(results, details, training, what, world, change):
    """`change()` makes a node come or go."""
    before = world % 2 + 1
    training.train_on(2 * SAVE_STEPS)
    change()
    changed_s = time.monotonic()
    ranks = training.first_steps(changed_s, world)
    began_s = max(event["t"] for event in training.events("step", world=before))
    told(results, details, training, what, began_s, ranks)


def is_killed(results, details, training, world):
    training.train_on(2 * SAVE_STEPS)
    life = max(event["life"] for event in training.events("step", world=world))
    victim = next(e["pid"] for e in training.events("imported", life=life, rank=world - 1))
    began_s, beyond = time.monotonic(), training.last_step()
    os.kill(victim, signal.SIGKILL)
    beyond = max(beyond, training.last_step())
    ranks = training.first_steps(began_s, world, beyond)
    told(results, details, training, f"kill -9 of a rank of {world}: signal -> next new step", began_s, ranks)


def saves(results, commits, training):
    """Of all lives, when the job is over."""
    first_of = {}
    for event in training.events("held"):
        is_first = first_of.setdefault((event["life"], event["rank"]), event) is event
        when = "the first flash save of a life" if is_first else "a later flash save"
        results.add(f"{when}: held by ms-swift's _save_checkpoint", WHO, event["seconds"])
        own = next(e for e in training.events("saved", step=event["step"], life=event["life"], rank=event["rank"]))
        results.add(f"{when}: of that, phalanx.checkpoint", WHO, own["seconds"])
    for event in training.events("converted", why=None):
        results.add("a universal checkpoint of a step", WHO, event["seconds"])
    for world in (1, 2):
        made = {(event["life"], event["step"]) for event in training.events("saved", world=world)}
        stored = {(e["life"], e["step"]) for e in training.events("stored", world=world, is_so=True)}
        # The last one of a life is stored by the agent, when nobody is left to tell.
        last = {(life, max(step for of, step in made if of == life)) for life, _ in made}
        counted = made - last
        if counted:
            commits.add(f"world of {world}: saves that were stored", WHO, 100 * len(counted & stored) / len(counted))


def one_round(results, details, commits, python, folder, options):
    training = Training(python, folder, options.limit)
    job = training.job
    with to_its_end(job):
        training.train_until(2 * SAVE_STEPS)
        grow = "1 -> 2 nodes: step before -> step after"
        changes_world(results, details, training, grow, 2, lambda: job.nodes.append(job.add_node(1, script(), nproc=1)))
        for _ in range(options.kills):
            is_killed(results, details, training, 2)
        shrink = "2 -> 1 nodes: step before -> step after"
        changes_world(results, details, training, shrink, 1, lambda: job.nodes[1].send_signal(signal.SIGTERM))
        training.train_on(2 * SAVE_STEPS)
        saves(results, commits, training)


def script():
    return str(ROOT / "bench" / "workloads" / "swift_steps.py")


def prepare(environment):
    """The Python of that one of tools/callers.py, with DeepSpeed over it."""
    over = callers.prepare(environment, torches.default_cache())
    return deepspeeds.prepare(VERSION, over=over) / "bin" / "python"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=count, default=2)
    parser.add_argument("--kills", type=count, default=3, help="in each round")
    parser.add_argument("--limit", type=amount, default=300.0, help="seconds for each thing that is waited for")
    parser.add_argument("--guide", action="store_true", help="with the torch that ms-swift's guide names")
    parser.add_argument("--json")
    options = parser.parse_args()
    results, details, commits, load = Results("s"), Results("s"), Results("%"), os.getloadavg()
    environment = callers.GUIDE if options.guide else callers.NEWEST
    python = prepare(environment)
    for number in range(options.rounds):
        folder = ROOT / "build" / "bench_swift" / str(number)
        subprocess.run(["rm", "-rf", folder], check=True)
        folder.mkdir(parents=True)
        subprocess.run([python, ROOT / "tests" / "workloads" / "tiny_chat_model.py", folder], check=True)
        (folder / "zero1.json").write_text(ELASTIC.read_text())
        one_round(results, details, commits, python, folder, options)
    torch = lock.version_of("torch", environment.locks[-1])
    versions = f"ms-swift 4.6.0, DeepSpeed {VERSION}, torch {torch}, on the CPU; both nodes on this machine."
    finish(options.json, "ms_swift", results, commits, details, notes=[versions, load_note(load)])


if __name__ == "__main__":
    main()
