"""`phalanx-preprocess`, and `python -m phalanx.preprocess`."""

import sys

from phalanx.preprocess.run import main

if __name__ == "__main__":
    sys.exit(main())
