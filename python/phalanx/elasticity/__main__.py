"""python -m phalanx.elasticity -c ds_config.json [-w WORLD_SIZE]: prints what DeepSpeed's ds_elastic printed."""

import argparse
import json
import sys

from phalanx.elasticity import ElasticityError, compute_elastic_config

_LINE = "-" * 42
_TARGET_VERSION = "0.16.5"
# What a file that cannot be read, or a configuration that is refused, raises.
_REFUSALS = (
    *(OSError, ElasticityError, ArithmeticError, AssertionError, AttributeError, RuntimeError),
    *(TypeError, ValueError),
)


def _read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def _print(title, text):
    print(f"{_LINE}\n{title}\n{_LINE}\n{text}")


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m phalanx.elasticity", description="Shows an elastic batch plan.")
    parser.add_argument("-c", "--config", required=True, help="DeepSpeed config, JSON")
    parser.add_argument("-w", "--world-size", type=int, default=0, help="GPUs to show the micro batch for")
    options = parser.parse_args(arguments)
    try:
        config = _read(options.config)
        if isinstance(config, dict) and "elasticity" in config:
            _print("Elasticity config:", json.dumps(config["elasticity"], indent=4, sort_keys=True))
        size = max(options.world_size, 0)
        plan = compute_elastic_config(config, _TARGET_VERSION, world_size=size)
    except _REFUSALS as error:
        print(f"phalanx.elasticity: {options.config}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    names = ("final_batch_size ....", "valid_gpus ..........", "micro_batch_size ....")
    title = f"Calculated results for world size {size}:" if size > 0 else "Calculated results:"
    _print(title, "\n".join(f"{name} {value}" for name, value in zip(names, plan)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
