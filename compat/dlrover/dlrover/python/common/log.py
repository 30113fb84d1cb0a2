"""The logger that scripts of DLRover's print by."""

import logging
import os
import sys

from dlrover.offered import SAME, getter

OFFERED = {"default_logger": (SAME, "lines on stderr, from DLROVER_LOG_LEVEL on (INFO)")}
__getattr__ = getter(__name__, {})


class _OnStderr(logging.StreamHandler):
    """What sys.stderr is by then: this module may have been imported ahead of the rank."""

    def __init__(self):
        logging.Handler.__init__(self)

    @property
    def stream(self):
        return sys.stderr


def _made():
    found = logging.getLogger("dlrover")
    if not found.handlers:
        handler = _OnStderr()
        handler.setFormatter(logging.Formatter("[%(asctime)s] [%(levelname)s] [%(filename)s:%(lineno)d] %(message)s"))
        found.addHandler(handler)
        found.propagate = False
        level = os.environ.get("DLROVER_LOG_LEVEL", "").upper()
        found.setLevel(level if level in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL") else "INFO")
    return found


default_logger = _made()
