"""The agent of a node dies, alone or with all of its node: a new phalanx-run of the same job takes its place."""

import contextlib
import json
import os
import signal

import pytest
from harness import descends_from, read_proc, stat_fields, wait_ends

FLAGS = ["--max-restarts=0", "--redirects=3"]  # a node that is lost costs no restart


def start(job, index, nnodes):
    return job.node(index, "light_learning.py", nnodes=nnodes, flags=FLAGS)


def start_both(job, nnodes):
    """The first hosts the master. Returns the nodes, and the life of both."""
    first = start(job, 0, nnodes)
    first.wait_line("waiting for 1 more node" if nnodes == "2" else "training")
    second = start(job, 1, nnodes)
    return [first, second], wait_world_of_two(job, after=-1)


def wait_world_of_two(job, after):
    """The first life later than `after` whose two ranks have stepped."""

    def find(_):
        lives = {}
        for event in job.found("step", world=2, n=1):
            if event["life"] > after:
                lives.setdefault(event["life"], set()).add(event["rank"])
        return next((life + 1 for life, ranks in sorted(lives.items()) if len(ranks) == 2), None)

    return job.wait(find, f"two ranks that step, after life {after}") - 1


def ranks_of(job, node, life):
    return [pid for pid in job.lives()[life].values() if descends_from(pid, node.pid)]


def everything_of(job, node):
    """Also the guard, which hides its environment, and the master, which would outlive its agent."""
    children = [int(p) for p in os.listdir("/proc") if p.isdigit() and stat_fields(p)[1:2] == [str(node.pid)]]
    return sorted({pid for pid in [*job.processes(), *children] if descends_from(pid, node.pid)})


def logs_of(job, index):
    """{file: text} of what the node's ranks have written so far."""
    return {path: path.read_text() for path in (job.folder / f"logs{index}").rglob("std*.log")}


def learnt_of(job, index):
    """{file: modules} of what runs at this node have learnt for the next; empty while a file is being written."""
    texts = {path: path.read_text() for path in (job.folder / f"state{index}").glob("learnt-*.json")}
    return {path: set(json.loads(text)["modules"]) for path, text in texts.items()} if all(texts.values()) else {}


def check_the_end(job, nodes):
    job.stop()
    assert [node.wait() for node in nodes] == [0, 0], job.story()
    lives = sorted(job.lives())
    assert lives == list(range(len(lives))), f"lives are counted on: {job.story()}"


@pytest.mark.parametrize("nnodes", ["2", "1:2"])
@pytest.mark.parametrize("which", [0, 1], ids=["it hosts the master", "it does not"])
def test_a_killed_agent(job, which, nnodes):
    """Its ranks end with it. A new phalanx-run joins at its node, and what lies there is found and kept."""
    nodes, life = start_both(job, nnodes)
    ranks = ranks_of(job, nodes[which], life)
    assert len(ranks) == 1
    learnt = job.wait(lambda _: learnt_of(job, which), "what the first step has taught")
    nodes[which].signal(signal.SIGKILL)
    assert nodes[which].wait() == -signal.SIGKILL
    assert wait_ends(ranks, 20) == []
    logs = logs_of(job, which)
    nodes[which] = start(job, which, nnodes)
    life = wait_world_of_two(job, after=life)
    assert len(ranks_of(job, nodes[which], life)) == 1
    check_the_end(job, nodes)
    now = learnt_of(job, which)
    assert {path: modules & now[path] for path, modules in learnt.items()} == learnt
    now = logs_of(job, which)
    assert {path: now[path] for path in logs} == logs
    assert len(now) > len(logs)


@pytest.mark.parametrize("nnodes", ["2", "1:2"])
def test_all_of_the_hosting_node_dies(job, nnodes):
    """Agent, guard, master, ranks, all at once. The master of the new phalanx-run knows of the job from the other
    node, whose rank has lost its peer: that costs no restart."""
    nodes, life = start_both(job, nnodes)
    pids = everything_of(job, nodes[0])
    assert any(read_proc(pid, "comm").startswith(b"phalanx-master") for pid in pids)
    for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, none of them sees another's end
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # some processes live for a moment only
                os.kill(pid, number)
    assert nodes[0].wait() == -signal.SIGKILL
    assert wait_ends(pids, 60) == []
    nodes[0] = start(job, 0, nnodes)
    wait_world_of_two(job, after=life)
    check_the_end(job, nodes)
