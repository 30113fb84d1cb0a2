"""A training of a framework's, of one rank, in which saves to memory through phalanx.checkpoint.adapters and the
framework's own saves take turns. BENCH_SAVES: the framework, MiB of state, rounds. Tells how long each held the
training."""

import os
import tempfile
import time

import torch
from tell import tell

framework, *numbers = os.environ["BENCH_SAVES"].split()
mib, rounds = map(int, numbers)
WIDTH, PLAIN, WORDS = 512, 3, 64  # PLAIN: steps between two saves
folder = tempfile.mkdtemp(dir=os.environ["TMPDIR"])
torch.set_num_threads(1)


class Turns:
    """Which save is made behind a step. `flash()` returns a SaveHandle."""

    def __init__(self, flash, own):
        self._flash, self._own = flash, own
        self._step = 0
        self._handle = self._returned_ns = None

    def after_step(self):
        if self._handle is not None:  # the step behind it has waited for what it had to
            later_ns = self._handle.held_ns - self._returned_ns
            tell("held", who="phalanx", seconds=self._took_s + later_ns / 1e9, why=self._handle.why)
            self._handle = None
        self._step += 1
        turn, rest = divmod(self._step, PLAIN)
        if rest:
            return
        began_s = time.monotonic()
        if turn % 2:
            self._handle = self._flash()
            self._took_s, self._returned_ns = time.monotonic() - began_s, self._handle.held_ns
        else:
            self._own()
            tell("held", who="own", seconds=time.monotonic() - began_s, why=None)

    steps = (2 * (rounds + 1) + 1) * PLAIN  # of each the first is thrown away by who reads


def layers():
    """AdamW's state is twice the weights."""
    each = 4 * 3 * WIDTH * WIDTH
    return [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(max(1, (mib << 20) // each))]


def with_hugging_face():
    import transformers
    from phalanx.checkpoint.adapters.huggingface import FlashCheckpoint

    per_layer = 12 * WIDTH * WIDTH * 12
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=16, n_embd=WIDTH, n_layer=max(1, (mib << 20) // per_layer), n_head=8
    )
    words = torch.arange(8)
    arguments = transformers.TrainingArguments(
        output_dir=folder,
        max_steps=Turns.steps,
        per_device_train_batch_size=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        logging_steps=1,
        save_total_limit=1,
    )
    data = [{"input_ids": words, "labels": words}] * Turns.steps
    trainer = transformers.Trainer(model=transformers.GPT2LMHeadModel(config), args=arguments, train_dataset=data)
    own_save = trainer._save_checkpoint
    flash = FlashCheckpoint(trainer, memory_steps=0)
    turns = Turns(lambda: flash.save(), lambda: own_save(trainer.model, None))

    class Watch(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **more):
            turns.after_step()

    trainer.add_callback(Watch())
    trainer.train()


def with_lightning():
    import lightning.pytorch as pl
    from phalanx.checkpoint.adapters.lightning import FlashCheckpoint

    flash = FlashCheckpoint(folder, every_n_train_steps=0)
    own = os.path.join(folder, "own.ckpt")

    def own_save(trainer):
        dumped = trainer._checkpoint_connector.dump_checkpoint(False)
        type(trainer.strategy).save_checkpoint(trainer.strategy, dumped, own)

    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(*layers())

        def training_step(self, batch, index):
            return self.layers(batch[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

        def on_train_start(self):
            self.turns = Turns(
                lambda: flash.save(self.trainer),
                lambda: own_save(self.trainer),
            )

        def on_train_batch_end(self, *given):
            self.turns.after_step()

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.rand(Turns.steps, WIDTH)))
    pl.Trainer(
        max_steps=Turns.steps,
        accelerator="cpu",
        devices=1,
        callbacks=[flash],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    ).fit(Net(), data)


def with_accelerate():
    from accelerate import Accelerator
    from phalanx.checkpoint.adapters.accelerate import FlashCheckpoint

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Sequential(*layers())
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    flash = FlashCheckpoint(accelerator, os.path.join(folder, "out"))
    done = iter(range(1, 1 << 30))
    turns = Turns(lambda: flash.save_state(next(done)), lambda: accelerator.save_state(os.path.join(folder, "own")))
    for _ in range(Turns.steps):
        accelerator.backward(model(torch.rand(1, WIDTH)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        turns.after_step()
    flash.close()


{"huggingface": with_hugging_face, "lightning": with_lightning, "accelerate": with_accelerate}[framework]()
tell("over")
