#!/usr/bin/env python3
"""What saving costs a training: phalanx.checkpoint beside DLRover's flash checkpoint, torch.save, and DCP's async_save.

    python bench/checkpoint_save.py [--shapes 1x1024,2x1024:shared,1x4096,2x2048] [--rounds 2] [--device cuda]
                                 [--json F]

A shape is ranks x MiB of each rank's state; "shared": DDP, all ranks have the same and one saves it. Each round starts
one job a contender, in turn (workloads/toy_training.py says what a step is): saves under the training, saves that are
waited for, saves to disk, saves to memory right behind one to disk, and what a life after a SIGKILL finds in memory. Of
several ranks the slowest counts. --many is a job of so many tensors, for phalanx alone. A shape whose images do not fit
into this machine's memory is left out with a sentence. With --device cuda the state lies on a GPU, and the training
works there; all ranks share the first one.

held          save() itself, and what a later step waits for it
busy step     a step while a save is under way, over the median of the plain steps before that save
committed     save() called -> every rank has it; over the memcpy of as many bytes into warm shared memory, which
              takes turns with it; from a device, over the copy into memory that is pinned
on disk       save() called -> written and synced; phalanx writes over the file of a deleted step (keep_last=1), once
              there is one. torch.save and DCP have no other saves, so theirs count as held too
"""

import argparse
import contextlib
import dataclasses
import json
import mmap
import os
import signal
import statistics
import tempfile
import threading
from pathlib import Path

from support import arguments, peers
from support.disk import BLOCK, write_raw
from support.job import Job, TimedOut
from support.results import Results, finish

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20
SLOTS = 3  # what phalanx.checkpoint asks for
WINDOW_MIB = 1024  # toy_training's memcpy goes to so much
SPARE_MIB = 2048  # interpreters, torch, and the machine's own
STEP_MS_PER_GIB = 500  # a larger state has longer steps
NO_MEMORY = "it has no saves to memory: this one goes to disk"
NO_RESTORE = "it has no saves to memory"

CONTENDERS = {
    "phalanx": ("phalanx", peers.phalanx, "save_phalanx.py"),
    "dlrover": ("dlrover 0.6.1", peers.dlrover, "save_dlrover.py"),
    "torch": ("torch.save", peers.torchrun, "save_torch.py"),
    "dcp": ("DCP async_save", peers.torchrun, "save_dcp.py"),
}
KEEP_MEMORY = ("phalanx", "dlrover")


@dataclasses.dataclass(frozen=True)
class Shape:
    ranks: int
    mib: int
    shared: bool
    tensors: int

    @property
    def images(self):
        return 1 if self.shared else self.ranks

    def __str__(self):
        size = f"{self.mib} MiB" + (" on both" if self.shared else " each") * (self.ranks > 1)
        return f"{self.ranks} rank{'s' * (self.ranks > 1)}, {size}, {self.tensors:,} tensors"


def sizes(text):
    """[(ranks, MiB, shared)] of "1x1024,2x1024:shared"; of nothing none."""
    made = []
    for part in filter(None, text.split(",")):
        size, _, shared = part.partition(":")
        if shared not in ("", "shared"):
            raise argparse.ArgumentTypeError(f"'{part}': behind the colon may stand 'shared'")
        made.append((*arguments.shape(size), bool(shared)))
    return made


def why_too_large(shape):
    """None where it fits: slots and the memcpy's target in /dev/shm, state and gradients in the ranks."""
    shared_mib = SLOTS * shape.images * shape.mib + shape.ranks * min(WINDOW_MIB, shape.mib)
    own_mib = shape.ranks * shape.mib * 4 // 3
    room = os.statvfs("/dev/shm")
    room_mib = room.f_bavail * room.f_frsize // MIB
    memory_mib = next(
        int(line.split()[1]) // 1024
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemAvailable:")
    )
    if shared_mib > room_mib:
        return f"{shape}: left out: it needs {shared_mib} MiB of /dev/shm, and {room_mib} MiB are free"
    needed_mib = shared_mib + own_mib + SPARE_MIB
    if needed_mib > memory_mib:
        return f"{shape}: left out: it needs {needed_mib} MiB of memory, and {memory_mib} MiB are free"
    return None


class Tables:
    def __init__(self):
        self.seconds, self.ratios, self.counts = Results("s"), Results("x"), Results("%")
        self.notes = []

    def all(self):
        return self.seconds, self.ratios, self.counts


