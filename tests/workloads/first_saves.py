"""A training of a framework's, of matrices that are worth copying beside it. Reports what was made ready for its first
save, what was in that one's way, and when.

KIND FOLDER [--no-saves] [--closes]: huggingface, lightning, fabric or accelerate; with --closes fabric or accelerate,
before it trains. With --needs-loss Lightning's module saves a metric that there is behind its fourth step alone."""

import os
import sys

import preparing
import torch
from phalanx.checkpoint.adapters import saver
from report import report

kind, folder = sys.argv[1:3]
saves, closes, needs_loss = ("--no-saves" not in sys.argv, "--closes" in sys.argv, "--needs-loss" in sys.argv)
STEPS, EVERY, WIDTH = 6, 4, 192
torch.set_num_threads(1)
report("main")
preparing.tell()


def tell_saves():
    save = saver.Saver.save

    def told(self, step, *given, **named):
        handle = save(self, step, *given, **named)
        report("saved", n=step, why=handle.why)
        return handle

    saver.Saver.save = told


def layers():
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)))


def with_huggingface():
    import transformers
    from phalanx.checkpoint.adapters.huggingface import FlashCheckpoint

    words = torch.arange(8)
    config = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=WIDTH, n_layer=1, n_head=2)
    arguments = transformers.TrainingArguments(
        output_dir=folder,
        max_steps=STEPS,
        per_device_train_batch_size=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    data = [{"input_ids": words, "labels": words}] * 2 * STEPS
    trainer = transformers.Trainer(model=transformers.GPT2LMHeadModel(config), args=arguments, train_dataset=data)
    FlashCheckpoint(trainer, memory_steps=EVERY if saves else 0)
    trainer.train()


def with_lightning():
    import lightning.pytorch as pl
    from phalanx.checkpoint.adapters.lightning import FlashCheckpoint

    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = layers()

        def training_step(self, batch, index):
            loss = self.layers(batch[0]).square().mean()
            if self.global_step == EVERY - 1:
                self.log("loss", loss)
            return loss

        def on_save_checkpoint(self, checkpoint):
            if needs_loss:
                checkpoint["best"] = self.trainer.callback_metrics["loss"]

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    pl.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        callbacks=[FlashCheckpoint(folder, every_n_train_steps=EVERY if saves else 0)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    ).fit(Net(), torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.rand(4 * STEPS, WIDTH))))


def with_fabric():
    from lightning.fabric import Fabric
    from phalanx.checkpoint.adapters.fabric import FlashCheckpoint

    fabric = Fabric(accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy="ddp")
    fabric.launch()
    model = layers()
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters()))
    state = {"model": model, "optimizer": optimizer, "step": 0}
    flash = FlashCheckpoint(fabric, folder)
    flash.load(state)
    if closes:
        flash.close()
    while state["step"] < STEPS:
        fabric.backward(model(torch.rand(1, WIDTH)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        state["step"] += 1
        if state["step"] == EVERY and not closes:
            flash.save(state)
    flash.close()


def with_accelerate():
    from accelerate import Accelerator
    from phalanx.checkpoint.adapters.accelerate import FlashCheckpoint

    accelerator = Accelerator(cpu=True)
    model = layers()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    flash = FlashCheckpoint(accelerator, folder)
    if closes:
        flash.close()
    for step in range(1, STEPS + 1):
        accelerator.backward(model(torch.rand(1, WIDTH)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        if step == EVERY and not closes:
            flash.save_state(step)
    flash.close()


tell_saves()
kinds = {"huggingface": with_huggingface, "lightning": with_lightning}
kinds.update(fabric=with_fabric, accelerate=with_accelerate)
kinds[kind]()
report("done")
