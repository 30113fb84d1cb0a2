"""Joins that are killed, or whose disk is full or read-only: both files and the sidecar, or nothing that a reader takes
for a dataset."""

import os
import random
import signal
import subprocess
import sys

import pytest
from data_parts import write_parts

from phalanx.data import IndexedDataset, native

JOIN = """
import sys
from phalanx.data import native
prefix, *parts = sys.argv[1:]
with native.Join(prefix, parts, replace=True) as joined:
    joined.publish(b"{}")
"""
DOCUMENTS = [[list(range(i % 500))] for i in range(4000)]
SUFFIXES = ("bin", "idx", "json")


def start(prefix, parts, folder=None):
    return subprocess.Popen([sys.executable, "-c", JOIN, prefix, *parts], stderr=subprocess.PIPE, text=True, cwd=folder)


def content(prefix):
    return [prefix.with_suffix(f".{suffix}").read_bytes() for suffix in SUFFIXES]


def is_whole(prefix):
    """Whether a reader finds a dataset. One that has an index has all of the rest."""
    if not prefix.with_suffix(".idx").exists():
        return False
    native.check(prefix)
    assert prefix.with_suffix(".json").read_bytes() == b"{}"
    return True


# Killed at each of its system calls that change something, one after the other; strace counts them.
CHANGES = "openat,fallocate,ftruncate,write,fsync,rename,unlink"


def killed_at(calls, when, prefix, parts):
    """True: the join was killed as it made its `when`-th of these calls."""
    command = ["strace", "-f", "-qq", "-o", "/dev/null", "-P", prefix.parent, "-e", f"inject={calls}:signal=KILL:when={when}"]
    for suffix in SUFFIXES:
        command += ["-P", f"{prefix}.{suffix}", "-P", f"{prefix}.{suffix}.writing"]
    done = subprocess.run([*command, sys.executable, "-c", JOIN, prefix, *parts], capture_output=True)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0
