"""Lightning's Trainer with dropout and a shuffled data set, saved for by phalanx.checkpoint.adapters.lightning, or by
ModelCheckpoint alone (--stock, --io). Tells the loss of each step, and what the weights are at the end."""

import argparse
import os
import signal

import lightning.pytorch as pl
import torch
from flash_files import die_at_file, digest_of, files_now
from leaving import leave_group
from report import report

parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--save-steps", type=int, default=4)
parser.add_argument("--memory-steps", type=int, default=1)
parser.add_argument("--top", type=int, default=-1)
parser.add_argument("--stock", action="store_true")
parser.add_argument("--io", action="store_true", help="ModelCheckpoint alone, through our CheckpointIO")
parser.add_argument("--load", help="the file to go on from")
parser.add_argument("--die-at", type=int, default=-1, help="in the first life, rank 1 behind that step")
parser.add_argument("--die-at-start", action="store_true", help="the same before its first step")
parser.add_argument("--die-publishing", help="rank 0, in the first life, before a file of that name appears")
parser.add_argument("--other", help="the folder of a second ModelCheckpoint")
parser.add_argument("--averages", action="store_true", help="weights, of a larger model")
parser.add_argument("--parameters", action="store_true", help="a module among them")
parser.add_argument("--test", nargs="*", default=[], help="behind fit(): each ckpt_path of test(), or as-it-is")
parser.add_argument("--save-behind", help="behind fit(): a file that is saved, and is to be there at once")
parser.add_argument("--restarts-of-rank-1", help="as where another node's torchrun counts them")
options = parser.parse_args()

if options.restarts_of_rank_1 and os.environ["RANK"] == "1":
    os.environ["TORCHELASTIC_RESTART_COUNT"] = options.restarts_of_rank_1
FIRST_LIFE = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        if options.parameters:
            self.save_hyperparameters({"head": torch.nn.Linear(2, 1)})
        width = 200_000 if options.averages else 64
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Dropout(0.5), torch.nn.Linear(width, 1))

    def training_step(self, batch, index):
        if FIRST_LIFE and os.environ["RANK"] == "1" and self.trainer.global_step == options.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        (x,) = batch
        loss = (self.layers(x) - x.sum(1, keepdim=True)).pow(2).mean()
        report("loss", n=self.trainer.global_step, loss=loss.item())
        return loss

    def test_step(self, batch, index):
        report("tested", weights=digest_of(self.state_dict()))

    def on_train_start(self):
        report("begin", n=self.trainer.global_step)
        if FIRST_LIFE and os.environ["RANK"] == "1" and options.die_at_start:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_save_checkpoint(self, checkpoint):
        report("asked", n=self.trainer.global_step)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 0.01)


torch.set_num_threads(1)
pl.seed_everything(3)
report("main")
# One batch of each epoch, so that no order of data is lost in the middle of one.
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.rand(8, 4)), batch_size=4)
keep = pl.callbacks.ModelCheckpoint(
    dirpath=options.folder,
    every_n_train_steps=options.save_steps,
    save_top_k=options.top,
    monitor="step" if options.top > 0 else None,
    mode="max",
    save_last=True,
)
callbacks = [keep]
if options.other:
    callbacks.append(pl.callbacks.ModelCheckpoint(dirpath=options.other, every_n_train_steps=options.save_steps))
if options.averages:
    callbacks.append(pl.callbacks.WeightAveraging())
plugins = []
if options.io:
    from phalanx.checkpoint.adapters.lightning_io import FlashCheckpointIO

    plugins.append(FlashCheckpointIO())
elif not options.stock:
    from phalanx.checkpoint.adapters.lightning import FlashCheckpoint

    callbacks.append(FlashCheckpoint(options.folder, every_n_train_steps=options.memory_steps))
    if FIRST_LIFE and options.die_publishing:
        die_at_file(options.die_publishing, options.folder)
net = Net()
trainer = pl.Trainer(
    max_steps=options.steps,
    accelerator="cpu",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    strategy="ddp",
    callbacks=callbacks,
    plugins=plugins,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(net, data, ckpt_path=options.load)
report("done", n=trainer.global_step, weights=digest_of(net.state_dict()), files=files_now(options.folder))
if options.save_behind:
    trainer.save_checkpoint(options.save_behind)
    report("behind", files=files_now(options.folder))
for path in options.test:
    trainer.test(net, data, ckpt_path=None if path == "as-it-is" else path)
if options.restarts_of_rank_1:
    leave_group()
