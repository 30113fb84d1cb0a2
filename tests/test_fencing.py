"""Nothing old can speak: a node that was frozen while its place was given away finds every door closed."""

import os
import signal

import pytest
from harness import descends_from, wait_ends


def start_node(job, index):
    env = {"PHALANX_TEST_NODE_ADDRESS": f"127.0.0.{index + 1}"}
    return job.node(index, "fenced.py", nnodes="1:2", flags=["--max-restarts=0"], env=env)


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
    assert not wait_ends([rank_pid], 10)
    job.wait(lambda _: len(job.found("step", life=life + 2, world=2)) == 2, "a world of 2 again")
    job.stop()
    assert [node.wait() for node in nodes] == [0, 0], job.story()
