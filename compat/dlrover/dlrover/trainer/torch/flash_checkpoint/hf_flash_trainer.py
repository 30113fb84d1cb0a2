"""FlashCkptTrainer, apart from what needs no transformers."""

import os

from phalanx.checkpoint.adapters.huggingface import FlashTrainer
from transformers.trainer_utils import get_last_checkpoint

OFFERED = {}


class FlashCkptTrainer(FlashTrainer):
    """Saves to storage where the Trainer would, and to memory in between."""

    def get_last_checkpoint(self):
        """The path of the newest checkpoint-N; False where there is none."""
        output = self.args.output_dir
        return (get_last_checkpoint(output) if os.path.isdir(output) else None) or False

    def wait_latest_checkpoint(self, timeout=1800):
        """Not needed: train() returns when the last checkpoint-N is there."""
