"""Lightning's Trainer, with its own checkpoints and without a line of ours: FOLDER, and the step at which rank 1 dies
in its first life."""

import os
import signal
import sys

import lightning.pytorch as pl
import torch

folder, dies_at = sys.argv[1], int(sys.argv[2])


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        first_life = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if first_life and os.environ["RANK"] == "1" and self.trainer.global_step == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        (x,) = batch
        return (self.layer(x) - x.sum(1, keepdim=True)).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.rand(4_000, 4)), batch_size=4)
keep = pl.callbacks.ModelCheckpoint(dirpath=folder, every_n_train_steps=10, save_last=True)
trainer = pl.Trainer(
    max_steps=40,
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    callbacks=[keep],
    logger=False,
    enable_progress_bar=False,
    accumulate_grad_batches=2,
)
last = f"{folder}/last.ckpt"
trainer.fit(Net(), data, ckpt_path=last if os.path.exists(last) else None)
sys.stdout.write(f"done at {trainer.global_step}\n")
