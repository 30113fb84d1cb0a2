"""srun phalanx-run: what Slurm says in the environment is enough, and what it sends to a whole step ends nothing.

Slurm itself is not here: its variables are set as srun(1) documents them, and a signal to a step is sent, as slurmstepd
does, to every process of it.
"""

import contextlib
import json
import os
import signal

from harness import workload
from share import free_slurm_job


def task(job, job_id, index, nodes, script, *arguments, flags=()):
    """The step's task on 127.0.0.<index + 1>."""
    slurm = {
        "SLURM_JOB_ID": job_id,
        "SLURM_STEP_ID": 0,
        "SLURM_NODEID": index,
        "SLURM_PROCID": index,
        "SLURM_STEP_NUM_NODES": nodes,
        "SLURM_STEP_NODELIST": f"127.0.0.[1-{nodes}]",
        "SLURM_STEP_TASKS_PER_NODE": f"1(x{nodes})",
    }
    places = [f"--local-addr=127.0.0.{index + 1}", f"--state-dir={job.folder / f'state{index}'}"]
    return job.run(*places, *flags, workload(script), *arguments, name=f"node{index}", env=slurm)


def srun(job, job_id, nodes, script, *arguments, flags=()):
    """All tasks of a step."""
    return [task(job, job_id, index, nodes, script, *arguments, flags=flags) for index in range(nodes)]


def signal_step(job, number):
    for pid in job.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def test_nodes_meet_by_slurms_variables(job):
    """No flag names a node, a rank, an endpoint or an id."""
    job_id = free_slurm_job()
    nodes = srun(job, job_id, 2, "light_steps.py", flags=["--nproc-per-node=1"])
    steps = job.wait_stepping(life=0, world=2)
    assert sorted(steps) == [0, 1]
    job.stop()
    assert [node.wait() for node in nodes] == [0, 0], job.story()
    for index, node in enumerate(nodes):
        assert f"Slurm: step {job_id}.0, node {index} of 2" in node.stderr
        assert (job.folder / f"state{index}" / f"slurm-{job_id}.0").is_dir()


def test_a_node_that_leaves_and_comes_back(job):
    """With a range the others go on without it; started again with the same variables (srun --overlap) it finds its
    job."""
    job_id = free_slurm_job()
    nodes = srun(job, job_id, 2, "light_steps.py", flags=["--nnodes=1:2"])
    job.wait_stepping(life=0, world=2)
    nodes[1].signal(signal.SIGTERM)
    assert nodes[1].wait() == 143
    job.wait_stepping(life=1, world=1)
    again = task(job, job_id, 1, 2, "light_steps.py", flags=["--nnodes=1:2"])
    job.wait_stepping(life=2, world=2)
    job.stop()
    assert [nodes[0].wait(), again.wait()] == [0, 0], job.story()


def test_a_warning_signal_to_the_whole_step(job):
    """srun --signal=USR1@60: ranks hear of it, everything else stays, and a restart afterwards is still warm."""
    (node,) = srun(job, free_slurm_job(), 1, "signals.py", "end", flags=["--nproc-per-node=2", "--max-restarts=1"])
    job.wait_events("main", 2)
    before = set(job.processes())
    signal_step(job, signal.SIGUSR1)
    job.wait_events("signal", 2, signal=signal.SIGUSR1)
    node.signal(signal.SIGUSR2)  # served after the first one, by everybody
    job.wait_events("signal", 2, signal=signal.SIGUSR2)
    assert before <= set(job.processes()), job.story()
    os.kill(job.pid(rank=0, life=0), signal.SIGKILL)
    job.wait_events("main", 2, life=1)
    node.signal(signal.SIGTERM)
    assert node.wait() == 143, job.story()
    assert "warm start is off" not in node.stderr


def test_the_end_of_the_time_limit(job):
    """SIGTERM to every process of the step: ranks save, and the job's record has its end."""
    (node,) = srun(job, free_slurm_job(), 1, "signals.py", "save", flags=["--nproc-per-node=2"])
    job.wait_events("main", 2)
    signal_step(job, signal.SIGTERM)
    assert node.wait() == 143, job.story()
    assert {event["rank"] for event in job.found("saved")} == {0, 1}
    assert "master has ended" not in node.stderr
    ended = json.loads(job.phalanx("status", "--json", "--state-dir", job.folder / "state0").stdout)
    assert (ended["phase"], ended["exit_code"]) == ("finished", 143), ended
