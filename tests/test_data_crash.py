"""Joins that are killed, or whose disk fails, at each of their calls: both files and the sidecar are there, or nothing
that a reader takes for a dataset; and the same join works afterwards."""

import itertools
import os
import signal
import subprocess
import sys
import time

import pytest
from data_parts import write_parts
from phalanx.data import native

JOIN = """
import sys
from phalanx.data import native
prefix, *parts = sys.argv[1:]
try:
    with native.Join(prefix, parts, replace=True) as joined:
        joined.publish(b'"new"')
except native.DataError as error:
    raise SystemExit(f"refused: {error}")
"""
OLD = [[[1, 2]], [[3]]]
NEW = [[[token % 500 for token in range(900 * i)]] for i in range(25)]  # several blocks
SUFFIXES = ("bin", "idx", "json")


def join(prefix, parts, **environment):
    command = [sys.executable, "-c", JOIN, prefix, *parts]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})


def content(prefix):
    return [prefix.with_suffix(f".{suffix}").read_bytes() for suffix in SUFFIXES]


class Place:
    """A folder in which a dataset is to appear, and what it is to be."""

    def __init__(self, folder):
        self.folder, self.prefix = folder / "out", folder / "out" / "x"
        self.folder.mkdir()
        self.parts = write_parts(folder / "parts", NEW, "int32", 3)
        self.old_parts = write_parts(folder / "old", OLD, "int32", 1)
        assert join(self.prefix, self.parts).wait() == 0
        self.new = content(self.prefix)
        self.make_old()
        self.old = content(self.prefix)

    def make_old(self):
        with native.Join(self.prefix, self.old_parts, replace=True) as joined:
            joined.publish(b'"old"')

    def clear(self, there_before):
        for file in self.folder.iterdir():
            file.unlink()
        if there_before:
            self.make_old()

    def check(self, there_before):
        """What a reader finds: what was there, nothing, or all of the new."""
        if (self.folder / "x.idx").exists():
            native.check(self.prefix)
            assert content(self.prefix) in ([self.old, self.new] if there_before else [self.new])


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def each_fault(place, library, call, what, there_before):
    """(call that failed, exit status, stderr) for the first, second .. of these calls, until there is none any more."""
    for n in itertools.count(1):
        place.clear(there_before)
        environment = {"LD_PRELOAD": str(library), "FAULTY_DISK_DIR": str(place.folder)}
        process = join(place.prefix, place.parts, FAULTY_DISK=f"{call}:{n}:{what}", **environment)
        _, told = process.communicate()
        if "faulty_disk: " not in told:
            assert process.returncode == 0 and n > 1
            return
        yield told.split()[1], process.returncode, told


@pytest.mark.slow
@pytest.mark.parametrize("there_before", [False, True])
def test_killed_at_any_call(place, faulty_disk, there_before):
    calls = []
    for call, status, _ in each_fault(place, faulty_disk, "any", "KILL", there_before):
        calls.append(call)
        assert status == -signal.SIGKILL
        place.check(there_before)
        assert join(place.prefix, place.parts).wait() == 0
        assert content(place.prefix) == place.new
        assert sorted(os.listdir(place.folder)) == ["x.bin", "x.idx", "x.json"]
    assert len(calls) > 20 and {"open", "fallocate", "write", "fsync", "unlink", "rename"} <= set(calls)


@pytest.mark.parametrize("there_before", [False, True])
@pytest.mark.parametrize("what", ["EIO", "ENOSPC", "DEAD"])
def test_a_disk_that_fails_at_any_call(place, faulty_disk, what, there_before):
    refused = set()
    for call, status, told in each_fault(place, faulty_disk, "any", what, there_before):
        place.check(there_before)
        if status == 0:
            assert content(place.prefix) == place.new
        else:
            refused.add(call)
            assert f"refused: {place.folder}/" in told and f": {call}: " in told
        if what != "DEAD":
            assert not [name for name in os.listdir(place.folder) if name.endswith(".writing")]
    assert {"open", "fallocate", "write", "fsync", "rename"} <= refused


@pytest.mark.parametrize(
    "call, what", [("write", "SHORT"), ("write", "EINTR"), ("fsync", "EINTR"), ("fallocate", "EOPNOTSUPP")]
)
def test_what_is_no_failure(place, faulty_disk, call, what):
    for _, status, told in each_fault(place, faulty_disk, call, what, False):
        assert status == 0, told
        assert content(place.prefix) == place.new


def test_killed_at_random_times(place, choose):
    killed = 0
    began = time.monotonic()
    assert join(place.prefix, place.parts).wait() == 0
    whole_s = time.monotonic() - began
    # Where joins have become quicker than the one that was timed, few are killed: there are more of them then.
    for joins, there_before in enumerate(itertools.cycle([False, True])):
        if joins == 200 or (joins >= 20 and killed > 5):
            break
        place.clear(there_before)
        began = time.monotonic()
        process = join(place.prefix, place.parts)
        try:
            process.wait(choose.uniform(0, whole_s))
            whole_s = min(whole_s, time.monotonic() - began)
        except subprocess.TimeoutExpired:
            process.kill()
            killed += process.wait() == -signal.SIGKILL
        assert process.returncode in (0, -signal.SIGKILL), process.communicate()[1]
        place.check(there_before)
    assert killed > 5
    assert join(place.prefix, place.parts).wait() == 0
    assert content(place.prefix) == place.new


def test_a_full_disk(small_disk, tmp_path):
    parts = write_parts(tmp_path / "parts", [[[0] * 600_000]], "int32", 2)
    with pytest.raises(
        native.DataError, match=r"disk/x\.bin\.writing: fallocate: No space left on device; 2400000 bytes"
    ):
        native.Join(small_disk.path / "x", parts)
    assert os.listdir(small_disk.path) == []
    small_disk.use_up_files()
    with pytest.raises(native.DataError, match=r"disk/x\.bin\.writing: open: No space left on device"):
        native.Join(small_disk.path / "x", parts)


def test_a_read_only_disk(small_disk, tmp_path):
    parts = write_parts(tmp_path / "parts", OLD, "int32", 2)
    small_disk.make_read_only(True)
    with pytest.raises(native.DataError, match=r"disk/x\.bin\.writing: open: Read-only file system"):
        native.Join(small_disk.path / "x", parts)
    small_disk.make_read_only(False)
    with native.Join(small_disk.path / "x", parts) as joined:
        joined.publish(b"{}")
    assert sorted(os.listdir(small_disk.path)) == ["x.bin", "x.idx", "x.json"]
