"""A save that not all ranks make: nobody waits for it for ever, and who does hears which rank it is."""

import math

import pytest
from phalanx.checkpoint.link import absent
from test_checkpoint_dcp import long
from test_checkpoint_job import directory as directory
from test_checkpoint_job import jobs_with_memory as jobs_with_memory
from test_checkpoint_job import make_job as make_job


def run(job, directory, who, kind):
    node = job.node(0, "saving_alone.py", directory, who, kind, nnodes="1", nproc=2, flags=["--redirects=3"])
    assert node.wait() == 0, job.story()


@pytest.mark.parametrize("kind", ["full", long("ddp")])
def test_only_one_rank_has_a_checkpointer(job, directory, kind):
    run(job, directory, "makes", kind)
    (waited,) = job.found("waited")
    assert waited["committed"] is False
    assert f"rank 1 has made no Checkpointer of {directory} within 10 s: every rank makes one" in waited["why"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [long("full"), "ddp"])
def test_only_one_rank_saves(job, directory, kind):
    run(job, directory, "saves", kind)
    (waited,) = job.found("waited")
    assert waited["committed"] is False
    assert "rank 1 has saved nothing within 30 s: every rank calls save()" in waited["why"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["full", long("ddp")])
def test_only_one_rank_saves_a_later_step(job, directory, kind):
    run(job, directory, "later", kind)
    (waited,) = job.found("waited")
    assert waited["committed"] is False
    assert "rank 1 has not saved step 10 within 30 s: every rank saves the same steps" in waited["why"]


def run_two_nodes(job, directory, *arguments, script="saving_alone.py"):
    """Of one rank each."""
    flags = ["--redirects=3"]
    nodes = [job.node(index, script, directory, *arguments, flags=flags) for index in (0, 1)]
    assert [node.wait() for node in nodes] == [0, 0], job.story()


def test_a_wait_that_is_over_says_that_other_nodes_have_not_saved(job, directory):
    run_two_nodes(job, directory, "saves", "full", "--timeout=2", "--after-all")
    (waited,), after = job.found("waited"), job.found("waited after all")
    assert waited["committed"] is None
    missing = "all ranks of this node have come to it, ranks of other nodes have not"
    assert waited["why"] == f"phalanx.checkpoint: step 10 is not committed within 2.0 s: {missing}"
    assert [each["committed"] for each in after] == [True, True], job.story()


def test_a_wait_that_is_over_names_the_ranks_of_its_node(job, directory):
    flags = ["--redirects=3"]
    node = job.node(0, "saving_alone.py", directory, "saves", "full", "--timeout=2", nnodes="1", nproc=2, flags=flags)
    assert node.wait() == 0, job.story()
    (waited,) = job.found("waited")
    said = "phalanx.checkpoint: step 10 is not committed within 2.0 s: rank 1 has saved nothing"
    assert (waited["committed"], waited["why"]) == (None, said)


@pytest.mark.slow
@pytest.mark.parametrize("what", [["later", "ddp"], long(["saves", "full", "--stored"])], ids=["memory", "disk"])
def test_ranks_of_another_node_that_do_not_save(job, directory, what):
    """They are waited for, by a wait that is given no timeout, for five minutes: here 31 s. The save counts when they
    have come to it after all."""
    run_two_nodes(job, directory, *what, "--others=31", "--after-all")
    (waited,), after = job.found("waited"), job.found("waited after all")
    assert waited["committed"] is False
    said = "step 10 is not committed within 31 s: all ranks of this node have come to it, ranks of other nodes"
    assert f"{said} have not" in waited["why"], waited
    assert [each["committed"] for each in after] == [True, True], job.story()


@pytest.mark.parametrize("stored", [[], ["--stored"]], ids=["memory", "disk"])
def test_one_rank_alone_may_load(job, directory, stored):
    """Of a state of each rank's own, or DDP: the answer is the same for all, and no other rank is waited for."""
    run_two_nodes(job, directory, "restores", "full", *stored)
    (loaded,) = job.found("loaded")
    assert loaded["n"] == 5, loaded


def share(job, directory, what, kind):
    """What ranks 0 and 1 hear of a call that rank 0 makes first, and rank 1 when rank 0 has waited in vain. The save
    behind it is one of both."""
    run_two_nodes(job, directory, what, kind, script="sharing_alone.py")
    assert [each["kept"] for each in job.found("saved", n=11)] == [True, True], job.story()
    found = {each["rank"]: each for each in job.found("saved", n=10) + job.found("called")}
    assert not any(each.get("kept") for each in found.values()), found
    return found[0]["why"], found[1]["why"]


@pytest.mark.parametrize("kind", ["dcp", long("files")])
def test_one_rank_alone_saves_what_all_share(job, directory, kind):
    """The first step: both hear it, the late one at once."""
    for why in share(job, directory, "saves", kind):
        assert why == (
            "rank 1 has not come to save() or prepare() of step 10 within 3 s: every rank makes the same calls of "
            "save(), prepare() and load()"
        )


def test_one_rank_alone_saves_a_later_step_of_what_all_share(job, directory):
    """The late one saves its part, which is dropped as the other one's is missing."""
    first, late = share(job, directory, "later", "dcp")
    missing = "rank 1 has not come to save() or prepare() of step 10 within 3 s: every rank makes the same calls"
    assert first.startswith(missing), first
    assert missing in late, late


