"""rescaling.py without torch, for tests whose subject is the launcher. It has no optimizer to be watched."""

from report import report

report("main")

import struct  # noqa: E402 - the launcher sees the rank before its imports

import changing_size  # noqa: E402
import peers  # noqa: E402


class LightTraining(changing_size.Training):
    def join(self):
        self.group = peers.join()
        self.weight = 1.0

    def step(self):
        self.weight -= 0.01

    def all_ranks(self, number):
        return [struct.unpack("<q", one)[0] for one in self.group.all_gather(struct.pack("<q", number))]

    def any_rank(self, flag):
        return self.group.all_reduce(float(flag)) > 0

    def leave(self):
        self.group.close()


if __name__ == "__main__":
    changing_size.run(LightTraining())
