"""Jobs that share a host: they do not notice each other, and one that is taken for another is told so."""

import os
import pwd
import signal
import stat
import subprocess
from pathlib import Path

import phalanx
import pytest
from harness import read_proc, wait_ends, workload
from share import free_port


def steps_so_far(job):
    return len(job.found("step"))


def wait_more_steps(job):
    """Two reports more than there are, so that one that was under way does not count."""
    before = steps_so_far(job)
    job.wait(lambda _: steps_so_far(job) > before + 1, "further steps")


def lose_a_rank(job, life, world):
    os.kill(job.pid(world - 1, life), signal.SIGKILL)
    job.wait_stepping(life=life + 1, world=world)


def master_of(job):
    (pid,) = (pid for pid in job.processes() if read_proc(pid, "comm").startswith(b"phalanx-master"))
    return pid


@pytest.mark.slow
def test_two_jobs_of_one_user(make_job, tmp_path):
    """Other ids and ports, one state directory, both at once: a rank lost in one is nothing to the other."""
    state = [f"--state-dir={tmp_path / 'state'}"]
    jobs = [make_job(), make_job()]
    nodes = [
        job.node(0, "light_steps.py", nnodes="1", nproc=2, flags=[flag, *state])
        for job, flag in zip(jobs, ("--max-restarts=1", "--max-restarts=0"))
    ]
    for job in jobs:
        job.wait_stepping(life=0, world=2)
    lose_a_rank(jobs[0], life=0, world=2)
    wait_more_steps(jobs[1])
    assert set(jobs[1].lives()) == {0}, jobs[1].story()
    for job in jobs:
        told = job.phalanx("status", f"--state-dir={tmp_path / 'state'}", job.id).stdout
        assert job.id in told
        assert ("restart" in job.phalanx("why", f"--state-dir={tmp_path / 'state'}", job.id).stdout) == (job is jobs[0])
        job.stop()
    assert [node.wait() for node in nodes] == [0, 0]


@pytest.fixture
def make_job_of(make_job, tmp_path):
    """A function that makes a job whose launchers run as another user, with a home of its own."""
    if os.geteuid() != 0:
        pytest.skip("starting a process as another user needs root")
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & stat.S_IXOTH and folder.stat().st_uid == 0 and folder != folder.parent:
            folder.chmod(folder.stat().st_mode | stat.S_IXOTH)  # pytest's own folders are closed to others

    def make(name):
        job, user = make_job(), pwd.getpwnam(name)
        os.chown(job.folder, user.pw_uid, user.pw_gid)
        job.popen = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        probe = ["python3", "-c", f"import phalanx; open({workload('light_steps.py')!r})"]
        if subprocess.run(probe, env=own_environment(job), capture_output=True, **job.popen).returncode:
            pytest.skip(f"Python, its phalanx or this folder is closed to the user {name}")
        return job

    return make


def own_environment(job):
    """A home of the job's own; and phalanx for the first Python on PATH that its user may run, which may be another."""
    packages = Path(phalanx.__file__).parent.parent
    return job.environment({"HOME": job.folder, "PYTHONPATH": packages})


def node_of(job, job_id, port, *flags, nproc=2, script="light_steps.py"):
    """A node with the state directory that its user has by default."""
    own = own_environment(job)
    meeting = [f"--rdzv-id={job_id}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"]
    return job.run("--nnodes=1", f"--nproc-per-node={nproc}", *meeting, *flags, workload(script), env=own)


@pytest.mark.slow
def test_two_users_with_the_same_job_id(make_job, make_job_of):
    """One id, two users: each has a state directory of its own, and a rank lost in one is nothing to the other."""
    jobs = [make_job(), make_job_of("nobody")]
    nodes = [node_of(job, "same", job.port, f"--max-restarts={restarts}") for job, restarts in zip(jobs, (1, 0))]
    for job in jobs:
        job.wait_stepping(life=0, world=2)
    owners = [os.stat(f"/proc/{job.pid(0, 0)}").st_uid for job in jobs]
    assert owners == [os.geteuid(), pwd.getpwnam("nobody").pw_uid]
    lose_a_rank(jobs[0], life=0, world=2)
    wait_more_steps(jobs[1])
    assert set(jobs[1].lives()) == {0}, jobs[1].story()
    # Of the other's files there is nothing to be had, and phalanx-run says where it would have liked to write.
    state = jobs[0].folder / "xdg-state" / "phalanx"
    intruder = node_of(jobs[1], "same", free_port(), f"--state-dir={state}", script="tell.py")
    assert intruder.wait() == 2, jobs[1].story()
    assert f"state directory {state}" in intruder.stderr
    for job in jobs:
        job.stop()
    assert [node.wait() for node in nodes] == [0, 0]


