"""Nodes that join, or take a lost one's place, go on from the memory of those that hold the newest save: no step is
done again but those behind it, and storage is not asked.

Loopback addresses stand for nodes, each with its own memory: what one has of another's it has read over TCP.
"""

import signal

import pytest
from harness import descends_from, wait_ends
from test_checkpoint_job import RESTARTS, kill_agent, memory_of, restored_on, start, stored_steps
from test_checkpoint_job import directory as directory
from test_checkpoint_job import jobs_with_memory as jobs_with_memory
from test_checkpoint_job import make_job as make_job


def committed_on(job, life, n=1):
    """A save of that life that rank 0 has heard is committed, of step `n` or later."""

    def find(events):
        return next(
            (e for e in events if e["ev"] == "committed" and e["rank"] == 0 and e["life"] == life and e["n"] >= n), None
        )

    return job.wait(find, f"a save of step {n} or later in life {life} that is committed")


def newest_committed(job, life):
    return max(event["n"] for event in job.found("committed", life=life))


def restored_by_all(job, life, ranks):
    """What each rank of that life has restored: one step, from memory."""
    found = [job.wait_events("restored", life=life, rank=rank)[0] for rank in range(ranks)]
    assert {each["source"] for each in found} == {"memory"}, job.story()
    assert len({each["n"] for each in found}) == 1, found
    assert len({each["state"] for each in found}) == 1, found
    return found[0]["n"]


def fetched_files(job, index):
    return list((memory_of(job, index) / "fetched").glob("*"))


@pytest.mark.parametrize(
    "width", [pytest.param(16, id="small", marks=pytest.mark.long), pytest.param(2048, id="50 MB")]
)
def test_nodes_that_join_go_on_from_memory(job, directory, width):
    """One node, then two, then three; saves to memory alone."""
    arguments = [directory, "--ddp", "--step-ms=5", f"--width={width}"]
    flags = {"nnodes": "1:3", "nproc": 1}
    nodes = [start(job, *arguments, index=0, **flags)]
    committed_on(job, 0, 12)
    for life in (1, 2):
        nodes.append(start(job, *arguments, index=life, **flags))
        begun = restored_by_all(job, life, life + 1)
        assert begun >= 12 and begun >= newest_committed(job, life - 1), job.story()
        committed_on(job, life, begun + 1)
        job.wait(lambda events, life=life: not fetched_files(job, life), "what was read to be gone")
    job.stop()
    assert [node.wait() for node in nodes] == [0, 0, 0], job.story()
    assert len(stored_steps(directory)) == 1, "the newest, at the job's end"


def test_a_lost_node_is_replaced_and_storage_is_not_asked(job, directory):
    """What all ranks share is on the other node: the newcomer reads it there. Its rank's own went with the lost one."""
    arguments = [directory, "--ddp", "--step-ms=5"]
    nodes = [start(job, *arguments, index=index, nnodes="2", nproc=1) for index in (0, 1)]
    promised = committed_on(job, 0, 12)["n"]
    kill_agent(job, nodes[1])
    nodes[1] = start(job, *arguments, index=2, nnodes="2", nproc=1)
    assert restored_by_all(job, 1, 2) >= promised
    found = restored_on(job, nodes[1])
    assert "has no image of rank" in found["why"] and descends_from(found["pid"], nodes[1].pid)
    committed_on(job, 1, promised + 1)
    job.stop()
    assert [node.wait() for node in nodes] == [0, 0], job.story()


def test_a_node_that_comes_back_without_its_memory(job, directory):
    """Of a state that each rank has for itself the lost node's part is nowhere: all begin anew, and are told why."""
    arguments = [directory, "--step-ms=5"]
    nodes = [start(job, *arguments, index=index, nnodes="2", nproc=1) for index in (0, 1)]
    committed_on(job, 0, 12)
    kill_agent(job, nodes[1])
    nodes[1] = start(job, *arguments, index=2, nnodes="2", nproc=1)
    found = [job.wait_events("restored", life=1, rank=rank)[0] for rank in (0, 1)]
    assert [each["n"] for each in found] == [0, 0]
    assert all("does not hold it" in each["why"] for each in found), found
    job.stop()
    assert [node.wait() for node in nodes] == [0, 0], job.story()


