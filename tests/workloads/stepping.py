"""The outline that steps.py and light_steps.py fill: phases that they report, and in which they can be told to die."""

import argparse
import atexit
import os
import time

import faults
from report import report

options = argparse.Namespace()


def begin(parser=None):
    """To be called before anything heavy is imported: a death before that is one of the phases."""
    report("main", store=os.environ.get("MASTER_ADDR"))
    parser = parser or argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=0, help="end after so many; 0: when the stop file appears")
    parser.add_argument("--step-ms", type=float, default=5)
    parser.add_argument("--quiet-after", type=int, default=3, help="report every 20th step after so many")
    faults.add_argument(parser)
    parser.parse_args(namespace=options)
    faults.use(options.fault)
    faults.pass_by("import")


class Training:
    """What a training is to `run`. Every rank calls the collectives behind the same step."""

    def join(self):
        """Joins the group of all ranks and returns how many they are."""
        raise NotImplementedError

    def prepare(self):
        """Makes the model."""
        raise NotImplementedError

    def batches(self):
        """Batches without an end."""
        raise NotImplementedError

    def step(self, batch, number):
        """Forward, backward, optimizer. `number` counts from 1 in each life."""
        raise NotImplementedError

    def any_rank(self, flag):
        """Whether the flag is set on any rank: an all_reduce."""
        raise NotImplementedError

    def reduce_megabytes(self):
        """An all_reduce that takes its time."""
        raise NotImplementedError

    def begin_to_reduce_megabytes(self):
        """The same, and returns while it is under way."""
        raise NotImplementedError

    def leave(self):
        """Waits for all ranks and leaves the group."""
        raise NotImplementedError


def run(training):
    faults.pass_by("before_init")
    report("group", world=training.join())
    faults.pass_by("after_init")
    training.prepare()
    report("model")
    train(training)
    training.leave()
    report("done")
    faults.pass_by("end")
    atexit.register(faults.pass_by, "exiting")


def train(training):
    for step, batch in enumerate(training.batches(), start=1):
        began = time.monotonic()
        if step == 1:
            faults.pass_by("first_step")
        training.step(batch, step)
        if step <= options.quiet_after or step % 20 == 0:
            report("step", n=step)
        if agreed_to_stop(training, step) or step == options.steps:
            return
        time.sleep(max(0.0, options.step_ms / 1000 - (time.monotonic() - began)))


def agreed_to_stop(training, step):
    stop = os.path.exists(os.environ["PHALANX_TEST_STOP"])
    how = faults.planned("all_reduce") if step == 2 else None
    if how:
        training.begin_to_reduce_megabytes()
        faults.die(how, "all_reduce")
    if step == 2 and faults.planned_for_anybody("all_reduce"):
        training.reduce_megabytes()
    return training.any_rank(stop)
