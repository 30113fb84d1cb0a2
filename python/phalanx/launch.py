"""`python -m phalanx.launch ...` is torch's deprecated `python -m torch.distributed.launch ...`: phalanx-run, but that
the script gets `--local-rank=N` as its first argument unless `--use-env` is given. torchrun's own form is phalanx.run.
"""

import sys

from phalanx import run as _run
from phalanx._launch import flags, torch_names
from phalanx.run import run


def main(args=None):
    """As phalanx.run.main, for arguments of torch.distributed.launch."""
    _run.main([flags.AS_TORCH_LAUNCH, *(sys.argv[1:] if args is None else args)])


def launch(args):
    """As phalanx.run.run, for what `parse_args` has made of a command line."""
    if args.no_python and not args.use_env:
        raise ValueError("When using the '--no-python' flag, you must also set the '--use-env' flag.")
    run(args)


def __getattr__(name):
    return torch_names.find(name, __name__, "torch.distributed.launch", torch_names.LAUNCH)


def __dir__():
    return sorted({*globals(), *torch_names.LAUNCH})


def become_command(arguments):
    """As phalanx.run's."""
    return _run.become_command([flags.AS_TORCH_LAUNCH, *arguments])


if __name__ == "__main__":
    sys.exit(become_command(sys.argv[1:]))
