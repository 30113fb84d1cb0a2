"""The command dlrover-run: this process becomes phalanx-run."""

import sys

from dlrover.offered import BETTER
from dlrover.trainer.torch import elastic_run

OFFERED = {"main": (BETTER, "the command dlrover-run, also as python -m dlrover.trainer.torch.main")}


def main():
    """Returns only where nothing is started: the exit status."""
    from phalanx import run

    try:
        arguments = elastic_run.taken_on(sys.argv[1:])
    except elastic_run.UsageError as error:
        sys.stderr.write(f"dlrover-run: error: {error}\n")
        return 2
    return 0 if arguments is None else run.become_command(arguments)


if __name__ == "__main__":
    sys.exit(main())
