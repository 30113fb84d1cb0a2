"""The disk as it is, for what is compared with it."""

import concurrent.futures
import os
import time

BLOCK = 4 << 20
DEPTH = 8


def write_raw(path, data, again):
    """Seconds to write `data` (page-aligned memory of whole blocks) past the page cache and sync it: by as many threads
    as Phalanx has writes under way, and nothing else. `again`: over the file that is there, else to a new one, which
    is gone afterwards."""
    if not again:
        path.unlink(missing_ok=True)
    began = time.monotonic()
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
    if not again:
        os.posix_fallocate(fd, 0, len(data))
    with concurrent.futures.ThreadPoolExecutor(DEPTH) as threads:
        blocks = range(0, len(data), BLOCK)
        assert all(n == BLOCK for n in threads.map(lambda at: os.pwrite(fd, data[at : at + BLOCK], at), blocks))
    os.fsync(fd)
    took_s = time.monotonic() - began
    os.close(fd)
    if not again:
        path.unlink()
    return took_s
