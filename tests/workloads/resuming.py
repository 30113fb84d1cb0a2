"""Training that tells its steps, keeps a checkpoint every few of them and goes on from the last one.

Gradient and optimizer are real, the model is one number. A save takes as long as the test says: its disk is slow.
"""

import argparse
import os
import time

from report import report

report("main")
parser = argparse.ArgumentParser()
parser.add_argument("--step-ms", type=float, default=20)
parser.add_argument("--save-every", type=int, default=20)
parser.add_argument("--save-ms", type=float, default=0)
parser.add_argument("--slow-lives", type=int, default=1_000, help="how many lives save so slowly")
parser.add_argument("--silent", action="store_true", help="do not call phalanx.step")
options = parser.parse_args()

import phalanx  # noqa: E402
import torch  # noqa: E402 - the launcher sees the rank before its imports
import torch.distributed as dist  # noqa: E402

CHECKPOINT = os.environ["PHALANX_TEST_STOP"] + ".checkpoint"


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


def save(weight, step):
    if dist.get_rank() == 0:
        report("saving", n=step)
        slow = SlowFile(CHECKPOINT + ".new")
        torch.save({"weight": weight.detach(), "step": step}, slow, _use_new_zipfile_serialization=False)
        slow.file.close()
        os.replace(CHECKPOINT + ".new", CHECKPOINT)
        report("saved", n=step)


def load(weight):
    if not os.path.exists(CHECKPOINT):
        return 0
    kept = torch.load(CHECKPOINT)
    weight.data.copy_(kept["weight"])
    return kept["step"]


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.01)
    stop = torch.zeros(1)
    step = load(weight)
    report("loaded", n=step)
    while True:
        step += 1
        optimizer.zero_grad()
        weight.square().sum().backward()
        dist.all_reduce(weight.grad)
        optimizer.step()
        if not options.silent:
            phalanx.step(step)
        report("step", n=step)
        if step % options.save_every == 0:
            save(weight, step)
        stop.fill_(os.path.exists(os.environ["PHALANX_TEST_STOP"]))
        dist.all_reduce(stop)
        if stop.item() > 0:
            break
        time.sleep(options.step_ms / 1000)
    dist.destroy_process_group()
    report("done")


if __name__ == "__main__":
    main()
