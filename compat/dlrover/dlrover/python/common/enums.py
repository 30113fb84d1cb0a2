"""Nothing of DLRover's is here but the sentence for what is asked for."""

from dlrover.offered import getter

OFFERED = {}
REFUSED = {
    "FailoverStrategy": "what a worker's end means is decided by phalanx-master: --max-restarts, --restart-window, "
    "--retry-same-error and --watch say how"
}
__getattr__ = getter(__name__, REFUSED)
