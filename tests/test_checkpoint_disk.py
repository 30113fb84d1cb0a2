"""Steps on a disk that fails, fills up or loses its writer: no committed step is lost or torn, and every error is told.

What lies on the disk is read here by means of its own: the manifest's text, and zlib's CRC of every shard.
"""

import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import time
import zlib

import pytest
from harness import ROOT

PROGRAM = ROOT / "build" / "release" / "dynamic" / "phalanx-checkpoint-persist"  # a preloaded library can reach it
BYTES = (8 << 20) + 4096  # three writes
REASONS = {
    "EIO": "Input/output error",
    "ENOSPC": "No space left on device",
    "EDQUOT": "Disk quota exceeded",
    "EROFS": "Read-only file system",
}
CALLS = ("open", "write", "pwrite", "fsync", "rename", "ftruncate", "fallocate", "mkdir", "unlink", "rmdir")
MAY_FAIL = {"open", "rename", "mkdir", "unlink", "rmdir"}  # where it costs nothing; the others always cost something


class Disk:
    """A checkpoint directory and the slots of two ranks."""

    def __init__(self, folder, library=None, seed=0):
        self.dir, self.library = folder / "run", library
        self.dir.mkdir(exist_ok=True)
        self.slots = [folder / "slot-0", folder / "slot-1"]
        content = random.Random(seed)
        for slot, size in zip(self.slots, (BYTES, 4096)):
            slot.write_bytes(content.getrandbits(8 * size).to_bytes(size, "little"))

    def command(self, step, *flags):
        slots = [f"--slot={slot}" for slot in self.slots]
        return [str(PROGRAM), f"--dir={self.dir}", f"--step={step}", *slots, *flags]

    def write(self, step, *flags, fault=None, keep_last=2, **more):
        """The process, ended. With a fault, `fired` says whether it came to that."""
        environment = {"PATH": os.environ["PATH"]}
        if fault is not None:
            environment.update(LD_PRELOAD=str(self.library), FAULTY_DISK=fault, FAULTY_DISK_DIR=str(self.dir))
        command = self.command(step, f"--keep-last={keep_last}", *flags)
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, **more)
        result.fired = "faulty_disk: " in result.stderr
        return result

    def committed(self):
        """{step: shards' bytes} of all manifests, each of which must be whole, with all that it lists."""
        found = {}
        for path in self.dir.glob("*/manifest.json"):
            text = path.read_bytes()
            body, last = text[:-15], text[-15:].decode()
            assert last == f"crc32 {zlib.crc32(body):08x}\n", f"{path} is torn"
            manifest = json.loads(body)
            found[manifest["step"]] = [self.shard(path.parent, shard) for shard in manifest["shards"]]
        return found

    @staticmethod
    def shard(folder, shard):
        data = (folder / shard["file"]).read_bytes()
        assert len(data) == shard["bytes"], f"{folder}: {shard}"
        assert zlib.crc32(data) == shard["crc32"], f"{folder}: {shard}"
        return data

    def latest(self):
        return int((self.dir / "latest").read_text())

    def on_the_way(self):
        return list((self.dir / ".writing").iterdir())


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Steps 10 and 20 are committed, and files of a step before lie there to be written over."""
    disk = Disk(tmp_path_factory.mktemp("template"))
    for step in (0, 10, 20):
        assert disk.write(step).returncode == 0
    assert sorted(disk.committed()) == [10, 20]
    assert len(list((disk.dir / ".recycled").iterdir())) == 2
    return disk


@pytest.fixture
def fresh(template, faulty_disk, tmp_path):
    """A function that makes a copy of the template, with slots of another content."""
    made = []

    def make():
        for disk in made:
            shutil.rmtree(disk.dir)
        made[:] = [Disk(tmp_path, faulty_disk, seed=1)]
        shutil.rmtree(made[0].dir)
        shutil.copytree(template.dir, made[0].dir)
        return made[0]

    return make


def check(disk, before, result):
    """After a run that was to write step 30, whatever came in between."""
    after = disk.committed()
    new = [slot.read_bytes() for slot in disk.slots]
    assert after[20] == before[20]
    assert disk.latest() in after
    if 30 in after:
        assert after[30] == new
    else:
        assert result.returncode != 0
        assert after == before
        assert disk.latest() == 20
    if result.returncode == 0:
        assert disk.latest() == 30


def check_later_run(disk):
    """The disk is well again: the next step is written, and nothing is left of the one that failed."""
    result = disk.write(40)
    assert result.returncode == 0, result.stderr
    assert max(disk.committed()) == disk.latest() == 40
    assert disk.on_the_way() == []
    assert len(disk.committed()) == 2


def faults(fresh, call, what, limit=200):
    """(disk, what was committed, the run) for each time that the call can fail; --no-ring: writes are calls then."""
    for n in range(1, limit):
        disk = fresh()
        before = disk.committed()
        result = disk.write(30, "--no-ring", fault=f"{call}:{n}:{what}")
        if not result.fired:
            assert result.returncode == 0, result.stderr
            assert n > 1, f"{call} is never called"
            return
        yield disk, before, result
    raise AssertionError(f"{call} is called without end")


@pytest.mark.slow
@pytest.mark.parametrize("what", REASONS)
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_fails(fresh, call, what):
    """Each of them once. What is told names a path of the directory, the call and the reason. Some failures cost
    nothing: of a leftover that cannot be removed, a file that cannot be written over, an old step that cannot be read
    and stays therefore; a full disk where what was kept to be written over makes room."""
    told = 0
    makes_room = call in ("fallocate", "ftruncate", "write", "pwrite") and what in ("ENOSPC", "EDQUOT")
    for disk, before, result in faults(fresh, call, what):
        check(disk, before, result)
        if result.returncode != 0:
            assert result.returncode == 1, result.stderr
            assert re.search(rf"^{re.escape(str(disk.dir))}\S*: {call}: {REASONS[what]}$", result.stderr, re.M)
            told += 1
        else:
            assert call in MAY_FAIL or makes_room, result.stderr
        check_later_run(disk)
    assert told > 0 or makes_room, f"no failure of {call} is told"


@pytest.mark.slow
@pytest.mark.parametrize("call", ["write", "pwrite"])
def test_writes_that_take_half(fresh, call):
    for disk, before, result in faults(fresh, call, "SHORT"):
        assert result.returncode == 0, result.stderr
        check(disk, before, result)


@pytest.mark.parametrize("call", ["write", "pwrite", "fsync", "ftruncate", "fallocate"])
def test_calls_that_a_signal_interrupts(fresh, call):
    for disk, before, result in faults(fresh, call, "EINTR"):
        assert result.returncode == 0, result.stderr
        check(disk, before, result)


def test_a_file_system_without_direct_writes(fresh):
    """It takes the flag and refuses the write: the page cache takes it."""
    for disk, before, result in faults(fresh, "pwrite", "EINVAL", limit=4):
        assert result.returncode == 0, result.stderr
        check(disk, before, result)
        return


@pytest.mark.slow
@pytest.mark.parametrize("what", ["DEAD", "KILL"])
def test_a_disk_or_a_writer_that_dies(fresh, what):
    """At each call; then another writer comes, and the disk is back."""
    for disk, before, result in faults(fresh, "any", what):
        assert result.returncode == -signal.SIGKILL or what == "DEAD"
        check(disk, before, result)
        check_later_run(disk)


def test_a_kernel_that_refuses_io_uring(fresh):
    """As in many containers. Threads write then; where it is allowed nobody else does."""
    disk = fresh()
    assert disk.write(30, fault="no-ring").returncode == 0
    assert sorted(disk.committed()) == [20, 30]
    disk = fresh()
    result = disk.write(30, fault="pwrite:1:EIO")
    assert result.returncode == 0
    assert not result.fired


def test_a_write_by_io_uring_that_fails(fresh):
    """The kernel says that the file is too large, in mid-write, for real."""
    disk = fresh()
    shutil.rmtree(disk.dir / ".recycled")
    before = disk.committed()

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (6 << 20, 6 << 20))

    result = disk.write(30, fault="fallocate:1:EOPNOTSUPP", preexec_fn=limit, restore_signals=False)
    assert result.returncode == 1
    assert re.search(r"/30-rank_0\.pt\.\w+: write: File too large$", result.stderr, re.M), result.stderr
    check(disk, before, result)
    check_later_run(disk)


def test_a_full_disk(small_disk, tmp_path):
    """One of 1 MiB. When there is room again, it goes on."""
    slots = Disk(tmp_path).slots
    disk = Disk(tmp_path)
    disk.dir = small_disk.path
    slots[0].write_bytes(bytes(256 << 10))
    assert disk.write(10).returncode == 0
    before = disk.committed()
    small_disk.fill()
    result = disk.write(20)
    assert result.returncode == 1
    assert re.search(r"/20-rank_0\.pt\.\w+: fallocate: No space left on device$", result.stderr, re.M), result.stderr
    assert disk.committed() == before
    assert disk.latest() == 10
    assert disk.on_the_way() == []
    small_disk.make_room()
    assert disk.write(20).returncode == 0
    assert sorted(disk.committed()) == [10, 20]


def test_what_was_kept_to_be_written_over_makes_room(small_disk, tmp_path):
    """Files of another size than is wanted now lie on a full disk."""
    disk = Disk(tmp_path)
    disk.dir = small_disk.path
    disk.slots[0].write_bytes(bytes(256 << 10))
    for step in (10, 20):
        assert disk.write(step, keep_last=1).returncode == 0
    small_disk.fill()
    disk.slots[0].write_bytes(bytes(128 << 10))
    result = disk.write(30, keep_last=1)
    assert result.returncode == 0, result.stderr
    assert sorted(disk.committed()) == [30]


def test_a_disk_that_becomes_read_only(small_disk, tmp_path):
    disk = Disk(tmp_path)
    disk.dir = small_disk.path
    disk.slots[0].write_bytes(bytes(256 << 10))
    assert disk.write(10).returncode == 0
    before = disk.committed()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk.path)], check=True)
    result = disk.write(20)
    assert result.returncode == 1
    assert result.stderr == f"{disk.dir}/20: mkdir: Read-only file system\n"
    assert disk.committed() == before


@pytest.mark.slow
@pytest.mark.timeout(36_000)
def test_a_writer_that_is_killed_at_any_moment(tmp_path, pytestconfig, choose):
    """What was committed stays so until something newer is; the next writer removes what lies on the way."""
    disk = Disk(tmp_path)
    kills = pytestconfig.getoption("--kills") or 50
    took_s = []
    for step in range(3):
        began = time.monotonic()
        assert disk.write(step).returncode == 0
        took_s.append(time.monotonic() - began)
    step_s = min(took_s)  # on this machine, as busy as it is
    newest, after_kills = 2, 0
    # Where writers have become slower than the one that was timed, few come to a commit: there are more of them then.
    for done in range(10 * kills):
        if done >= kills and after_kills > kills // 4:
            break
        command = disk.command(newest + 10, "--steps=1000000", "--keep-last=2")
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as writer:
            try:
                writer.wait(choose.uniform(0.0, 3 * step_s))
            except subprocess.TimeoutExpired:
                writer.kill()
            assert writer.wait() == -signal.SIGKILL, writer.stderr.read()
        steps = disk.committed()
        expected = [slot.read_bytes() for slot in disk.slots]
        assert all(shards == expected for shards in steps.values())
        assert max(steps) >= newest
        assert len(disk.on_the_way()) <= 3
        after_kills += max(steps) > newest
        newest = max(steps)
    assert after_kills > kills // 4, "hardly ever came as far as a commit"
    assert disk.write(newest + 10).returncode == 0
    assert disk.on_the_way() == []
