"""A training of a framework's, of one rank, in which saves to memory through phalanx.checkpoint.adapters and the
framework's own saves take turns. BENCH_SAVES: the framework, MiB of state, rounds. Tells how long each held the
training."""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import torch
from tell import tell

framework, *numbers = os.environ["BENCH_SAVES"].split()
mib, rounds = map(int, numbers)
WIDTH, WORDS = 512, 64
FIRST, PLAIN = 10, 3  # steps before the first save, and between two
folder = tempfile.mkdtemp(dir=os.environ["TMPDIR"])
torch.set_num_threads(1)


def tell_readying():
    """How long the training is held for what is made ready behind its first step."""
    from phalanx.checkpoint.adapters import early

    now = early.Early.now

    def timed(self):
        is_due, began_s = self._is_due, time.monotonic()
        now(self)
        if is_due:
            tell("ready", seconds=time.monotonic() - began_s)

    early.Early.now = timed


class Turns:
    """Which save is made behind a step. `flash()` returns a SaveHandle."""

    def __init__(self, flash, own):
        self._flash, self._own = flash, own
        self._step = 0
        self._handle = self._returned_ns = None

    def after_step(self):
        if self._handle is not None:  # the step behind it has waited for what it had to
            later_ns = self._handle.held_ns - self._returned_ns
            collected = self._took_s - self._returned_ns / 1e9
            took = {"seconds": self._took_s + later_ns / 1e9, "collected": collected, "cpu": self._cpu_s}
            tell("held", who="phalanx", why=self._handle.why, **took)
            self._handle = None
        self._step += 1
        turn, rest = divmod(self._step - FIRST, PLAIN)
        if rest or turn < 0:
            return
        began_s, cpu_s = time.monotonic(), time.thread_time()
        if turn % 2 == 0:
            self._handle = self._flash()
            self._took_s, self._returned_ns = time.monotonic() - began_s, self._handle.held_ns
            self._cpu_s = time.thread_time() - cpu_s
        else:
            self._own()
            tell("held", who="own", seconds=time.monotonic() - began_s, why=None)

    steps = FIRST + (2 * (rounds + 1) + 1) * PLAIN  # of each the first is thrown away by who reads


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
        save_strategy="steps",
        save_steps=Turns.steps,  # one that comes when all is measured
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

    flash = FlashCheckpoint(folder, every_n_train_steps=Turns.steps)  # one that would come when all is measured
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
    flash.load_state()
    done = iter(range(1, 1 << 30))
    turns = Turns(lambda: flash.save_state(next(done)), lambda: accelerator.save_state(os.path.join(folder, "own")))
    for _ in range(Turns.steps):
        accelerator.backward(model(torch.rand(1, WIDTH)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        turns.after_step()
    flash.close()


def with_fabric():
    from lightning.fabric import Fabric
    from phalanx.checkpoint.adapters.fabric import FlashCheckpoint

    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    model = torch.nn.Sequential(*layers())
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters()))
    flash = FlashCheckpoint(fabric, os.path.join(folder, "out"))
    state = {"model": model, "optimizer": optimizer, "step": 0}
    flash.load(state)
    whole = {**state, "step": "is Fabric's own to save"}
    turns = Turns(lambda: flash.save(state), lambda: fabric.save(os.path.join(folder, "own.ckpt"), whole))
    for _ in range(Turns.steps):
        fabric.backward(model(torch.rand(1, WIDTH)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        state["step"] += 1
        turns.after_step()
    flash.close()


def with_megatron(ckpt_format):
    sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "tests" / "workloads"))
    import tiny_megatron
    from phalanx.checkpoint.adapters import megatron, megatron_state
    from phalanx.checkpoint.handle import Storage

    tiny_megatron.begin(1, 1)
    per_layer = 12 * WIDTH * WIDTH * 12
    of_training = tiny_megatron.make(False, WIDTH, layers=max(1, (mib << 20) // per_layer))
    ckpt = megatron.Checkpointer(os.path.join(folder, "out"), ckpt_format=ckpt_format)
    ckpt.load(*of_training, args=argparse.Namespace(load=None))
    done = iter(range(1, 1 << 30))

    def own_save():
        if ckpt_format == "torch":
            state = megatron_state.collect(None, 0, *of_training, 0, folder)
            torch.save(next(iter(state.values())), os.path.join(folder, "own.pt"))
            return
        from megatron.core import dist_checkpointing

        own = tempfile.mkdtemp(dir=folder)
        metadata = megatron_state.content_metadata(of_training[1])
        dist_checkpointing.save(megatron_state.sharded(None, 0, *of_training, 0, metadata), own)

    turns = Turns(lambda: ckpt.save(next(done), *of_training, storage=Storage.MEMORY), own_save)
    for step in range(Turns.steps):
        tiny_megatron.train_step(*of_training, step)
        turns.after_step()
    ckpt.close()


def main():
    tell_readying()
    {
        "huggingface": with_hugging_face,
        "lightning": with_lightning,
        "fabric": with_fabric,
        "accelerate": with_accelerate,
        "megatron": lambda: with_megatron("torch"),
        "megatron-dist": lambda: with_megatron("torch_dist"),
    }[framework]()


if __name__ == "__main__":  # of a save, megatron-core starts processes that import this
    main()
    tell("over")
