"""Pages of memory that a life writes before its first step are written ahead in the spares that come after it.

A fork shares the zygote's pages until it writes them: each is copied then, while somebody waits for the rank. A
training writes two or three thousand until its first step, whatever it does, as each use of an object counts in it. The
first life of a zygote tells which by /proc/self/pagemap; later spares have them copied while they wait. They cost no
memory that a rank would not take.
"""

import mmap
import os
import re

from phalanx._bootstrap import linux

_PAGES_MAX = 16384  # that a spare takes ahead: 64 MiB of 4 KiB
_RUNS_MAX = 16384
_WORD = 8
# The last byte of a page's entry, little-endian: bit 63 present, 61 of a file or shared, 56 mapped by nobody else
# (Documentation/admin-guide/mm/pagemap.rst of Linux).
_WRITTEN = re.compile(rb"\x81+")

_shared = None  # of the zygote and its forks: the number of runs, then of each its address and its bytes, u64
_inherited = []  # (start, end) of the zygote's memory that each fork has for itself


def share():
    """In the zygote, once all that forks share is there."""
    global _shared
    try:
        with open("/proc/self/maps", "rb") as file:
            lines = file.read().splitlines()
        _shared = mmap.mmap(-1, (1 + 2 * _RUNS_MAX) * _WORD)
    except OSError:
        return
    for line in lines:
        addresses, modes = line.split(None, 2)[:2]
        if modes[1:2] == b"w" and modes[3:4] == b"p":
            start, _, end = addresses.partition(b"-")
            _inherited.append((int(start, 16), int(end, 16)))


def learn():
    """In one rank of the node, behind its first step: a few milliseconds, once a zygote."""
    if _shared is None or _words()[0]:
        return
    try:
        fd = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return  # a kernel that shows none
    try:
        _keep(run for start, end in _inherited for run in _written(fd, start, end))
    except OSError:
        pass
    finally:
        os.close(fd)


def make_own():
    """In a spare that waits. Nothing changes in them but whose they are."""
    words = _words() if _shared is not None else (0,)
    for at in range(1, 1 + 2 * words[0], 2):
        if not linux.populate(words[at], words[at + 1]):
            return


def _words():
    return memoryview(_shared).cast("Q")


def _keep(runs):
    words, count, room_bytes = _words(), 0, _PAGES_MAX * mmap.PAGESIZE
    for start, size in runs:
        if count == _RUNS_MAX:
            break
        if size > room_bytes:
            continue
        words[1 + 2 * count], words[2 + 2 * count] = start, size
        count += 1
        room_bytes -= size
    words[0] = count  # last: a spare that is forked meanwhile takes none


def _written(fd, start, end):
    """(address, bytes) of each run of pages that this process alone has."""
    page = mmap.PAGESIZE
    entries = os.pread(fd, (end - start) // page * _WORD, start // page * _WORD)
    for run in _WRITTEN.finditer(entries[_WORD - 1 :: _WORD]):
        yield start + run.start() * page, (run.end() - run.start()) * page
