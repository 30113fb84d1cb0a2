"""`python -m phalanx.distributed.run ...` is `phalanx-run ...`; to import, it is phalanx.run."""

import sys

import phalanx.run
from phalanx.run import become_command, main, run

__all__ = ["main", "run"]


def __getattr__(name):
    return getattr(phalanx.run, name)


def __dir__():
    return dir(phalanx.run)


if __name__ == "__main__":
    sys.exit(become_command(sys.argv[1:]))
