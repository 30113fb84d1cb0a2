"""Names of DLRover, on Phalanx: docs/dlrover.md says which, and what each one is here. Nothing is imported ahead."""

import sys

from dlrover.offered import Refuser

if not any(isinstance(finder, Refuser) for finder in sys.meta_path):
    sys.meta_path.append(Refuser())  # the last: asked for what nobody has
