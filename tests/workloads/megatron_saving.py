"""Trains the GPT of tiny_megatron.py as Megatron-LM's loop does, and saves it by phalanx.checkpoint.adapters.megatron.
Says which loss each iteration has, and what all of this rank's state is."""

import argparse
import os
import signal

import pausing
import preparing
import tiny_megatron
from leaving import leave_group
from phalanx.checkpoint.adapters import megatron_dist
from phalanx.checkpoint.adapters.megatron import (
    Checkpointer,
    StorageType,
    load_checkpoint,
    save_checkpoint,
    use,
    wait_latest_checkpoint,
)
from report import report

report("main")  # behind the imports, as scripts have them: what stands before them keeps them from being made ahead
parser = argparse.ArgumentParser()
parser.add_argument("--save", required=True)
parser.add_argument("--load")
parser.add_argument("--tp", type=int, default=2)
parser.add_argument("--pp", type=int, default=2)
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--disk-every", type=int, default=0)
parser.add_argument("--distributed", action="store_true", help="with the distributed optimizer")
parser.add_argument("--hidden", type=int, default=16)
parser.add_argument("--keep-last", type=int)
parser.add_argument("--ckpt-format", default="torch")
parser.add_argument("--ckpt-step", type=int)
parser.add_argument("--finetune", action="store_true")
parser.add_argument("--replica-count", type=int, default=0)
parser.add_argument("--just-ends", action="store_true", help="waits for nothing behind its last save")
parser.add_argument("--save-loaded", action="store_true", help="to disk")
parser.add_argument("--die-loaded", action="store_true", help="in the first life, before anything is saved")
pausing.add_option(parser)
options = parser.parse_args()
options.load = options.load or options.save
preparing.tell()
preparing.tell_plans(megatron_dist.Files)

tiny_megatron.begin(options.tp, options.pp)
of_training = tiny_megatron.make(options.distributed, options.hidden)
if options.keep_last:
    use(Checkpointer(options.save, keep_last=options.keep_last))
try:
    step, flops = load_checkpoint(*of_training, args=options, replica_count=options.replica_count)
except RuntimeError as error:
    report("refused", why=str(error))
    raise SystemExit(3) from None
state = tiny_megatron.digest(*of_training)
report("loaded", n=step, flops=flops, state=state)
if options.die_loaded and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os.kill(os.getpid(), signal.SIGKILL)
if options.save_loaded:
    save_checkpoint(step, *of_training, args=options)
while step < options.steps:
    step += 1
    loss = tiny_megatron.train_step(*of_training, step)
    report("step", n=step, loss=loss, state=tiny_megatron.digest(*of_training))
    is_to_disk = options.disk_every and step % options.disk_every == 0
    storage_type = StorageType.DISK if is_to_disk else StorageType.MEMORY
    handle = save_checkpoint(
        step,
        *of_training,
        num_floating_point_operations_so_far=100 * step,
        storage_type=storage_type,
        replica_count=options.replica_count,
        args=options,
    )
    if options.just_ends and step == options.steps:
        break
    kept = handle.wait_stored() if is_to_disk else handle.wait_committed()
    report("saved", n=step, kept=kept, why=handle.why, held_ms=handle.held_ns // 1_000_000)
    if pausing.is_due(step, options.pause_at):
        pausing.wait_to_be_killed()
if not options.just_ends:
    wait_latest_checkpoint()
report("done", state=tiny_megatron.digest(*of_training))
if not options.just_ends:
    leave_group()  # by os._exit()
