#!/usr/bin/env python3
"""A native save of 1,000 records into a warm slot, CRCs included, beside a plain memcpy of as many bytes into it.

The two take turns. A save is counted from its first byte to the seal, the rewritten tail of the image and the CRC of
all of it included.

    python bench/checkpoint_copy.py [--mib 1024] [--rounds 5] [--json out.json]
"""

import argparse
import ctypes
import mmap
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

from support.arguments import count
from support.results import Results, finish

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from checkpoint_memory import Layout, Memory, Outcome, Rank, load_library  # noqa: E402

RECORDS = 1000
MIB = 1 << 20


def source_of(size):
    """So many bytes in large pages, as an allocator of tensors has them; the mapping and its address."""
    mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_HUGEPAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    ctypes.memset(address, 0x5A, size)
    return mapping, address


def memcpy_ns(to, source, size, threads):
    """By that many threads, each a part of its own; ctypes does not hold the interpreter's lock meanwhile."""
    part = size // threads
    workers = [
        threading.Thread(target=ctypes.memmove, args=(to + i * part, source + i * part, part))
        for i in range(1, threads)
    ]
    began = time.perf_counter_ns()
    for worker in workers:
        worker.start()
    ctypes.memmove(to, source, part)
    for worker in workers:
        worker.join()
    return time.perf_counter_ns() - began


def save_ns(rank, layout, sources, step, threads):
    slot = rank.save(layout, sources, b"a pickle", step=step, threads=threads)
    outcome = Outcome()
    rank.library.phx_ckpt_wait_copied(rank.handle, ctypes.byref(outcome))
    rank.memory.drop(slot, rank.memory.read(slot)["generation"])
    return outcome.copy_ns


def measure(folder, args):
    library = load_library()
    size = args.mib * MIB
    record = size // RECORDS // 64 * 64
    mapping, address = source_of(size)
    layout = Layout(library, [record] * RECORDS, 8)
    rank = Rank(library, Memory(folder, 1, layout.file_bytes))
    library.phx_ckpt_map(rank.handle, rank.error, len(rank.error))
    slot = library.phx_ckpt_slot_data(rank.handle, 0)
    sources = [address + i * record for i in range(RECORDS)]
    ways = [
        (f"{args.mib} MiB into a warm slot, {threads} thread{'s'[: threads - 1]}", who, way, threads)
        for threads in (1, 2)
        for who, way in (
            ("phalanx, with CRC", lambda step, n: save_ns(rank, layout, sources, step, n)),
            ("memcpy", lambda _, n: memcpy_ns(slot, address, record * RECORDS, n)),
        )
    ]
    for _, _, way, threads in ways:
        way(0, threads)  # every page is there, and every thread
    results = Results("ms")
    for step in range(1, args.rounds + 1):
        for what, who, way, threads in ways if step % 2 else reversed(ways):
            results.add(what, who, way(step, threads) / 1e6)
    rank.close()
    del mapping
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=count, default=1024)
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--json", type=Path, help="write the numbers here")
    args = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="phalanx-bench-", dir="/dev/shm")
    try:
        results = measure(folder, args)
    finally:
        shutil.rmtree(folder)
    finish(args.json, "checkpoint_copy", results)


if __name__ == "__main__":
    main()
