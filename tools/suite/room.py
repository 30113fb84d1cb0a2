"""Whether this machine has the memory that a run of tests takes: where it has not, tests fail, and do not say so."""

import os
from pathlib import Path

SHM = Path("/dev/shm")
NEEDED_MIB = 4096  # four processes of tests with torch, and agents that start spares only where 2 GiB are available
NAMED = 3


def available_mib(meminfo=Path("/proc/meminfo")):
    """What programs may still take, in MiB; None where the kernel does not tell."""
    rows = [line.split() for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable:")]
    return int(rows[0][1]) // 1024 if rows else None


def mib_below(path):
    """What the files of a folder, or a file, take, in MiB; of what goes meanwhile nothing."""
    total = 0
    for folder, _, names in os.walk(path) if path.is_dir() else [(path.parent, (), [path.name])]:
        for name in names:
            try:
                total += (Path(folder) / name).lstat().st_blocks * 512
            except OSError:
                continue
    return total >> 20


def why_none(available, shm=SHM):
    """Why a run of tests cannot pass here; None: it can. `available`: in MiB, or None where nobody knows."""
    if available is None or available >= NEEDED_MIB:
        return None
    largest = sorted(((mib_below(path), path) for path in shm.iterdir()), reverse=True)[:NAMED] if shm.is_dir() else []
    held = ", ".join(f"{path} {mib} MiB" for mib, path in largest if mib > 0)
    behind = f"; in memory are {held} (phalanx ckpt discard {shm} removes what dead jobs have left)" if held else ""
    return f"the tests take {NEEDED_MIB} MiB of memory, and {available} MiB are available{behind}"