@pytest.mark.parametrize("kind", [long("dcp"), "files"])
def test_a_late_rank_does_not_plan_alone(job, directory, kind):
    """The state is another one, which ranks plan together: it must not wait for the one that has given up."""
    first, late = share(job, directory, "changed", kind)
    assert first.startswith("rank 1 has not come to save() or prepare() of step 10 within 3 s"), first
    assert late == "another rank has waited in vain for this one, and given this save up", late


def test_one_rank_alone_takes_a_writer(job, directory):
    for why in share(job, directory, "writer", "dcp"):
        assert "rank 1 has not come to save() or prepare() of step 10 within 3 s" in why, why


@pytest.mark.parametrize("kind", ["dcp", long("files")])
def test_behind_saves_that_a_rank_never_comes_to_all_save_together(job, directory, kind):
    """Not one that it is late for: the ranks have not voted equally often."""
    run_two_nodes(job, directory, "skip", kind, script="sharing_alone.py")
    found = [(each["rank"], each["n"], each["kept"]) for each in job.found("saved") if each["n"] > 5]
    assert sorted(found) == [(0, 9, False), (0, 10, False), (0, 11, True), (1, 11, True)], job.story()


def test_a_group_that_has_ended_is_followed_by_another(job, directory):
    """A rank that comes half an hour late finds that gloo has given the group up: that costs the save, no training."""
    for why in share(job, directory, "ended", "dcp"):
        assert why.startswith("the ranks' group has ended; the next save makes another: "), why


def test_one_rank_alone_loads_what_all_share(make_job, directory):
    run_two_nodes(make_job(), directory, "all save", "dcp", script="sharing_alone.py")
    for why in share(make_job(), directory, "loads", "dcp"):
        assert f"phalanx.checkpoint: {directory}: rank 1 has not come to load() within 3 s" in why, why


def told(job):
    """What rank 0 has been told while it waited."""
    return [text for each in job.found("called", rank=0) for text in each["told"]]


def notice(directory):
    return (
        f"phalanx.checkpoint: {directory}: rank 1 has not come to load() within 2 s: every rank makes the same calls "
        "of save(), prepare() and load(). Waiting on"
    )


def test_one_rank_alone_loads_what_all_share_a_second_time(job, directory):
    """It is told for whom it waits long before it gives up; the late one hears at once that nobody waits any more."""
    first, late = share(job, directory, "later load", "dcp")
    assert "rank 1 has not come to load() within 3 s: every rank makes the same calls" in first, first
    assert "another rank has waited in vain for this one, and given this load() up" in late, late
    assert told(job) == [notice(directory)]


def test_behind_a_load_that_a_rank_never_comes_to_all_save_together(job, directory):
    run_two_nodes(job, directory, "skip load", "dcp", script="sharing_alone.py")
    assert [each["kept"] for each in job.found("saved", n=11)] == [True, True], job.story()
    assert told(job) == [notice(directory)]


def test_a_rank_that_fails_in_a_load_is_not_waited_for(job, directory):
    first, second = share(job, directory, "fails", "dcp")
    assert (first, second) == (
        f"phalanx.checkpoint: {directory}: another rank cannot load, and says why",
        "the agent is gone",
    )


def test_a_rank_that_loads_while_another_saves(job, directory):
    """Both hear it at once, and what they do together behind it is done."""
    first, late = share(job, directory, "loads, others save", "dcp")
    assert "another rank saves step 10 meanwhile: every rank makes the same calls" in first, first
    assert late.startswith("another rank loads meanwhile: every rank makes the same calls"), late
    assert told(job) == []


class Agent:
    """Of which `behind` are asked for, and that answers no wait but that of `answers_at` seconds."""

    def __init__(self, behind=("3",)):
        self.asked_s, self.behind, self.answers_at = [], list(behind), "never"

    def ask(self, request, timeout_s, **save):
        assert request == "absent" and save == SAVE
        return {"unopened": [], "unsaved": [], "behind": self.behind}

    def wait(self, timeout_s):
        self.asked_s.append(timeout_s)
        if timeout_s == self.answers_at:
            return True, None
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


def test_how_long_ranks_of_other_nodes_are_waited_for():
    """Five minutes, longer where they are further apart at each save, and without end where that is asked for."""

    def waits(patience, timeout_s, others_s):
        agent = Agent(behind=())
        return absent.wait(agent, patience, SAVE, agent.wait, timeout_s, others_s), agent.asked_s

    (is_so, why), asked_s = waits(absent.Patience(), None, absent.OTHERS_S)
    assert not is_so and "step 7 is not committed within 300 s" in why and asked_s == [10, 20, 270]
    apart = absent.Patience()
    apart.learn((True, None), 100.0)
    assert waits(apart, None, absent.OTHERS_S)[1] == [10, 20, 370.0, 0.0]
    for timeout_s, others_s in ((math.inf, absent.OTHERS_S), (None, math.inf), (3600, absent.OTHERS_S)):
        agent = Agent(behind=())
        agent.answers_at = None if timeout_s != 3600 else 3570
        assert absent.wait(agent, absent.Patience(), SAVE, agent.wait, timeout_s, others_s) == (True, None)
        assert agent.asked_s == [10, 20, agent.answers_at]


def test_what_one_rank_cannot_save_is_dropped_on_all_by_its_name(job, directory):
    run(job, directory, "cannot", "full")
    (refused,), (waited,) = job.found("refused"), job.found("waited")
    assert refused["rank"] == 1 and refused["why"].startswith("state['bad']: sparse tensors"), refused
    assert waited["rank"] == 0 and waited["committed"] is False
    assert "rank 1: state['bad']: sparse tensors are not supported" in waited["why"], waited
