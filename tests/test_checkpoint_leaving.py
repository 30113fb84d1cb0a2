"""Sharded state in a job that a node leaves on purpose: its agent stays, without ranks, until the others have read its
ranks' parts of the last save from its memory. Where it cannot stay they go on from storage, all from the same step.

Loopback addresses stand for nodes, each with its own memory.
"""

import os
import signal

import pytest
from test_checkpoint_job import jobs_with_memory as jobs_with_memory
from test_checkpoint_job import kill_agent
from test_checkpoint_job import make_job as make_job

NODES = 3
TOGETHER = "--rdzv-conf=last_call_timeout=60"  # all are there when the first round begins


def start(job, directory, *arguments, flags=()):
    """Three nodes of one rank."""
    every = [f"--dir={directory}", "--steps=100000", "--save-every=7", *arguments]
    flags = [TOGETHER, *flags]
    nodes = [job.node(index, "sharding.py", *every, nnodes="1:3", nproc=1, flags=flags) for index in range(NODES)]
    for rank in range(NODES):
        job.wait_events("loaded", world=NODES, rank=rank, life=0)
    return nodes


def wait_saves(job):
    """From its second save on each rank hears of nodes that go."""
    for rank in range(NODES):
        job.wait_events("before", 3, life=0, rank=rank)


def stop_node_of(job, nodes, rank):
    gone = job.node_of(rank, 0)
    nodes.remove(gone)
    gone.signal(signal.SIGTERM)
    return gone


def check_restored(job, life, step, source):
    """By all that are left, as all had it in life 0."""
    found = [job.wait_events("loaded", life=life, rank=rank)[0] for rank in range(NODES - 1)]
    assert {(each["source"], each["n"]) for each in found} == {(source, step)}, job.story()
    before = job.found("before", life=0, n=step)
    assert len(before) == NODES
    assert all(each["whole"] == before[0]["whole"] for each in found)
    for rank in range(NODES - 1):
        job.wait_events("before", life=life, rank=rank)


def last_step(job):
    return max(event["n"] for event in job.found("before", life=0))


def end(job, nodes):
    for each in nodes:
        each.signal(signal.SIGTERM)
    assert [each.wait() for each in nodes] == [143] * len(nodes), job.story()


@pytest.mark.parametrize("rank", [0, pytest.param(NODES - 1, marks=pytest.mark.long)])
def test_the_others_go_on_from_memory_at_its_last_step(job, tmp_path, rank):
    nodes = start(job, tmp_path / "run")
    wait_saves(job)
    gone = stop_node_of(job, nodes, rank)
    job.wait_events("loaded", life=1)
    check_restored(job, 1, last_step(job), "memory")
    assert gone.wait() == 143, job.story()
    end(job, nodes)


def test_one_without_a_safe_point_lends_its_newest_save(job, tmp_path):
    """Ranks whose saves are far apart are not waited for: steps behind the newest are done again."""
    nodes = start(job, tmp_path / "run", "--pause-at=10")
    for rank in range(NODES):
        job.wait_events("pausing", life=0, rank=rank)
    gone = stop_node_of(job, nodes, NODES - 1)
    check_restored(job, 1, 7, "memory")
    assert gone.wait() == 143, job.story()
    end(job, nodes)


def test_one_that_is_killed_while_it_lends_sends_all_to_storage(job, tmp_path):
    """Rank 0 has not begun to load by then: what rank 1 was told to restore nobody goes on from, nor pays for."""
    fifo = tmp_path / "hold"
    os.mkfifo(fifo)
    nodes = start(job, tmp_path / "run", "--disk-every=7", f"--hold={fifo}", flags=["--max-restarts=0"])
    wait_saves(job)
    gone = stop_node_of(job, nodes, NODES - 1)
    assert job.wait_events("found", life=1, rank=1)[0]["source"] == "memory", job.story()
    kill_agent(job, gone)
    job.wait_events("main", life=2, rank=0)
    with open(fifo, "wb"):
        pass
    step = job.wait_events("loaded", life=2)[0]["n"]
    assert 0 < step <= last_step(job), job.story()
    check_restored(job, 2, step, "disk")
    end(job, nodes)
