"""A save that not all ranks make: nobody waits for it for ever, and who does hears which rank it is."""

import pytest
from phalanx.checkpoint.link import absent
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["full", "ddp"])
def test_only_one_rank_saves_a_later_step(job, directory, kind):
    run(job, directory, "later", kind)
    (waited,) = job.found("waited")
    assert waited["committed"] is False
    assert "rank 1 has not saved step 10 within 30 s: every rank saves the same steps" in waited["why"]


class Agent:
    """Of which `behind` are asked for, and that answers no wait within the seconds that it is asked for."""

    def __init__(self):
        self.asked_s = []

    def ask(self, request, **save):
        assert request == "absent" and save == SAVE
        return {"unopened": [], "unsaved": [], "behind": ["3"]}

    def wait(self, timeout_s):
        self.asked_s.append(timeout_s)
        raise TimeoutError


SAVE = {"dir": "/d", "step": 7, "branch": 0}


def test_ranks_that_are_slower_at_each_save_are_waited_for():
    patience = absent.Patience()
    patience.learn((True, None), 50.0)
    patience.learn((False, "dropped"), 1000.0)
    agent = Agent()
    is_so, why = absent.wait(agent, patience, SAVE, agent.wait, None)
    assert not is_so and why.startswith("rank 3 has not saved step 7 within 200 s")
    assert agent.asked_s == [10, 20, 170.0]
    agent = Agent()
    assert "within 30 s" in absent.wait(agent, absent.Patience(), SAVE, agent.wait, None)[1]
    assert agent.asked_s == [10, 20]
    with pytest.raises(TimeoutError):  # whose time is up before hears nothing of them
        absent.wait(agent, absent.Patience(), SAVE, agent.wait, 25)


def test_what_one_rank_cannot_save_is_dropped_on_all_by_its_name(job, directory):
    run(job, directory, "cannot", "full")
    (refused,), (waited,) = job.found("refused"), job.found("waited")
    assert refused["rank"] == 1 and refused["why"].startswith("state['bad']: sparse tensors"), refused
    assert waited["rank"] == 0 and waited["committed"] is False
    assert "rank 1: state['bad']: sparse tensors are not supported" in waited["why"], waited
