"""Pages of memory that a life writes before its first step are written ahead in the spares that come after it.

A fork shares the zygote's pages until it writes them: each is copied then, while somebody waits for the rank. A
training writes two or three thousand until its first step, whatever it does, as each use of an object counts in it. The
first life of a zygote tells which by /proc/self/pagemap; later spares have them copied while they wait.
"""

import itertools
import mmap
import os
import re

from phalanx._bootstrap import linux

_BYTES_MAX = 64 << 20  # that a spare takes ahead
_RUNS_MAX = 16384
_MAPPING_BYTES_MAX = 1 << 30  # more is room that somebody has reserved
_WORD = 8
_PAGES_AT_A_TIME = 1 << 16
# The last byte of a page's entry, little-endian: bit 63 present, 61 of a file or shared, 56 mapped by nobody else
# (Documentation/admin-guide/mm/pagemap.rst of Linux).
_WRITTEN = re.compile(rb"\x81+")

_shared = None  # of the zygote and its forks: the number of runs, then of each its address and its bytes, u64
_inherited = []  # (start, end) of the zygote's memory that each fork has for itself
_learns = False  # this process is who tells
_before_fork = None  # what it had written when it first forked: it shares that with its child since


def share():
    """In the zygote, once all that forks share is there."""
    global _shared
    try:
        with open("/proc/self/maps", "rb") as file:
            lines = file.read().splitlines()
        if not linux.can_populate():
            return
        _shared = mmap.mmap(-1, (1 + 2 * _RUNS_MAX) * _WORD)
    except OSError:
        return
    for line in lines:
        addresses, modes = line.split(None, 2)[:2]
        start, end = (int(address, 16) for address in addresses.split(b"-"))
        if modes[1:2] == b"w" and modes[3:4] == b"p" and end - start <= _MAPPING_BYTES_MAX:
            _inherited.append((start, end))


def watch():
    """In one rank of the node, before its script begins."""
    global _learns
    _learns = _shared is not None and not _words()[0]
    if _learns:
        os.register_at_fork(before=_look_before_fork)


def learn():
    """Behind the first step. Where this rank watches: a few milliseconds, once a zygote."""
    global _learns
    if _learns:
        _learns = False
        _keep(itertools.chain(_before_fork or (), _written()))


def forget():
    """In a forked child of the rank."""
    global _learns
    _learns = False


def make_own():
    """In a spare that waits. Nothing changes in these pages but whose they are."""
    words = _words() if _shared is not None else (0,)
    for at in range(1, 1 + 2 * words[0], 2):
        linux.populate(words[at], words[at + 1])


def _look_before_fork():
    global _before_fork
    if _learns and _before_fork is None:
        _before_fork = list(_written())


def _words():
    return memoryview(_shared).cast("Q")


def _keep(runs):
    words, count, room_bytes = _words(), 0, _BYTES_MAX
    for start, size in itertools.islice(runs, _RUNS_MAX):
        words[1 + 2 * count], words[2 + 2 * count] = start, min(size, room_bytes)
        count += 1
        room_bytes -= min(size, room_bytes)
        if room_bytes == 0:
            break
    words[0] = count  # last: a spare that is forked meanwhile takes none


def _written():
    """(address, bytes) of each run of pages that this process alone has, of those that it has inherited."""
    try:
        fd = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return  # a kernel that shows none
    try:
        for start, end in _inherited:
            for at in range(start, end, _PAGES_AT_A_TIME * mmap.PAGESIZE):
                yield from _written_at(fd, at, min(end, at + _PAGES_AT_A_TIME * mmap.PAGESIZE))
    except OSError:
        return
    finally:
        os.close(fd)


def _written_at(fd, start, end):
    page = mmap.PAGESIZE
    entries = os.pread(fd, (end - start) // page * _WORD, start // page * _WORD)
    for run in _WRITTEN.finditer(entries[_WORD - 1 :: _WORD]):
        yield start + run.start() * page, (run.end() - run.start()) * page
