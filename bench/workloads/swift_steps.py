"""`swift sft` of the arguments in BENCH_SWIFT, a JSON list; tells of its steps and saves. Random weights and data are
made by bench/ms_swift.py."""

import json
import os
import sys
import time

import deepspeed
import transformers
from phalanx.checkpoint.adapters import flash, flash_deepspeed
from swift.pipelines import sft_main
from swift.trainers import mixin
from tell import tell

HANDLER = transformers.trainer_callback.CallbackHandler


def around(owner, name, told):
    """`told(result, seconds, arguments)` is called behind each call of `owner`'s function."""
    stock = getattr(owner, name)

    def timed(*arguments, **named):
        began_s = time.monotonic()
        result = stock(*arguments, **named)
        told(result, time.monotonic() - began_s, arguments)
        return result

    setattr(owner, name, timed)


def tell_with_cpu(event, **fields):
    """And what this process has computed since it began, which other programs of the machine lengthen less."""
    tell(event, cpu=time.process_time(), **fields)


def tell_of_training():
    counted = iter(range(1, 1 << 30))  # of this life

    def step_ended(result, seconds, arguments):
        tell_with_cpu("step", n=next(counted), step=arguments[2].global_step)

    around(HANDLER, "on_step_end", step_ended)
    around(HANDLER, "on_train_begin", lambda *_: tell_with_cpu("trainer"))
    around(deepspeed, "initialize", lambda *_: tell_with_cpu("engine"))


def tell_of_saves():
    def saved(result, seconds, arguments):
        tell("saved", step=arguments[1], seconds=seconds)

    def held(result, seconds, arguments):
        tell("held", step=arguments[0].state.global_step, seconds=seconds)

    def stored(result, seconds, arguments):
        tell("stored", step=arguments[1].step, is_so=arguments[1].stored, why=arguments[1].why)

    def converted(result, seconds, arguments):
        tell("converted", step=arguments[1], seconds=seconds, why=result)

    around(flash.Checkpointer, "save_to_storage", saved)
    around(mixin.SwiftMixin, "_save_checkpoint", held)
    around(flash.Checkpointer, "_on_stored", stored)
    around(flash_deepspeed, "convert", converted)


if __name__ == "__main__":
    tell_with_cpu("imported")
    # A faster all-reduce, which DeepSpeed would compile for a minute.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    tell_of_training()
    tell_of_saves()
    sys.argv[1:] = json.loads(os.environ["BENCH_SWIFT"])
    sft_main()
