"""`python -m phalanx.run ...` is `phalanx-run ...`; `main(args)` and `run(namespace)` are as torch.distributed.run's,
and its helper functions (`get_args_parser`, `config_from_args`, ...) are torch's own.

Called from a program, a job runs in a phalanx-run below it: docs/python.md, "Calling it from Python".
"""

import os
import sys

from phalanx._launch import flags, process, torch_names
from phalanx.shim import notice

_LAUNCHER = ("LaunchConfig", "elastic_launch")


def main(args=None):
    """Runs a job with `args` (default: the arguments of this process) to its end.

    Returns where all workers ended with 0. Raises torch's ChildFailedError where workers failed, its SignalException
    where the job was stopped by a signal, UsageError (a SystemExit and a ValueError) on wrong usage, SystemExit for
    --help, and LaunchError where the job did not come about.
    """
    arguments = sys.argv[1:] if args is None else [str(argument) for argument in args]
    process.raise_unless_succeeded(process.run_node(arguments))


def run(args):
    """As main, for what torch's own parser has made of a command line (torch.distributed.run.parse_args)."""
    main(flags.from_namespace(vars(args), flags.torch_defaults()))


def __getattr__(name):
    if name in _LAUNCHER:
        from phalanx import launcher

        return getattr(launcher, name)
    return torch_names.find(name, __name__, "torch.distributed.run", torch_names.RUN)


def __dir__():
    return sorted({*globals(), *_LAUNCHER, *torch_names.RUN})


def become_command(arguments):
    """This process becomes phalanx-run. Returns only where it cannot: an exit status."""
    command = process.find_command()
    if command is None:
        sys.stderr.write(f"phalanx.run: {process.missing_command()}\n")
        return 2
    sys.stdout.flush()
    sys.stderr.flush()
    notice.launched(os.environ)
    try:
        os.execve(command, [command, *arguments], process.environment_for(command, os.environ))
    except OSError as error:
        sys.stderr.write(f"phalanx.run: cannot start {command}: {error.strerror}\n")
    return 2


if __name__ == "__main__":
    sys.exit(become_command(sys.argv[1:]))
