"""steps.py without torch: it joins, steps, dies and leaves as that does, in a tenth of the CPU time.

For tests whose subject is the launcher. tests/test_light_workloads.py holds the two to each other.
"""

import itertools

import stepping

stepping.begin()

import peers  # noqa: E402 - a death before this is one of the phases
import phalanx  # noqa: E402

MEGABYTES = bytes(4 << 20)


class LightTraining(stepping.Training):
    """One weight, and a process group of sockets."""

    def join(self):
        self.group = peers.join()
        return self.group.size

    def prepare(self):
        self.weight = self.group.all_reduce(float(self.group.rank == 0))  # that of rank 0, as DDP takes it

    def batches(self):
        return itertools.repeat(1.0)

    def step(self, batch, number):
        gradient = self.group.all_reduce(2 * self.weight * batch) / self.group.size
        self.weight -= 0.01 * gradient
        phalanx.step(number)

    def any_rank(self, flag):
        return self.group.all_reduce(float(flag)) > 0

    def reduce_megabytes(self):
        self.group.all_gather(MEGABYTES)

    def begin_to_reduce_megabytes(self):
        self.group.begin_all_gather(MEGABYTES)

    def leave(self):
        self.group.barrier()
        self.group.close()


if __name__ == "__main__":
    stepping.run(LightTraining())
