"""Trains the GPT of tiny_megatron.py and saves it by Megatron-LM's own megatron.training.checkpointing, or by
phalanx.checkpoint.adapters.megatron through that. Megatron-LM is a checkout on PYTHONPATH."""

import argparse
import sys

from report import report

report("main")

import tiny_megatron  # noqa: E402
from leaving import leave_group  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("--save", required=True)
parser.add_argument("--load")
parser.add_argument("--stock", action="store_true", help="nothing of ours")
parser.add_argument("--tp", type=int, default=2)
parser.add_argument("--pp", type=int, default=2)
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--disk-every", type=int, default=0)
parser.add_argument("--distributed", action="store_true")
parser.add_argument("--ckpt-format", default="torch")
options = parser.parse_args()


def args_of_megatron():
    from megatron.training.arguments import parse_args
    from megatron.training.global_vars import set_args

    sys.argv = [
        *("pretrain_gpt.py", "--num-layers", "2", "--hidden-size", "16", "--num-attention-heads", "4"),
        *("--save", options.save, "--load", options.load or options.save, "--ckpt-format", options.ckpt_format),
        *("--tensor-model-parallel-size", str(options.tp), "--pipeline-model-parallel-size", str(options.pp)),
        *(["--use-distributed-optimizer"] if options.distributed else []),
    ]
    args = parse_args()
    args.use_dist_ckpt = options.ckpt_format != "torch"
    args.data_parallel_size = args.world_size // (options.tp * options.pp)
    args.consumed_train_samples = args.skipped_train_samples = args.consumed_valid_samples = 0
    set_args(args)


tiny_megatron.begin(options.tp, options.pp)
args_of_megatron()
if options.stock:
    from megatron.training.checkpointing import load_checkpoint, save_checkpoint
else:
    from phalanx.checkpoint.adapters.megatron import (
        StorageType,
        load_checkpoint,
        save_checkpoint,
        wait_latest_checkpoint,
    )

of_training = tiny_megatron.make(options.distributed)
step, flops = load_checkpoint(*of_training)
report("loaded", n=step, flops=flops, state=tiny_megatron.digest(*of_training))
while step < options.steps:
    step += 1
    loss = tiny_megatron.train_step(*of_training, step)
    report("step", n=step, loss=loss, state=tiny_megatron.digest(*of_training))
    is_to_disk = options.disk_every and step % options.disk_every == 0
    if options.stock:
        if is_to_disk:
            save_checkpoint(step, *of_training, 100 * step)
        continue
    to = StorageType.DISK if is_to_disk else StorageType.MEMORY
    handle = save_checkpoint(step, *of_training, 100 * step, storage_type=to)
    kept = handle.wait_stored() if is_to_disk else handle.wait_committed()
    report("saved", n=step, kept=kept, why=handle.why)
if not options.stock:
    wait_latest_checkpoint()
report("done", state=tiny_megatron.digest(*of_training))
sys.stdout.flush()
leave_group()
