"""What save_*.py have in common: a training whose state is as large as asked for, and what is measured while one way of
saving saves it. Each of them gives a Way to `run`.

BENCH_SAVING, JSON: mib and tensors of a rank's state; device: where it lies; shared: all ranks have the same; step_ms;
saves, disk_saves, behind: how many of each; directory; restores: a further life looks at what memory has kept.

A step is forward and backward passes over a few matrices, which stay in cache where they are a processor's, then AdamW
over the whole state, whose gradients stay as they are, then an all_reduce. A device has done all that when it ends.
Events: main, plan, save (one under the training), committed (one waited for), stored, behind, ready (may be killed),
restored, done.
"""

import ctypes
import json
import mmap
import os
import select
import statistics
import time

import torch
import torch.distributed as dist
from tell import tell
from torch import nn

MIB = 1 << 20
WINDOW_BYTES = 1 << 30  # what the memcpy beside the saves goes to, over and over
PLAIN_STEPS = 4  # before each save
STEPS_UNDER_A_SAVE = 20  # at most
MAPS = 5  # of what has been loaded before


class Way:
    """One way of saving. `Save`s are what save() returns."""

    keeps_memory = False  # it knows saves to memory, which outlive the process
    first_on_disk = 0  # saves to disk until all later ones go the same way

    def prepare(self):
        """Whatever can be made ready before the first save; why it was not, or None."""

    def save(self, step, to_disk):
        raise NotImplementedError

    def load(self):
        """(state, where it came from, why) in a later life."""
        raise NotImplementedError


class Save:
    why = None

    def is_over(self):
        """Nothing of it goes on beside the training any more."""
        return True

    def held_later_s(self):
        """How long it has held the training since save() returned."""
        return 0.0

    def was_taken(self):
        """Whether the memory has it; waits until that is known."""
        return True

    def wait_committed(self):
        """Whether it survives the death of any process now."""
        return True

    def wait_stored(self):
        """Whether it is on disk, synced."""
        return True

    def end(self):
        """Waits for the end of it, and takes away what would be in the way of the next."""


class State(nn.Module):
    """So many parameters; their two moments and step counters are the optimizer's."""

    def __init__(self, tensors, mib, device):
        super().__init__()
        count = max(1, tensors // 3)
        floats = max(1, mib * MIB // 12 // count)
        for index in range(count):
            parameter = nn.Parameter(torch.rand(floats, device=device))
            parameter.grad = torch.full_like(parameter, 1e-3)
            self.register_parameter(f"p{index}", parameter)


def wait_for(device):
    """Until it has done what was queued."""
    if device != "cpu":
        torch.cuda.synchronize()


class Work:
    """Forward and backward passes that take about so long where nothing else runs."""

    def __init__(self, step_ms, device):
        width, rows, tries = (256, 64, 100) if device == "cpu" else (4096, 4096, 10)
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)).to(device)
        self.batch = torch.rand(rows, width, device=device)
        for _ in range(2):  # the first finds torch cold
            began = time.perf_counter()
            for _ in range(tries):
                self.once()
            wait_for(device)
            each_ms = (time.perf_counter() - began) * 1000 / tries
        self.times = max(1, round(step_ms / each_ms))

    def once(self):
        loss = self.layers(self.batch).square().mean()
        torch.autograd.grad(loss, list(self.layers.parameters()))

    def do(self):
        for _ in range(self.times):
            self.once()


