"""torch.save and fsync, for toy_training.py."""

import os
from pathlib import Path

import torch
import toy_training


class Save(toy_training.Save):
    def __init__(self, path):
        self.path = path

    def end(self):
        self.path.unlink(missing_ok=True)


class TorchSave(toy_training.Way):
    def __init__(self, training):
        self.training = training
        Path(training.directory).mkdir(exist_ok=True)

    def save(self, step, to_disk):
        path = Path(self.training.directory) / f"{step}-{self.training.rank}.pt"
        if self.training.saves_here():
            with open(path, "wb") as file:
                torch.save(self.training.state_dict(), file)
                file.flush()
                os.fsync(file.fileno())
        return Save(path)


if __name__ == "__main__":
    toy_training.run(TorchSave)
