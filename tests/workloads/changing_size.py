"""The outline that rescaling.py and light_rescaling.py fill.

A training saves and goes on elsewhere when its job is about to change its size.

How it hears of that: callback (phalanx.on_rescale), optimizer (the same, and it never calls phalanx.step), exit (a
callback that ends the process with 0), signal (SIGUSR1, agreed upon by an all_reduce, then exit code 0), slow (a
callback that never returns), none.
"""

import os
import signal
import sys
import time

import phalanx
from report import report


class Training:
    """What a training is to `run`: a group, and steps."""

    def join(self):
        """Joins the group of all ranks."""
        raise NotImplementedError

    def step(self):
        """One step of the optimizer."""
        raise NotImplementedError

    def all_ranks(self, number):
        """Every rank's number, by a collective."""
        raise NotImplementedError

    def any_rank(self, flag):
        """Whether the flag is set on any rank, by a collective."""
        raise NotImplementedError

    def leave(self):
        """Leaves the group."""
        raise NotImplementedError


class Run:
    """A run of such a training, and where it stands."""

    def __init__(self, training, how):
        self.training, self.how = training, how
        self.path = os.path.join(os.environ["PHALANX_TEST_FOLDER"], "saved_step")
        self.step = 0
        self.told = False

    def listen(self):
        if self.how in ("callback", "optimizer", "exit", "slow"):
            phalanx.on_rescale(self.on_rescale)
        if self.how == "signal":
            signal.signal(signal.SIGUSR1, self.on_signal)

    def on_rescale(self):
        report("asked", n=self.step)
        if self.how == "slow":
            time.sleep(600)
        self.save()
        if self.how == "exit":
            sys.exit(0)

    def on_signal(self, _number, _frame):
        self.told = True

    def save(self):
        """A collective one: it works only where all ranks do it behind the same step."""
        steps = self.training.all_ranks(self.step)
        assert set(steps) == {self.step}, steps
        if os.environ["RANK"] == "0":
            with open(self.path + ".new", "w") as file:
                file.write(str(self.step))
            os.replace(self.path + ".new", self.path)
        report("saved", n=self.step)

    def load(self):
        if os.path.exists(self.path):
            with open(self.path) as file:
                self.step = int(file.read())
        report("begin", n=self.step)

    def train(self):
        while not self.training.any_rank(os.path.exists(os.environ["PHALANX_TEST_STOP"])):
            if self.training.any_rank(self.told):
                self.save()
                sys.exit(0)
            self.step += 1
            self.training.step()
            if self.how != "optimizer":
                phalanx.step(self.step)
            if self.step % 10 == 1 or self.step < 3:
                report("step", n=self.step)
            time.sleep(0.01)


def run(training):
    job = Run(training, sys.argv[1])
    job.listen()
    training.join()
    job.load()
    job.train()
    job.save()
    training.leave()
    report("done", n=job.step)
