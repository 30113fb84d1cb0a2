"""Going back: load() in the middle of a life, steps that are lower than those before, another run in a directory."""

import json

import pytest
from test_checkpoint_job import directory as directory
from test_checkpoint_job import jobs_with_memory as jobs_with_memory
from test_checkpoint_job import make_job as make_job


def node(job, directory, *plan, index=0, nproc=2):
    """`plan`: what each life does, as tests/workloads/going_back.py has it."""
    return job.node(index, "going_back.py", directory, *plan, nnodes="1", nproc=nproc, flags=["--redirects=3"])


def told(job, event, rank=0):
    return [(each["n"], each["value"]) for each in job.found(event, rank=rank)]


def stored(directory):
    """{folder: (sequence, timeline)} of the steps on disk."""
    found = {}
    for manifest in directory.glob("*/manifest.json"):
        text = json.loads(manifest.read_text().rpartition("crc32 ")[0])
        found[manifest.parent.name] = text["sequence"], text["timeline"]
    return found


def test_a_load_in_the_middle_of_a_life_is_of_that_moment(job, directory):
    """The first load() finds nothing; behind two saves one finds the newer."""
    assert node(job, directory, "load save:10 save:20 spoil load save:30 load").wait() == 0, job.story()
    for rank in (0, 1):
        assert told(job, "loaded", rank) == [(0, None), (20, 20), (30, 30)]


def test_saves_behind_going_back_are_newer_than_those_before(job, directory):
    """Also for the next life, and where the script goes back by itself."""
    plan = ["load save:10 save:30 load save:20 die", "load save:15 save:12 die", "load"]
    assert node(job, directory, *plan).wait() == 0, job.story()
    for rank in (0, 1):
        assert told(job, "loaded", rank) == [(0, None), (30, 30), (20, 20), (12, 12)]


def test_what_is_stored_behind_going_back_stays(make_job, directory):
    """It is the newest on disk, though its steps are lower, also for the next run; retention deletes what is oldest."""
    first, second = make_job(), make_job()
    assert node(first, directory, "load disk:100 disk:200 disk:300 load disk:10", "--keep-last=3").wait() == 0
    assert node(second, directory, "load disk:20 disk:30", "--keep-last=3").wait() == 0
    assert told(second, "loaded") == [(10, 10)]
    assert stored(directory) == {"10": (4, 1), "20": (5, 1), "30": (6, 1)}
    assert (directory / "latest").read_text() == "30"


@pytest.mark.parametrize("id_of_next", ["same", "another"])
def test_another_run_in_the_same_directory(make_job, directory, id_of_next):
    """It begins again at step 10 beside 100 and 200, without loading them: what it stores is the newest, and stays."""
    first = make_job()
    assert node(first, directory, "load disk:100 disk:200", "--keep-last=2").wait() == 0, first.story()
    second = make_job()
    if id_of_next == "same":
        second.id = first.id
    assert node(second, directory, "disk:10 save:20 die", "load", "--keep-last=2").wait() == 0, second.story()
    assert told(second, "loaded") == [(20, 20)], "what memory holds is newer than a higher step of another run"
    assert stored(directory) == {"200": (2, 0), "10": (3, 1)}