@pytest.mark.slow
def test_the_same_id_by_mistake(make_job):
    """A second job with the id of one that runs, at another port: refused at once, in a sentence that names the first
    one's master. Nothing of the first changes. Its master killed, the directory is free again."""
    first, second = make_job(), make_job()
    node = node_of(first, "same", first.port)
    first.wait_stepping(life=0, world=2)
    master = master_of(first)
    folder = first.folder / "xdg-state" / "phalanx" / "same"
    before = [(folder / name).read_text() for name in ("address", "lock")]
    shared = {"XDG_STATE_HOME": first.folder / "xdg-state"}
    again = ["--rdzv-id=same", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{second.port}"]
    refused = second.run("--nnodes=1", *again, workload("tell.py"), env=shared)
    assert refused.wait() == 1, second.story()
    for part in (
        f"job 'same' from {folder}",
        f"process {master} at 127.0.0.1:{first.port}",
        "--rdzv-id",
        "--state-dir",
    ):
        assert part in refused.stderr
    assert not second.events
    assert [(folder / name).read_text() for name in ("address", "lock")] == before
    assert stat.S_IMODE((folder / "lock").stat().st_mode) == 0o600
    assert "running" in first.phalanx("status", "same").stdout
    wait_more_steps(first)

    first.killed_by_test = True
    for pid in (node.pid, master):
        os.kill(pid, signal.SIGKILL)
    assert not wait_ends([node.pid, master], 60)
    free = second.run("--nnodes=1", *again, workload("tell.py"), env=shared)
    assert free.wait() == 0, second.story()


@pytest.mark.slow
def test_jobs_that_have_no_id(make_job, tmp_path):
    """torchrun's users start two jobs on one host by --master-port alone, or at localhost:0: both train, and each has a
    record of its own, which `phalanx` finds: the latest by the id that they share, each by its directory."""
    jobs = [make_job() for _ in range(4)]
    shared = {"XDG_STATE_HOME": str(tmp_path)}
    meetings = [["--nnodes=1", f"--master-port={job.port}"] for job in jobs[:2]]
    meetings += [["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]] * 2
    nodes = [job.run(*flags, workload("light_steps.py"), env=shared) for job, flags in zip(jobs, meetings)]
    for job in jobs:
        job.wait_stepping(life=0, world=1)
    folders = sorted((tmp_path / "phalanx").glob("none@*"))
    assert len(folders) == 4
    for job in jobs[:2]:
        (folder,) = (folder for folder in folders if folder.name.endswith(f"-{job.port}"))
        assert (folder / "address").read_text() == f"127.0.0.1:{job.port}\n"
    assert sum((folder / "unnamed").exists() for folder in folders) == 2
    assert all("running" in job.phalanx("status", f"--state-dir={folder}").stdout for folder in folders)
    assert "running" in job.phalanx("status", "none", env=shared).stdout
    for job in jobs:
        job.stop()
    assert [node.wait() for node in nodes] == [0] * 4, jobs[0].story()


def test_the_same_endpoint_by_mistake(job):
    """Whoever comes to the endpoint of a job with its id is taken for one of its nodes: as a spare where the job is
    full, and told whose; refused where --nnodes differs or, with the static rendezvous, the place is taken."""
    first = job.node(0, "light_steps.py", nnodes="1")
    job.wait_stepping(life=0, world=1)
    spare = job.node(1, "tell.py", nnodes="1")
    spare.wait_line(f"all 1 places of job '{job.id}' are taken: this node waits as a spare")
    other = job.node(2, "tell.py", nnodes="1:2")
    assert other.wait() == 1, job.story()
    assert "--nnodes=1:2 differs from the job's --nnodes=1" in other.stderr
    job.stop()
    assert [first.wait(), spare.wait()] == [0, 0], job.story()


def test_the_same_static_place_by_mistake(job):
    """Two jobs at torchrun's default port: the second is told that its place is another's, and what to give."""
    flags = ["--nnodes=1", f"--master-port={job.port}"]
    first = job.run(*flags, workload("light_steps.py"))
    job.wait_stepping(life=0, world=1)
    second = job.run(*flags, workload("tell.py"))
    assert second.wait() == 1, job.story()
    assert "--node-rank=0 is already taken" in second.stderr
    assert "another port" in second.stderr
    job.stop()
    assert first.wait() == 0, job.story()