class Training:
    def __init__(self):
        self.settings = settings = json.loads(os.environ["BENCH_SAVING"])
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.shared = settings["shared"]
        torch.manual_seed(0 if self.shared else self.rank)
        self.device = settings["device"]
        self.model = State(settings["tensors"], settings["mib"], self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6, fused=True)
        self.work = Work(settings["step_ms"], self.device)
        self.directory = settings["directory"]
        self.number = 0

    def saves_here(self):
        """Whether this rank has a state of its own to save, and not the one that rank 0 saves for all."""
        return not self.shared or self.rank == 0

    def step(self):
        """Seconds that it took."""
        began = time.monotonic()
        self.work.do()
        self.optimizer.step()
        wait_for(self.device)
        self.on_all(True)
        self.number += 1
        return time.monotonic() - began

    def on_all(self, value):
        """Whether it is true on all ranks."""
        flag = torch.tensor([float(value)])
        dist.all_reduce(flag, dist.ReduceOp.MIN)
        return flag.item() > 0

    def state(self):
        return {"model": self.model, "optimizer": self.optimizer, "step": self.number}

    def state_dict(self):
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.number,
        }

    def load(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        wait_for(self.device)

    def tensors(self):
        yield from self.model.parameters()
        for entry in self.optimizer.state.values():
            yield from entry.values()


class Memcpy:
    """The plain thing: the tensors, one after another, into shared memory that is there already; from a device into
    memory that is pinned."""

    def __init__(self, training):
        self.training = training
        self.bytes = min(WINDOW_BYTES, training.settings["mib"] * MIB)
        if training.device == "cpu":
            window = mmap.mmap(-1, self.bytes)
            self.window = torch.frombuffer(window, dtype=torch.uint8)
        else:
            self.window = torch.empty(self.bytes, dtype=torch.uint8, pin_memory=True)
        ctypes.memset(self.window.data_ptr(), 1, self.bytes)

    def seconds(self):
        sources = list(self.training.tensors())
        at = 0
        began = time.monotonic()
        for source in sources:
            length = source.nbytes
            if at + length > self.bytes:
                at = 0
            if source.device.type == "cpu":  # of each, in a training on a device: counters
                ctypes.memmove(self.window.data_ptr() + at, source.data_ptr(), length)
            else:
                to = self.window[at : at + length]
                to.copy_(source.detach().reshape(-1).view(torch.uint8), non_blocking=True)
            at += length
        wait_for(self.training.device)
        return time.monotonic() - began


def save_under_training(training, way):
    plain = [training.step() for _ in range(PLAIN_STEPS)]
    began = time.monotonic()
    save = way.save(training.number, to_disk=not way.keeps_memory)
    called_s = time.monotonic() - began
    dist.barrier()  # else a rank that waits for another's save would count that as a longer step
    busy = []
    while len(busy) < STEPS_UNDER_A_SAVE:
        busy.append(training.step())
        if training.on_all(save.is_over()):
            break
    save.wait_committed()
    tell("save", held_s=called_s + save.held_later_s(), called_s=called_s, plain=plain, busy=busy, why=save.why)
    save.end()


def save_and_wait(training, way, memcpy):
    training.step()
    dist.barrier()
    began = time.monotonic()
    save = way.save(training.number, to_disk=False)
    committed = save.wait_committed()
    took_s = time.monotonic() - began
    save.end()
    dist.barrier()
    # The ranks that save copy at the same time, as their saves do.
    memcpy_s = memcpy.seconds() if training.saves_here() else 0.0
    tell("committed", s=took_s if committed else None, memcpy_s=memcpy_s, why=save.why)


def save_to_disk(training, way, counts):
    training.step()
    dist.barrier()
    began = time.monotonic()
    save = way.save(training.number, to_disk=True)
    stored = save.wait_stored()
    took_s = time.monotonic() - began if stored else None
    tell("stored" if counts else "stored first", s=took_s, why=save.why)
    save.end()


def save_behind(training, way, gap_steps):
    """To memory, so many steps behind a save to disk."""
    training.step()
    dist.barrier()
    to_disk = way.save(training.number, to_disk=True)
    for _ in range(gap_steps):
        training.step()
    if gap_steps == 0:
        training.number += 1
    to_memory = way.save(training.number, to_disk=False)
    taken = to_memory.was_taken()
    stored = to_disk.wait_stored()
    tell("behind", gap=gap_steps, taken=taken, stored=stored, why=to_memory.why, why_disk=to_disk.why)
    to_disk.end()
    to_memory.end()


def first_life(training, way):
    settings = training.settings
    for _ in range(3):
        training.step()
    began = time.monotonic()
    tell("plan", why=way.prepare(), s=time.monotonic() - began)
    for _ in range(settings["saves"]):
        save_under_training(training, way)
    if way.keeps_memory and settings["saves"]:
        memcpy = Memcpy(training)
        for _ in range(settings["saves"]):
            save_and_wait(training, way, memcpy)
        del memcpy
    for number in range(way.first_on_disk + settings["disk_saves"] if settings["disk_saves"] else 0):
        save_to_disk(training, way, counts=number >= way.first_on_disk)
    for gap_steps in (0, 1):
        for _ in range(settings["behind"] if way.keeps_memory else 0):
            save_behind(training, way, gap_steps)
    if not (way.keeps_memory and settings["restores"]):
        return
    training.step()
    way.save(training.number, to_disk=False).wait_committed()
    dist.barrier()
    tell("ready")
    select.select([], [], [])  # until the kill


def timed(call):
    began = time.monotonic()
    result = call()
    return result, time.monotonic() - began


def later_life(training, way):
    (state, source, why), load_s = timed(way.load)
    _, copy_s = timed(lambda: training.load(state))
    maps_s = []
    for _ in range(MAPS):
        (again, _, _), map_s = timed(way.load)
        maps_s.append(map_s)
    times = {"load_s": load_s, "ready_s": load_s + copy_s, "map_s": statistics.median(maps_s)}
    if training.device == "cpu":
        _, times["assign_s"] = timed(lambda: training.model.load_state_dict(again["model"], assign=True))
    tell("restored", source=source, why=why, **times)


def run(make_way):
    tell("main")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    training = Training()
    way = make_way(training)
    if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) == 0:
        first_life(training, way)
    else:
        later_life(training, way)
    dist.barrier()
    dist.destroy_process_group()
    tell("done")
