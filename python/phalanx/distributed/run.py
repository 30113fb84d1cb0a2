"""`python -m phalanx.distributed.run ...` is `phalanx-run ...`; to import, it is phalanx.run."""

import sys

from phalanx.run import become_command, main, run

__all__ = ["main", "run"]

if __name__ == "__main__":
    sys.exit(become_command(sys.argv[1:]))
