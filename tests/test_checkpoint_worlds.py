"""A state of each rank's own, stored by one world and loaded by another: nothing is left out without a word."""

from test_checkpoint_job import directory as directory
from test_checkpoint_job import jobs_with_memory as jobs_with_memory
from test_checkpoint_job import make_job as make_job
from test_checkpoint_job import memory_of, start


def stored_by(make_job, directory, ranks):
    job = make_job()
    assert start(job, directory, "--steps=4", "--disk-every=4", "--wait=stored", nproc=ranks).wait() == 0, job.story()
    assert len(job.found("stored", n=4)) == ranks


def test_a_smaller_world_is_told_whose_states_it_leaves(make_job, directory):
    stored_by(make_job, directory, 2)
    job = make_job()
    assert start(job, directory, "--steps=6", nproc=1).wait() == 0, job.story()
    (found,) = job.found("restored")
    assert (found["n"], found["source"]) == (4, "disk")
    assert found["why"].endswith("what rank 1 had saved is left out: this world is smaller"), found


def test_a_larger_world_is_refused_with_what_would_be_right(make_job, directory):
    stored_by(make_job, directory, 1)
    job = make_job()
    node = start(job, directory, "--steps=6", nproc=2, flags=["--max-restarts=0"])
    assert node.wait() == 1, job.story()
    assert "has nothing of rank 1: it was saved by a world of 1. Go on with as many ranks" in node.stderr, job.story()


def test_memory_of_ranks_that_are_no_more_is_given_back(job, directory):
    """A node of two ranks is killed and comes back with one: once that has saved, the other's slots are gone."""
    first = start(job, directory, "--memory-every=2", nproc=2)
    job.wait_events("committed", rank=1, n=4)
    job.kill_all()
    first.wait()
    assert pages_in(memory_of(job)) == ["control-0", "control-1"]
    start(job, directory, "--memory-every=2", nproc=1)
    job.wait_events("committed", world=1)
    assert pages_in(memory_of(job)) == ["control-0"]
    assert list(memory_of(job).glob("*/slot-1-*")) == []


def pages_in(memory):
    return sorted(page.name for page in memory.glob("*/control-*"))
