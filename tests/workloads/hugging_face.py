"""Hugging Face's Trainer, with its own checkpoints and without a line of ours: FOLDER, and the step at which rank 1
dies in its first life."""

import glob
import os
import signal
import sys

import resuming_on_cpu
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

folder, dies_at = sys.argv[1], int(sys.argv[2])


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, labels=None):
        told = self.layer(x).squeeze(-1)
        return {"loss": ((told - labels) ** 2).mean(), "logits": told}


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4_000

    def __getitem__(self, index):
        x = torch.full((4,), index / 4_000)
        return {"x": x, "labels": x.sum()}


class Dies(TrainerCallback):
    def on_step_begin(self, args, state, control, **more):
        first_life = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if first_life and os.environ["RANK"] == "1" and state.global_step == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)


arguments = TrainingArguments(
    output_dir=folder,
    max_steps=40,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    save_steps=10,
    report_to=[],
    use_cpu=True,
    ddp_backend="gloo",
    disable_tqdm=True,
)
resuming_on_cpu.let_resume()
trainer = Trainer(model=Net(), args=arguments, train_dataset=Data(), callbacks=[Dies()])
trainer.train(resume_from_checkpoint=bool(glob.glob(f"{folder}/checkpoint-*")))
sys.stdout.write(f"done at {trainer.state.global_step}\n")
