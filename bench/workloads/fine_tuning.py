#!/usr/bin/env python3
"""A small fine-tuning as its scripts begin: arguments are read, then transformers and accelerate imported. It tells the
benchmark of itself as ddp_steps.py does.
"""

import argparse
import os
import time

from tell import tell

BEGAN = time.monotonic()
parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()

import torch  # noqa: E402 - behind the arguments, so that --help is quick
from accelerate import Accelerator  # noqa: E402
from accelerate.utils import set_seed  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM, get_scheduler  # noqa: E402

tell("main", BEGAN)
tell("imported")


def main():
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    tell("group")
    set_seed(options.seed)
    sizes = {"n_layer": 1, "n_embd": 32, "n_head": 2, "n_positions": 64, "vocab_size": 128}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", **sizes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = get_scheduler("linear", optimizer, num_warmup_steps=1, num_training_steps=1000)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    tokens = torch.randint(0, 128, (4, 32))
    tell("model")
    stop, number = torch.zeros(1), 0
    while not stop.item():
        accelerator.backward(model(input_ids=tokens, labels=tokens).loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        stop = accelerator.reduce(torch.tensor([float(os.path.exists(os.environ["BENCH_STOP"]))]))
        number += 1
        if number <= 3 or number % 25 == 0:
            tell("step", n=number)
    accelerator.end_training()
    tell("done")


if __name__ == "__main__":
    main()
