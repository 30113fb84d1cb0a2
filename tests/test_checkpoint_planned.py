"""Nodes that join a job that saves often, or leave it on purpose, come and go behind a save: no step is done again, and
the script says nothing of that."""

import signal

import pytest
from phalanx._bootstrap import board, rescale
from phalanx.checkpoint.ranks import safe_point
from test_checkpoint_job import directory as directory
from test_checkpoint_job import jobs_with_memory as jobs_with_memory
from test_checkpoint_job import make_job as make_job
from test_checkpoint_job import start, stored_steps

OFTEN = ["--step-ms=50", "--memory-every=7"]


def wait_two_saves(job, life):
    """Of all ranks: from then on each knows how far apart they are."""

    def all_have(events):
        saved = job.found("saved", life=life)
        world = saved[0]["world"] if saved else 1
        return all(sum(event["rank"] == rank for event in saved) >= 2 for rank in range(world))

    job.wait(all_have, f"two saves in life {life}")


def check_nothing_done_again(job, life, ranks, source):
    """That life goes on from the last step of the one before, on all ranks."""
    found = [job.wait_events("restored", life=life, rank=rank)[0] for rank in range(ranks)]
    assert {each["source"] for each in found} == {source}, found
    last = max(event["n"] for event in job.found("step", life=life - 1))
    assert {each["n"] for each in found} == {last}, job.story()
    assert last % 7 == 0
    return last


def end(job, *nodes):
    job.stop()
    assert [node.wait() for node in nodes] == [0] * len(nodes), job.story()


def test_nodes_that_join(job, directory):
    """One node, then two, then three, of memory alone."""
    arguments = [directory, "--ddp", *OFTEN]
    nodes = [start(job, *arguments, index=0, nnodes="1:3", nproc=1)]
    for life in (1, 2):
        wait_two_saves(job, life - 1)
        nodes.append(start(job, *arguments, index=life, nnodes="1:3", nproc=1))
        check_nothing_done_again(job, life, life + 1, "memory")
        assert stored_steps(directory) == []
    end(job, *nodes)


def test_a_node_that_leaves(job, directory):
    arguments = [directory, "--ddp", *OFTEN]
    nodes = [start(job, *arguments, index=index, nnodes="1:2", nproc=2) for index in (0, 1)]
    world = job.wait_events("restored", rank=0)[-1]["life"]
    job.wait(lambda events: len(job.found("restored", life=world)) >= 2, "all ranks")
    if len(job.found("restored", life=world)) < 4:  # the second node came behind the first round
        world = job.wait_events("restored", rank=3)[0]["life"]
    wait_two_saves(job, world)
    nodes[1].signal(signal.SIGTERM)
    assert nodes[1].wait() == 143, job.story()
    check_nothing_done_again(job, world + 1, 2, "memory")
    end(job, nodes[0])
    assert 1 <= len(stored_steps(directory)) <= 2, "as the node left, and at the end, where there was a newer one"


def test_what_no_other_world_takes_from_memory_is_stored_first(job, directory):
    """A state of each rank's own."""
    arguments = [directory, *OFTEN]
    nodes = [start(job, *arguments, index=index, nnodes="2", nproc=1) for index in (0, 1)]
    wait_two_saves(job, 0)
    nodes[1].signal(signal.SIGTERM)
    assert nodes[1].wait() == 143, job.story()
    nodes[1] = start(job, *arguments, index=2, nnodes="2", nproc=1)
    last = check_nothing_done_again(job, 1, 2, "disk")
    assert stored_steps(directory) == [last]
    end(job, *nodes)


def test_sharded_state_in_a_job_that_a_node_joins(job, tmp_path):
    def node(index):
        arguments = [f"--dir={tmp_path / 'run'}", "--steps=100000", "--save-every=7"]
        return job.node(index, "sharding.py", *arguments, nnodes="1:2", nproc=1)

    nodes = [node(0)]
    job.wait_events("before", 2, life=0, rank=0)
    nodes.append(node(1))
    found = [job.wait_events("loaded", life=1, rank=rank)[0] for rank in (0, 1)]
    assert {each["source"] for each in found} == {"memory"}, found
    assert not list((tmp_path / "run").glob("*/manifest.json"))
    for each in nodes:
        each.signal(signal.SIGTERM)
    assert [each.wait() for each in nodes] == [143] * len(nodes), job.story()


@pytest.fixture
def words(monkeypatch):
    """A board of this process's own, and an agent that asks."""
    monkeypatch.setattr(rescale, "_channel", object())
    monkeypatch.setattr(rescale, "_callbacks", [])
    monkeypatch.setattr(board, "on_step", None)
    announced = memoryview(bytearray(16)).cast("q")
    monkeypatch.setattr(board, "_rescale", announced)
    told = board.told_step()
    yield board.words, announced
    board.hear_rescale(0)
    board._signed[board.STEP] = told


def test_saves_that_are_far_apart_are_not_waited_for(words):
    """The second save of a step says nothing of how far apart they are."""
    points = safe_point.SafePoints()
    second, apart = 1_000_000_000, safe_point.APART_MAX_S * 1_000_000_000
    heard = []
    for step, now_ns in ((1, 100), (1, 200), (2, second), (3, 2 * second + apart), (4, 3 * second + apart)):
        points.saves(step, now_ns)
        heard.append(words[0][board.HEARS_RESCALE])
    assert heard == [0, 0, second + apart, 0, 3 * second + 2 * apart]


def test_the_save_that_is_the_last(words):
    """The first behind a told step that has come to the chosen one; none where nothing is announced, a function of the
    script's own decides, nobody asks, or the ranks have waited in vain."""
    points = safe_point.SafePoints()

    def due_at(*steps):
        found = []
        for step in steps:
            board._signed[board.STEP] = step
            found.append(points.is_due())
        return found

    assert due_at(9, 10, 20) == [False, False, False]
    words[1][0] = 10
    assert due_at(-1, 9, 10, 20) == [False, False, True, True]
    points.give_up()
    assert due_at(10, 20) == [False, False]
    words[1][0] = 30
    assert due_at(20, 30) == [False, True]
    rescale.add(lambda: None)
    assert due_at(30) == [False]
    board.hear_rescale(0)
    points.saves(1, 0)
    points.saves(2, 1)
    assert words[0][board.HEARS_RESCALE] == 0
    rescale._callbacks.clear()
    rescale.forget()
    assert due_at(30) == [False]
