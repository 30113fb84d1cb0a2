"""Writing to the folder that checkpoints go to."""

import os
import tempfile
import time

from phalanx.node_check.results import Failed, Skipped, mb_per_s, value
from phalanx.node_check.texts import of_errno, seconds

BYTES = 64 << 20
_CHUNK = os.urandom(1 << 20)  # a file system that compresses finds nothing to save


def write(directory):
    if not directory:
        raise Skipped("no directory is given to write to")
    try:
        fd = _nameless_file(directory)
        try:
            elapsed_s = _write(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise Failed(f"{of_errno(error)} ({directory})") from None
    sentence = f"wrote {BYTES >> 20} MiB into {directory} in {seconds(elapsed_s)}"
    return sentence, [value("disk_write", "MB/s", mb_per_s(BYTES, elapsed_s), "more")]


def _nameless_file(directory):
    """A file that is gone with this process, however that ends."""
    fd, path = tempfile.mkstemp(prefix=".phalanx-node-check-", dir=directory)
    try:
        os.unlink(path)
    except OSError:
        os.close(fd)
        raise
    return fd


def _write(fd):
    began = time.monotonic()
    left = BYTES
    while left:
        left -= os.write(fd, _CHUNK[: min(left, len(_CHUNK))])
    os.fsync(fd)
    return time.monotonic() - began