def test_memory_outlives_the_node_that_hosts_the_master(job, directory):
    """The others elect a master among them, and go on from the newest save in their memory."""
    arguments = [directory, "--ddp", "--step-ms=5"]
    flags = {"nnodes": "1:3", "nproc": 1}
    nodes = [start(job, *arguments, index=0, **flags)]
    committed_on(job, 0, 3)
    nodes += [start(job, *arguments, index=index, **flags) for index in (1, 2)]

    def of_three(events):
        return [event for event in events if event["ev"] == "committed" and event["world"] == 3]

    promised = job.wait(of_three, "a save of three nodes")[-1]
    job.killed_by_test = True
    pids = job.processes(nodes[0])
    job.signal_node(nodes[0], signal.SIGKILL)
    assert wait_ends(pids, 60) == []

    def of_two(events):
        found = [e for e in events if e["ev"] == "restored" and e["world"] == 2 and e["life"] > promised["life"]]
        return found if len(found) == 2 else None

    found = job.wait(of_two, "two that go on")
    assert {event["source"] for event in found} == {"memory"}, job.story()
    assert found[0]["n"] == found[1]["n"] >= promised["n"], job.story()
    assert all("the job's master is at " in node.stderr for node in nodes[1:]), job.story()
    committed_on(job, found[0]["life"], found[0]["n"] + 1)
    job.stop()
    assert [node.wait() for node in nodes[1:]] == [0, 0], job.story()


def start_in_turn(job, directory, kind, indexes):
    """{index: node}: the master gives out ranks as they come."""
    nodes = {}
    for missing, index in enumerate(indexes, 1 - len(indexes)):
        flags = [RESTARTS, "--redirects=3"]
        nodes[index] = job.node(index, "moving.py", directory, kind, nnodes=str(len(indexes)), nproc=1, flags=flags)
        if missing:
            nodes[index].wait_line(f"waiting for {-missing} more node")
    return nodes


def moved(job, directory, kind, before, after):
    """What is restored, by the rank that restores it, where nodes have come in the order `before` and, when all were
    killed, in the order `after`; and the newest committed step."""
    job.start_master(str(len(before)), RESTARTS)
    nodes = start_in_turn(job, directory, kind, before)
    job.wait_events("committed", rank=0, n=5)
    for node in nodes.values():
        kill_agent(job, node)
    promised = max(event["n"] for event in job.found("committed"))
    nodes = start_in_turn(job, directory, kind, after)
    found = {}
    for rank, index in enumerate(after):
        event = restored_on(job, nodes[index])
        assert event["rank"] == event["node"] == rank, job.story()
        found[rank] = event
    assert {event["source"] for event in found.values()} == {"memory"}, job.story()
    assert len({event["n"] for event in found.values()}) == 1, found
    job.wait_events("committed", rank=0, n=found[0]["n"] + 1)
    job.stop()
    assert [node.wait() for node in nodes.values()] == [0] * len(nodes), job.story()
    return found, promised


def test_ranks_that_come_to_other_nodes_find_what_is_their_own(job, directory):
    """Each of three nodes gets another rank than before: all that a rank needs lies in another one's memory."""
    found, promised = moved(job, directory, "full", before=(0, 1, 2), after=(2, 0, 1))
    step = found[0]["n"]
    assert step >= promised
    for rank, event in found.items():
        own = 1000.0 * rank + step
        assert (event["own"], event["shared"]) == (own, [own, own]), event


def test_ranks_that_move_beside_a_replaced_node(job, directory):
    """DDP: one node is another one, and those that are left change places. What was the lost node's own is gone."""
    found, promised = moved(job, directory, "ddp", before=(0, 1, 2), after=(3, 0, 1))
    step = found[0]["n"]
    assert step >= promised
    # Ranks 0 and 1 are now on the new node and on the one that was rank 0; the image of rank 2 went with its node.
    assert {rank: event["own"] for rank, event in found.items()} == {0: step, 1: 1000.0 + step, 2: None}
    assert all(event["shared"] == [step, step] for event in found.values()), found
