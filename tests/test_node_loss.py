"""Nodes that are lost, the one of group rank 0 and the store first: the others go on, and no restart is charged.

The master is one of its own, so that it outlives every node.
"""

import signal
import time

import pytest
from harness import descends_from, is_running, wait_ends

FLAGS = ["--max-restarts=0"]  # so that any loss that was counted as a failure would end the job


def start_one_then_all(job, nodes, script="light_steps.py", nnodes=None):
    """The first node trains before the others come, so that it has rank 0 and the store. Returns nodes and life."""
    nnodes = nnodes or f"1:{nodes}"
    job.start_master(nnodes, *FLAGS)
    first = job.node(0, script, nnodes=nnodes, flags=FLAGS)
    life = job.wait_world(1)
    others = [job.node(index, script, nnodes=nnodes, flags=FLAGS) for index in range(1, nodes)]
    if others:
        life = job.wait_world(nodes, after=life)
    assert job.node_of(0, life) is first
    return [first, *others], life


def store_of(job, life):
    """The address of the store that the ranks of a life were given."""
    (address,) = {event["store"] for event in job.found("main", life=life)}
    return address


def kill_agent(job, node):
    node.signal(signal.SIGKILL)


def kill_everything(job, node):
    job.signal_node(node, signal.SIGKILL)


AGENT_FIRST = ("steps.py", (kill_agent, kill_everything))
EVERYTHING_FIRST = ("light_steps.py", (kill_everything, kill_agent))


@pytest.mark.parametrize(
    ("script", "ways"),
    [
        pytest.param(*AGENT_FIRST, id="agent first, with torch", marks=pytest.mark.slow),
        pytest.param(*EVERYTHING_FIRST, id="everything first"),
    ],
)
def test_the_node_of_rank_0_and_the_store(job, script, ways):
    """Of three nodes the one of rank 0 is killed, and of the two that go on the one that is rank 0 then: once the agent
    alone, whose processes follow, once everything of the node at the same time. Two go on, then one."""
    nodes, life = start_one_then_all(job, 3, script)
    job.killed_by_test = True
    for kill in ways:
        victim = job.node_of(0, life)
        assert store_of(job, life) == f"127.0.0.{nodes.index(victim) + 1}"
        of_victim = job.processes(victim)
        assert job.pid(0, life) in of_victim
        kill(job, victim)
        world = len([node for node in nodes if node.process.poll() is None and node is not victim])
        life = job.wait_world(world, after=life)
        assert wait_ends(of_victim, 20) == []
        assert store_of(job, life) != f"127.0.0.{nodes.index(victim) + 1}"
    job.stop()
    last = job.node_of(0, life)
    assert [last.wait(), job.master.wait()] == [0, 0], job.story()
    assert "restart 1" not in job.master.stderr


@pytest.mark.slow
def test_a_spare_takes_the_place_of_the_lost_node(job):
    """A spare waits with its workers warm. When the node of rank 0 is killed it steps in at once: its worker is a
    process that was there before."""
    nodes, life = start_one_then_all(job, 1, nnodes="1:1")
    nodes.append(job.node(1, "light_steps.py", nnodes="1:1", flags=FLAGS))
    nodes[1].wait_line(f"all 1 places of job '{job.id}' are taken: this node waits as a spare")
    job.master.wait_line("node-ready")
    waiting = set(job.processes(nodes[1]))
    nodes[0].signal(signal.SIGKILL)
    job.killed_by_test = True
    life = job.wait_world(1, after=life)
    assert descends_from(job.pid(0, life), nodes[1].pid)
    assert job.pid(0, life) in waiting
    job.stop()
    assert [nodes[1].wait(), job.master.wait()] == [0, 0], job.story()


@pytest.mark.slow
def test_a_frozen_master_is_noticed(job):
    """A master that is stopped answers nothing, and no connection breaks. Its agent notices, says why, and dials again;
    the ranks train on meanwhile. Awake again, the master has its node back."""
    nodes, life = start_one_then_all(job, 1)
    nodes += [job.node(1, "light_steps.py", nnodes="1:1", flags=[*FLAGS, "--explain"])]
    nodes[1].wait_line("this node waits as a spare")
    job.master.signal(signal.SIGSTOP)
    nodes[1].wait_line("explain: the master is dialled again")
    assert is_running(job.pid(0, life))
    job.master.signal(signal.SIGCONT)
    # Whatever the master has thought of them: both are there, one trains, and the job can end.
    job.wait(lambda _: nodes[1].stderr.count("explain: the stream to the master is open") >= 2, "the stream again")
    job.stop()
    assert [node.wait() for node in (*nodes, job.master)] == [0, 0, 0], job.story()


def grow_to(job, nodes, count, life):
    """More nodes, until as many train."""
    nodes += [job.node(len(job.nodes), "light_steps.py", nnodes="1:4", flags=FLAGS) for _ in range(count - len(nodes))]
    return job.wait_world(count, after=life)


def shrink_to(job, nodes, count, life):
    """Nodes leave by SIGTERM, that of rank 0 first; all of them before the next round is looked at."""
    leavers = [job.node_of(rank, life) for rank in range(len(nodes) - count)]
    for node in leavers:
        node.signal(signal.SIGTERM)
        nodes.remove(node)
    life = job.wait_world(count, after=life)
    assert [node.wait() for node in leavers] == [143] * len(leavers), job.story()
    return life


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [[1, 2, 1], [2, 4, 3, 1]], ids=lambda sizes: "-".join(map(str, sizes)))
def test_scale(job, sizes):
    """Jobs that grow and shrink, several nodes at once and one by one, the node of rank 0 leaving first."""
    job.start_master("1:4", *FLAGS)
    nodes, life = [], -1
    for size in sizes:
        life = (grow_to if size > len(nodes) else shrink_to)(job, nodes, size, life)
        assert {event["rank"] for event in job.found("main", life=life)} == set(range(size))
        assert {job.node_of(rank, life) for rank in range(size)} == set(nodes)
    job.stop()
    assert [node.wait() for node in (*nodes, job.master)] == [0] * (sizes[-1] + 1), job.story()


def test_a_node_that_stands_still_is_believed_for_as_long_as_was_asked(job):
    """By torchrun's own flags: for 15 s, where 3 s are usual."""
    conf = "--rdzv-conf=keep_alive_interval=5,keep_alive_max_attempt=3"
    nodes = [job.node(0, "light_steps.py", nnodes="1:2", flags=[*FLAGS, conf])]
    alone = job.wait_world(1)
    nodes.append(job.node(1, "light_steps.py", nnodes="1:2", flags=[*FLAGS, conf]))
    life = job.wait_world(2, after=alone)
    nodes[1].signal(signal.SIGSTOP)  # phalanx-run alone: its rank, without which the other one waits, trains on
    time.sleep(6)
    nodes[1].signal(signal.SIGCONT)
    steps = len(job.found("step", life=life))
    job.wait(lambda _: len(job.found("step", life=life)) > steps + 20, "further steps")
    job.stop()
    assert [node.wait() for node in nodes] == [0, 0], job.story()
    assert max(job.lives()) == life and "silent for" not in nodes[0].stderr, job.story()
