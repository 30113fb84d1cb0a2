"""Nothing old can speak: a node that was frozen while its place was given away finds every door closed."""

import os
import signal

import pytest
from harness import descends_from, wait_ends


def start_node(job, index, nnodes="1:2"):
    env = {"PHALANX_TEST_NODE_ADDRESS": f"127.0.0.{index + 1}"}
    return job.node(index, "fenced.py", nnodes=nnodes, flags=["--max-restarts=0"], env=env)


@pytest.mark.slow
def test_frozen_node_is_fenced(job):
    """SIGSTOP of an agent and its rank for longer than the lease: the others go on. Awake again, the rank can neither
    use its store client nor reach the old store, the new store or the old group; its agent ends it and joins anew."""
    nodes = [start_node(job, 0)]
    job.wait_events("step", world=1)  # so that this node holds rank 0 and the store
    nodes.append(start_node(job, 1))
    job.wait(lambda _: any(event["world"] == 2 for event in job.found("step")), "a world of 2")
    life = next(event["life"] for event in job.found("step", world=2))
    assert all(event["worked"] for event in job.wait_events("attempt", 2, world=2, way="ping as a member"))
    rank_pid = next(pid for pid in job.lives()[life].values() if descends_from(pid, nodes[1].pid))

    nodes[1].signal(signal.SIGSTOP)
    os.kill(rank_pid, signal.SIGSTOP)
    alone = job.wait_events("main", life=life + 1)[0]
    assert alone["world"] == 1
    job.wait_events("step", life=life + 1)
    (job.folder / "current_store").write_text(" ".join(map(str, alone["store"])))

    os.kill(rank_pid, signal.SIGCONT)  # the rank first: its agent cannot stop it yet
    job.wait_events("tried", pid=rank_pid)
    attempts = {event["way"]: event for event in job.found("attempt", pid=rank_pid) if "member" not in event["way"]}
    assert len(attempts) == 4
    assert {way: event["how"] for way, event in attempts.items() if event["worked"]} == {}

    nodes[1].signal(signal.SIGCONT)
    assert not wait_ends([rank_pid], 60)
    job.wait(lambda _: len(job.found("step", life=life + 2, world=2)) == 2, "a world of 2 again")
    job.stop()
    assert [node.wait() for node in nodes] == [0, 0], job.story()


@pytest.mark.slow
def test_a_frozen_host_comes_back(job):
    """SIGSTOP of everything of the node that has rank 0 and the store, for longer than the lease: the others go on,
    with a store elsewhere. Everything awake again at once, its rank, whose place is another's, can do nothing, and the
    node joins anew."""
    job.start_master("1:3", "--max-restarts=0")
    nodes = [start_node(job, 1, "1:3")]
    job.wait_events("step", world=1)
    nodes += [start_node(job, index, "1:3") for index in (2, 3)]
    life = job.wait_world(3)
    assert job.node_of(0, life) is nodes[0]
    old = job.pid(0, life)
    old_store = job.found("main", pid=old)[0]["store"]
    assert old_store[0] == "127.0.0.2"
    frozen = job.processes(nodes[0])
    assert old in frozen and len(frozen) >= 4  # launcher, guard, zygote, rank

    job.signal_node(nodes[0], signal.SIGSTOP)
    smaller = job.wait_world(2, after=life)
    stores = {tuple(event["store"]) for event in job.found("main", life=smaller)}
    assert tuple(old_store) not in stores
    (job.folder / "current_store").write_text(" ".join(map(str, stores.pop())))
    of_old = len(job.found("step", pid=old))

    job.signal_node(nodes[0], signal.SIGCONT)
    grown = job.wait_world(3, after=smaller)
    assert wait_ends([old], 60) == []
    assert len(job.found("step", pid=old)) == of_old
    # Its own store lives until its agent has read the news, and nobody else asks that one any more.
    worked = {event["way"] for event in job.found("attempt", pid=old, worked=True)}
    assert worked.isdisjoint({"new store", "old group"})
    assert {job.node_of(rank, grown) for rank in range(3)} == set(nodes)
    assert sorted(job.lives()) == [*range(grown + 1)], "a life that nobody was meant to begin"
    job.stop()
    assert [node.wait() for node in (*nodes, job.master)] == [0] * 4, job.story()
