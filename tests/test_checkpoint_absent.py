"""A save that not all ranks make: nobody waits for it for ever, and who does hears which rank it is."""

import pytest
from test_checkpoint_job import directory as directory
from test_checkpoint_job import jobs_with_memory as jobs_with_memory
from test_checkpoint_job import make_job as make_job


def run(job, directory, who, kind):
    node = job.node(0, "saving_alone.py", directory, who, kind, nnodes="1", nproc=2, flags=["--redirects=3"])
    assert node.wait() == 0, job.story()


@pytest.mark.parametrize("kind", ["full", "ddp"])
def test_only_one_rank_has_a_checkpointer(job, directory, kind):
    run(job, directory, "makes", kind)
    (waited,) = job.found("waited")
    assert waited["committed"] is False
    assert f"rank 1 has made no Checkpointer of {directory} within 10 s: every rank makes one" in waited["why"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["full", "ddp"])
def test_only_one_rank_saves(job, directory, kind):
    run(job, directory, "saves", kind)
    (waited,) = job.found("waited")
    assert waited["committed"] is False
    assert "rank 1 has saved nothing within 30 s: every rank calls save()" in waited["why"]


def test_what_one_rank_cannot_save_is_dropped_on_all_by_its_name(job, directory):
    run(job, directory, "cannot", "full")
    (refused,), (waited,) = job.found("refused"), job.found("waited")
    assert refused["rank"] == 1 and refused["why"].startswith("state['bad']: sparse tensors"), refused
    assert waited["rank"] == 0 and waited["committed"] is False
    assert "rank 1: state['bad']: sparse tensors are not supported" in waited["why"], waited
