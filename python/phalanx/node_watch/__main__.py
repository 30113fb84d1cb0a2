"""The helper's door: `python -m phalanx.node_watch MILLISECONDS`."""

import os
import sys

# `-m` puts the working folder first, which is a job's, and may have a module by the name of one of Python's own.
if sys.path and sys.path[0] == os.getcwd() and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]

from phalanx._bootstrap import linux
from phalanx.node_watch import watch


def main():
    linux.die_with_parent(os.getppid())  # at the end of its stdin it ends as well, but where a driver holds it
    every_ms = int(sys.argv[1])
    lines = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no line of ours
    status = watch.main(every_ms / 1000, lambda text: os.write(lines, text.encode()))
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
