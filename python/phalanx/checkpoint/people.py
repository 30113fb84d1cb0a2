"""What is told to people at once, who may look at no handle."""

import contextlib
import sys


def say(text):
    """A line of this rank's standard error, where there is one."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"phalanx.checkpoint: {text}\n")
        sys.stderr.flush()
