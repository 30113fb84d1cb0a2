"""Stands for the package megatron.training of Megatron-LM, where there is megatron-core alone: its args, and its own
save_checkpoint() and load_checkpoint() of one tensor and pipeline parallel rank, in the format torch."""

import argparse
import os
import sys
import types


def put(directory):
    """The args, which megatron.training.global_vars has from then on."""
    arguments, sys.argv = sys.argv, [sys.argv[0], "--tp=1", "--pp=1"]
    import megatron_stock

    sys.argv = arguments
    args = argparse.Namespace(save=directory, load=directory, ckpt_format="torch", finetune=False, iteration=0)

    def save_checkpoint(
        iteration, model, optimizer, opt_param_scheduler, num_floating_point_operations_so_far, *more, **named
    ):
        megatron_stock.options.save = args.save
        megatron_stock.save(iteration, model, optimizer, opt_param_scheduler)

    def load_checkpoint(model, optimizer, opt_param_scheduler, load_arg="load", strict=True, *more, **named):
        megatron_stock.options.load = getattr(args, load_arg)
        if not os.path.isfile(os.path.join(megatron_stock.options.load, "latest_checkpointed_iteration.txt")):
            return 0, 0
        return megatron_stock.load(model, optimizer, opt_param_scheduler), 7

    functions = {"save_checkpoint": save_checkpoint, "load_checkpoint": load_checkpoint}
    modules = {"": {}, ".global_vars": {"_GLOBAL_ARGS": args}, ".checkpointing": functions}
    for name, values in modules.items():
        module = types.ModuleType(f"megatron.training{name}")
        vars(module).update(values)
        sys.modules[module.__name__] = module
    return args
