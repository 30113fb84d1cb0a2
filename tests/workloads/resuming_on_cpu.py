"""Lets the Trainer of transformers 4 itself resume with several ranks on the CPU, as it does on GPUs: it has torch load
an optimizer's state for "cpu:0", as accelerate names their device, and torch knows "cpu" alone."""

import torch
import transformers


def let_resume():
    if transformers.__version__.startswith("4."):
        torch.serialization.register_package(
            5, lambda storage: None, lambda storage, location: storage if location == "cpu:0" else None
        )