class Run:
    """One job of one contender."""

    def __init__(self, tables, name, shape, options):
        self.tables, self.name, self.shape, self.options = tables, name, shape, options
        self.who, launcher, self.workload = CONTENDERS[name]
        self.launcher = launcher()

    def what(self, text):
        return f"{self.shape}: {text}"

    def do(self, settings):
        with tempfile.TemporaryDirectory(prefix="checkpoint-save-", dir=self.options.dir) as folder:
            settings = {**settings, "directory": f"{folder}/run"}
            left_before = dlrover_memory()
            job = Job(
                self.launcher,
                1,
                self.shape.ranks,
                flags=["--max-restarts=3"],
                workload=self.workload,
                environment={"BENCH_SAVING": json.dumps(settings)},
            )
            try:
                self.follow(job, settings)
            except TimedOut as error:
                print(f"   {error}\n{job.logs()[-3000:]}", flush=True)
                raise SystemExit(f"{self.who}: {self.shape}: no end within {self.options.limit:g} s") from None
            finally:
                job.kill()
                for path in dlrover_memory() - left_before:
                    path.unlink()

    def follow(self, job, settings):
        watcher = threading.Thread(target=tell_end, args=(job,), daemon=True)
        watcher.start()
        restores = self.name in KEEP_MEMORY and settings["restores"]
        if restores:
            self.wait(job, "ready", 0)
            os.kill(job.pid(0, 0), signal.SIGKILL)
            self.wait(job, "restored", 1)
        self.wait(job, "done", 1 if restores else 0)
        job.nodes[0].wait(self.options.limit)  # it takes its memory away
        self.add_events(job, settings)

    def wait(self, job, event, life):
        def find():
            found = [e for e in job.events if e["ev"] == event and e["life"] == life]
            if len(found) < self.shape.ranks and job.nodes[0].poll() is not None:
                raise TimedOut(f"{self.who} ended with {job.nodes[0].returncode} before its '{event}'")
            return len(found) == self.shape.ranks

        job.wait(find, f"'{event}' of all ranks", self.options.limit)

    # --- what the events say

    def add_events(self, job, settings):
        by_kind = {kind: rounds(job, kind, self.shape.ranks) for kind in ("save", "committed", "stored", "behind")}
        self.add_saves(by_kind["save"])
        self.add_committed(by_kind["committed"])
        for events in by_kind["stored"]:
            self.seconds("save to disk -> on disk, synced", slowest(events, "s"), why_of(events))
        for events in rounds(job, "stored first", self.shape.ranks):
            self.seconds("save to disk -> on disk, synced: of the first two", slowest(events, "s"), why_of(events))
        for events in by_kind["behind"]:
            self.add_behind(events)
        restored = [event for event in job.events if event["ev"] == "restored"]
        if restored:
            self.add_restored(restored)
        for event in job.events:
            if event["ev"] == "plan" and event["why"]:
                self.tables.notes.append(f"{self.who}, {self.shape}: prepare: {event['why']}")
        if self.name not in KEEP_MEMORY:
            self.add_lacks(settings)

    def seconds(self, text, value, remark=None):
        self.tables.seconds.add(self.what(text), self.who, value, remark)

    def add_saves(self, saves):
        for number, events in enumerate(saves):
            remark = why_of(events) or (None if self.name in KEEP_MEMORY else NO_MEMORY)
            held_s = slowest(events, "held_s")
            self.seconds(f"held by {'a later' if number else 'the first'} save", held_s, remark)
            plain_s = slowest_of(events, "plain")  # of its own: other things on the machine come and go
            busy = [max(steps) for steps in zip(*(event["busy"] for event in events))]
            self.tables.ratios.add(self.what("busy step / plain step"), self.who, statistics.mean(busy) / plain_s)
            cost_s = slowest(events, "called_s") + sum(busy) - len(busy) * plain_s
            self.seconds("what a save costs: held + longer steps", cost_s)
            self.seconds("a plain step", plain_s)

    def add_committed(self, waited):
        for events in waited:
            took_s, memcpy_s = slowest(events, "s"), slowest(events, "memcpy_s")
            remark = why_of(events) or (None if self.name == "phalanx" else "copied; no rank knows of the others")
            self.seconds("save to memory -> committed", took_s, remark)
            self.tables.seconds.add(self.what("save to memory -> committed"), f"memcpy beside {self.name}", memcpy_s)
            if took_s is not None:
                self.tables.ratios.add(self.what("committed / memcpy"), self.who, took_s / memcpy_s)

    def add_behind(self, events):
        when = ("right behind one to disk", "a step behind one to disk")[events[0]["gap"]]
        taken, stored = (100.0 * all(event[key] for event in events) for key in ("taken", "stored"))
        self.tables.counts.add(self.what(f"saves to memory {when} that are taken"), self.who, taken, why_of(events))
        why = next((event["why_disk"] for event in events if event["why_disk"]), None)
        self.tables.counts.add(
            self.what(f"saves to disk that get there, with one to memory {when}"), self.who, stored, why
        )

    def add_restored(self, events):
        sources = ", ".join(sorted({event["source"] or "nothing" for event in events}))
        remark = "; ".join(filter(None, [f"from {sources}" if sources != "memory" else None, why_of(events)])) or None
        self.seconds("restore: load() returns, in a new life", slowest(events, "load_s"), remark)
        self.seconds("restore: and the state is in module and optimizer", slowest(events, "ready_s"))
        self.seconds("restore: load() again: the map alone", slowest(events, "map_s"))
        if "assign_s" in events[0]:
            self.seconds("restore: load_state_dict(assign=True), no second copy", slowest(events, "assign_s"))

    def add_lacks(self, settings):
        for text, wanted in (
            ("save to memory -> committed", settings["saves"]),
            ("restore: load() returns, in a new life", settings["restores"]),
            ("restore: and the state is in module and optimizer", settings["restores"]),
        ):
            if wanted:
                self.tables.seconds.lacks(self.what(text), self.who, NO_RESTORE)


