"""Memory that runs out: a cgroup with a limit, and the kernel's own killer."""

import contextlib
import errno
import json
import os
import re
import signal
import uuid
from pathlib import Path

import pytest
from harness import wait_ends

MIB = 1 << 20
LIMIT_BYTES = 256 * MIB
# What making a group says in a container that may not, or that has no controller of memory to give on.
NOT_OURS = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT)
OF_ITS_CGROUP = (
    r"the out-of-memory killer of its cgroup \(peak ([\d.]+) MiB resident, the cgroup's limit is (\d+) MiB\)"
)


def own_groups():
    """Folders of the memory cgroups that this process is in, version by version, each with those above it."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("memory", ""):
            continue
        root = Path("/sys/fs/cgroup") / controllers
        folder = root / path.strip("/")
        while True:
            yield folder
            if folder == root:
                break
            folder = folder.parent


class Group:
    """A memory cgroup with a limit and no swap."""

    def __init__(self, parent, limit_bytes):
        self.folder = parent / f"phalanx-test-{uuid.uuid4().hex[:8]}"
        self.folder.mkdir()
        self.v1 = (self.folder / "memory.limit_in_bytes").exists()
        names = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"] if self.v1 else ["memory.max"]
        try:
            for name in names:
                if name == names[0] or (self.folder / name).exists():
                    (self.folder / name).write_text(str(limit_bytes))
            with contextlib.suppress(OSError):
                (self.folder / "memory.swap.max").write_text("0")
        except OSError:
            self.remove()
            raise

    def remove(self):
        """Once its last process has ended: one that was killed may be on its way."""
        wait_ends([int(pid) for pid in (self.folder / "cgroup.procs").read_text().split()], 10)
        self.folder.rmdir()


@pytest.fixture
def group():
    """A group for a whole job, beside or above nobody else's. Removed when its processes are gone: ask for it first."""
    why = "no cgroup accounts this process's memory"
    made = None
    for parent in own_groups():
        try:
            made = Group(parent, LIMIT_BYTES)
            break
        except OSError as error:
            if error.errno not in NOT_OURS:
                raise
            why = str(error)
    if made is None:
        pytest.skip(f"no memory cgroup can be made here: {why}")
    yield made
    made.remove()


def start(job, group, how, *flags, env=None):
    """A job whose launcher enters the group before it becomes one."""
    enter = ["sh", "-c", f'echo $$ > {group.folder}/cgroup.procs && exec "$@"', "sh"]
    own = ["--standalone", "--nproc-per-node=2", f"--state-dir={job.folder / 'state'}"]
    script = str(Path(__file__).resolve().parent / "workloads" / "hungry.py")
    return job.run(*own, *flags, script, how, command=[*enter, *job.command()], env=env)


def failures(job):
    """Rows of the record about ranks that failed."""
    text = job.phalanx("events", f"--state-dir={job.folder / 'state'}", "--json").stdout
    rows = [json.loads(line) for line in text.splitlines()]
    return [
        row for row in rows if row["kind"] == "worker-exited" and row["detail"]["exit_code"] + row["detail"]["signal"]
    ]


def test_a_rank_that_the_killer_ended_is_named(group, job):
    """On the console, where the round begins again, and in the record, with what it had taken."""
    node = start(job, group, "self", "--max-restarts=1")
    assert node.wait() == 0, job.story()
    told = re.search(f"rank 1 was killed by {OF_ITS_CGROUP} on node \\S+, restart 1 of 1: restarted", node.stderr)
    assert told, job.story()
    assert told.group(2) == "256"
    assert 128 < float(told.group(1)) <= 256
    (row,) = failures(job)
    assert re.match(f"rank 1 was killed by {OF_ITS_CGROUP}", row["reason"])
    assert row["detail"]["signal"] == signal.SIGKILL
    assert re.fullmatch(OF_ITS_CGROUP, row["detail"]["killed_by"])
    assert 128 * MIB < row["detail"]["peak_resident_bytes"] <= LIMIT_BYTES
    assert re.search(OF_ITS_CGROUP, job.phalanx("why", f"--state-dir={job.folder / 'state'}").stdout)


def test_the_failure_box_names_it(group, job):
    """Also where the rank came of no spare."""
    node = start(job, group, "self", "--max-restarts=0", "--no-warm")
    assert node.wait() == 1, job.story()
    box = node.stderr[node.stderr.index("First cause: rank 1") :]
    assert re.search(f"SIGKILL \\(signal 9\\), pid \\d+, killed by {OF_ITS_CGROUP}", box)


def test_another_sigkill_is_not_its_doing(group, job):
    node = start(job, group, "killed", "--max-restarts=1")
    (event,) = job.wait_events("waits")
    os.kill(event["pid"], signal.SIGKILL)
    assert node.wait() == 0, job.story()
    assert "rank 1 died (SIGKILL) on node" in node.stderr
    assert "out-of-memory" not in node.stderr
    (row,) = failures(job)
    assert "killed_by" not in row["detail"]


def test_a_child_of_a_rank(group, job):
    """A rank that fails because a process of its own is gone, as with a data loader."""
    node = start(job, group, "child", "--max-restarts=1")
    assert node.wait() == 0, job.story()
    assert job.found("child", signal=signal.SIGKILL)
    note = "the out-of-memory killer has ended 1 process of this node's cgroup during this round"
    assert re.search(rf"rank 1 failed \(exit code 1\) on node \S+ \({note}\)", node.stderr), job.story()
    (row,) = failures(job)
    assert row["detail"]["end_note"] == note
    assert "killed_by" not in row["detail"]


def test_a_rank_in_a_group_of_its_own(group, job):
    """A script may move its process into a group below the launcher's; the limit is that group's."""
    if not group.v1:
        pytest.skip("a cgroup of version 2 with processes in it has no groups with a limit below it")
    below = Group(group.folder, LIMIT_BYTES // 2)
    try:
        node = start(job, group, "self", "--max-restarts=1", env={"PHALANX_TEST_GROUP": below.folder})
        assert node.wait() == 0, job.story()
        told = re.search(f"rank 1 was killed by {OF_ITS_CGROUP}", node.stderr)
        assert told and told.group(2) == "128", job.story()
    finally:
        job.kill_all()
        below.remove()
