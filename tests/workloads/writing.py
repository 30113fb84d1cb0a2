"""A training whose parameters are written by something else than its optimizer while they are saved.

Each parameter has the step's number in all of its elements, so that an image of two moments is seen by one look.
"""

import argparse
import os
import random
import sys
import threading
import time
from pathlib import Path

import faults
import torch
from phalanx.checkpoint import Checkpointer
from phalanx.checkpoint.copying import cuda
from report import report

parser = argparse.ArgumentParser()
parser.add_argument("directory")
parser.add_argument("writer")
parser.add_argument("--floats", type=int, default=8 << 20, help="of each of two parameters")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--deaths", type=int, default=0, help="lives that end somewhere behind one of their saves")
parser.add_argument("--verify", help="as Checkpointer has it; left out: its default")
parser.add_argument("--device", choices=["cpu", "slow", "cuda"], default="cpu", help="slow: one that is none")
options = parser.parse_args()

LIFE = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
SAVES_MAX = 4  # of a life that dies
# A save of this state, with both looks, takes about so long.
SAVING_US = 120_000
# How long a forward and backward pass goes by what was written: about half a copy.
PASS_S = 0.005


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        where = "cuda" if options.device == "cuda" else "cpu"
        self.first = torch.nn.Parameter(torch.zeros(options.floats, device=where))
        self.second = torch.nn.Parameter(torch.zeros(options.floats, device=where))


class AverageSwap:
    """Swaps an average of the weights in for an evaluation, past every version counter."""

    def write(self, model):
        for _ in range(2):
            for parameter in model.parameters():
                parameter.data.mul_(-1)
            time.sleep(PASS_S)


class ScheduleFree:
    """train() and eval() of a schedule-free optimizer move the weights between two points."""

    def write(self, model):
        for parameter in model.parameters():
            parameter.data.mul_(0.75).sub_(0.25)


class Sharpness:
    """The first step of SAM climbs from where the weights are, and goes back behind the second pass."""

    def write(self, model):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.5)
            time.sleep(PASS_S)
            for parameter in model.parameters():
                parameter.sub_(0.5)


class Normalisation:
    """A forward pass that writes the weights it has normalised."""

    def write(self, model):
        for parameter in model.parameters():
            parameter.data.div_(2)
            time.sleep(PASS_S)
            parameter.data.mul_(2)


class Thread:
    """Another thread writes one parameter again and again; an even number of times in the end."""

    def write(self, model):
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._flip, args=(model.first,))
        self._thread.start()

    def _flip(self, parameter):
        while not self._stop.is_set():
            parameter.data.mul_(-1)
            parameter.data.mul_(-1)

    def end(self):
        self._stop.set()
        self._thread.join()


WRITERS = {kind.__name__: kind for kind in (AverageSwap, ScheduleFree, Sharpness, Normalisation, Thread)}


def whole(tensor):
    """The one value of all elements, or None."""
    low, high = torch.aminmax(tensor)
    return low.item() if low == high else None


def put_on_a_device():
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    from slow_device import SlowDriver

    driver = SlowDriver(seed=options.seed * 1_000_003 + LIFE)
    cuda.Driver = lambda: driver


def plan_death():
    """(save, microseconds behind its begin), or None."""
    if options.deaths <= LIFE:
        return None
    choose = random.Random(options.seed * 1_000_003 + LIFE)
    return choose.randint(1, SAVES_MAX), int(SAVING_US * (0.2 + 0.8 * choose.random()))


def main():
    torch.set_num_threads(1)
    if options.device == "slow":
        put_on_a_device()
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    settings = {} if options.verify is None else {"verify": options.verify}
    checkpointer = Checkpointer(options.directory, **settings)
    state, step = checkpointer.load()
    if state is not None:
        values = [whole(state["model"][name]) for name in ("first", "second")]
        report("restored", n=step, values=values, saved=state["step"], source=checkpointer.source)
        model.load_state_dict(state["model"])
        for parameter in model.parameters():
            parameter.data.fill_(step)
    else:
        report("restored", n=0, values=None, saved=0, source=None)
    writer, death, handle = WRITERS[options.writer](), plan_death(), None
    choose = random.Random(time.monotonic_ns())
    for count in range(1, SAVES_MAX + 2):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, -1.0)
        optimizer.step()
        step += 1
        if death is not None and count == death[0]:
            faults.die_in(death[1])
        handle = checkpointer.save(step, {"model": model, "optimizer": optimizer, "step": step})
        time.sleep(choose.choice([0, 0.0005, 0.001, 0.002, 0.004]))  # where in the copy it comes is what is looked for
        writer.write(model)
        if hasattr(writer, "end"):
            time.sleep(0.02)
            handle.wait_staged()
            writer.end()
        report("committed" if handle.wait_committed() else "uncommitted", n=step, why=handle.why)
        for parameter in model.parameters():
            parameter.data.fill_(step)
    checkpointer.close()
    report("done")


main()
