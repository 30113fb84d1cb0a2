"""`python -m phalanx.distributed.run ...` is `phalanx-run ...`."""

import sys

from phalanx.run import main

if __name__ == "__main__":
    sys.exit(main())
