"""The outline that resuming.py and light_resuming.py fill.

A training keeps a checkpoint every few steps, tells its steps and goes on from the last one. A save takes as long as
the test says: its disk is slow.
"""

import argparse
import os
import time

from report import report

options = argparse.Namespace()


def begin():
    """To be called before anything heavy is imported: the launcher sees the rank before that."""
    report("main")
    parser = argparse.ArgumentParser()
    parser.add_argument("--step-ms", type=float, default=20)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--save-ms", type=float, default=0)
    parser.add_argument("--slow-lives", type=int, default=1_000, help="how many lives save so slowly")
    parser.add_argument("--silent", action="store_true", help="do not call phalanx.step")
    parser.parse_args(namespace=options)


class SlowFile:
    """A file on a slow disk."""

    def __init__(self, path):
        self.file = open(path, "wb")

    def write(self, data):
        return self.file.write(data)

    def flush(self):
        report("flushing")
        if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < options.slow_lives:
            time.sleep(options.save_ms / 1000)
        self.file.flush()


class Training:
    """What a training is to `run`: a weight that all ranks have alike."""

    def join(self):
        """Joins the group of all ranks; the weight is there from now on."""
        raise NotImplementedError

    def stand_at(self, step):
        """This life begins behind that step."""
        raise NotImplementedError

    def step(self):
        """Forward, backward, the sum of all ranks' gradients, optimizer."""
        raise NotImplementedError

    def save(self, file, step):
        """Writes weight and step to the file and flushes it; the launcher counts the time."""
        raise NotImplementedError

    def load(self, path):
        """Takes the weight from there and returns the step."""
        raise NotImplementedError

    def any_rank(self, flag):
        """Whether the flag is set on any rank: an all_reduce."""
        raise NotImplementedError

    def leave(self):
        """Leaves the group."""
        raise NotImplementedError


def run(training):
    import phalanx

    checkpoint = os.environ["PHALANX_TEST_STOP"] + ".checkpoint"
    training.join()
    step = training.load(checkpoint) if os.path.exists(checkpoint) else 0
    training.stand_at(step)
    report("loaded", n=step)
    while True:
        step += 1
        training.step()
        if not options.silent:
            phalanx.step(step)
        report("step", n=step)
        if step % options.save_every == 0 and os.environ["RANK"] == "0":
            save(training, checkpoint, step)
        if training.any_rank(os.path.exists(os.environ["PHALANX_TEST_STOP"])):
            break
        time.sleep(options.step_ms / 1000)
    training.leave()
    report("done")


def save(training, checkpoint, step):
    report("saving", n=step)
    slow = SlowFile(checkpoint + ".new")
    training.save(slow, step)
    slow.file.close()
    os.replace(checkpoint + ".new", checkpoint)
    report("saved", n=step)
