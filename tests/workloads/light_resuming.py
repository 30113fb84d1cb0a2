"""resuming.py without torch, for tests whose subject is the launcher. Its saves are counted by phalanx.saving."""

import going_on

going_on.begin()

import json  # noqa: E402 - the launcher sees the rank before its imports

import peers  # noqa: E402
import phalanx  # noqa: E402


class LightTraining(going_on.Training):
    def join(self):
        self.group = peers.join()
        self.weight = 1.0

    def stand_at(self, step):
        phalanx.step(step)

    def step(self):
        self.weight -= 0.01 * self.group.all_reduce(2 * self.weight)

    def save(self, file, step):
        with phalanx.saving():
            file.write(json.dumps({"weight": self.weight, "step": step}).encode())
            file.flush()
            file.flush()  # twice, as torch.save does

    def load(self, path):
        with open(path) as file:
            kept = json.load(file)
        self.weight = kept["weight"]
        return kept["step"]

    def any_rank(self, flag):
        return self.group.all_reduce(float(flag)) > 0

    def leave(self):
        self.group.close()


if __name__ == "__main__":
    going_on.run(LightTraining())