def dlrover_memory():
    """What DLRover's jobs leave in /dev/shm, also those that end well: the next contender would lack it."""
    return set(Path("/dev/shm").glob("*_ckpt_shm_*"))


def tell_end(job):
    """Wakes whoever waits for news of a job that has ended."""
    job.nodes[0].wait()
    with job.news:
        job.news.notify_all()


def rounds(job, kind, ranks):
    """The first events of that kind of all ranks, their second, and so on."""
    events = list(job.events)
    return list(zip(*([e for e in events if e["ev"] == kind and e["rank"] == rank] for rank in range(ranks))))


def slowest(events, field):
    """None where one has failed."""
    values = [event[field] for event in events]
    return None if None in values else max(values)


def slowest_of(events, field):
    """The median of steps, each as long as on its slowest rank."""
    return statistics.median(max(steps) for steps in zip(*(event[field] for event in events)))


def why_of(events):
    return next((event["why"] for event in events if event["why"]), None)


def add_raw(tables, shape, options):
    """As many bytes as all images of the shape, over an old file, as phalanx writes with keep_last."""
    length = shape.images * shape.mib * MIB // BLOCK * BLOCK
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="checkpoint-save-", dir=options.dir))
        memory = stack.enter_context(mmap.mmap(-1, length))
        data = stack.enter_context(memoryview(memory))
        piece = os.urandom(64 * MIB)
        for at in range(0, length, len(piece)):
            end = min(at + len(piece), length)
            data[at:end] = piece[: end - at]
        path = Path(folder) / "raw"
        write_raw(path, data, again=True)
        for _ in range(options.disk_saves):
            took_s = write_raw(path, data, again=True)
            tables.seconds.add(f"{shape}: save to disk -> on disk, synced", "raw O_DIRECT, 8 under way", took_s)


def step_ms(shape, options):
    return max(200, options.step_ms_per_gib * shape.mib // 1024)


def compare(tables, shape, options):
    settings = {
        "mib": shape.mib,
        "tensors": shape.tensors,
        "shared": shape.shared,
        "device": options.device,
        "step_ms": step_ms(shape, options),
        "saves": options.saves,
        "disk_saves": options.disk_saves,
        "behind": options.behind,
        "restores": True,
    }
    names = options.who
    for round_number in range(options.rounds):
        for name in names if round_number % 2 == 0 else reversed(names):
            Run(tables, name, shape, options).do(settings)
        if options.disk_saves:
            add_raw(tables, shape, options)


def many_tensors(tables, options):
    shape = Shape(1, options.many_mib, False, options.many)
    settings = {"mib": shape.mib, "tensors": shape.tensors, "shared": False, "step_ms": step_ms(shape, options)}
    settings.update(device=options.device, saves=options.saves, disk_saves=0, behind=0, restores=False)
    Run(tables, "phalanx", shape, options).do(settings)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=sizes, default="1x1024,2x1024:shared,1x4096,2x2048")
    parser.add_argument(
        "--tensors", type=arguments.count, default=1000, help="parameters and moments; one more in 4 is a counter"
    )
    parser.add_argument(
        "--many", type=arguments.count_or_zero, default=100_000, help="tensors of the last job, 0: without it"
    )
    parser.add_argument("--many-mib", type=arguments.count, default=1024, help="and its state")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where the state lies")
    parser.add_argument("--rounds", type=arguments.count, default=2)
    parser.add_argument(
        "--saves", type=arguments.count_or_zero, default=5, help="under the training, and as many that are waited for"
    )
    parser.add_argument("--disk-saves", type=arguments.count_or_zero, default=2)
    parser.add_argument(
        "--behind",
        type=arguments.count_or_zero,
        default=2,
        help="saves behind one to disk: so many at once, and a step later",
    )
    parser.add_argument(
        "--step-ms-per-gib", type=arguments.count, default=STEP_MS_PER_GIB, help="of the forward and backward pass"
    )
    parser.add_argument("--who", type=arguments.names(CONTENDERS), default=",".join(CONTENDERS), help="contenders")
    parser.add_argument("--dir", type=Path, default=ROOT / "build", help="a folder on the disk to measure")
    parser.add_argument("--limit", type=arguments.amount, default=600.0, help="seconds after which a job is given up")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    return parser.parse_args()


def main():
    options = parse()
    tables = Tables()
    for size in options.shapes:
        shape = Shape(*size, options.tensors)
        why = why_too_large(shape)
        if why:
            tables.notes.append(why)
            print(why, flush=True)
        else:
            compare(tables, shape, options)
    if options.many:
        many_tensors(tables, options)
    finish(options.json, "checkpoint_save", *tables.all(), notes=tables.notes)


if __name__ == "__main__":
    main()
