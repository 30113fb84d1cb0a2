"""Any rank may die, in any way and in any phase: all ranks of all nodes start again together, once for each failure."""

import os
import signal

import pytest
from harness import kill_each
from share import free_port

HOWS = ["kill", "exception", "exit3", "segv"]


def faults(phase, hows, victims):
    """One fault in each life, the victim alternating."""
    return [f"--fault={life}:{victims[life % len(victims)]}:{phase}:{how}" for life, how in enumerate(hows)]


def check_lives(job, count, world):
    """Each life had all ranks, each with a process of its own, and only the last one came to its end."""
    lives = job.lives()
    assert sorted(lives) == list(range(count)), job.story()
    pids = [pid for life in lives.values() for pid in life.values()]
    assert len(set(pids)) == len(pids)
    # Ranks that had not come to their first line when a sibling died are no failure: the last life must be whole.
    assert sorted(lives[count - 1]) == list(range(world))
    assert sorted(event["rank"] for event in job.found("done", life=count - 1)) == list(range(world))


@pytest.mark.parametrize("phase", ["import", "before_init", "first_step", "all_reduce", "exiting"])
def test_any_death_in_any_phase(job, phase):
    """SIGKILL, exception, os._exit(3) and a real SIGSEGV, one after the other, in one phase, of either rank."""
    hows = [how for how in HOWS if (phase, how) != ("exiting", "exception")]  # exceptions of atexit are only printed
    node = job.standalone("light_steps.py", "--steps=3", *faults(phase, hows, [1, 0]), flags=["--max-restarts=4"])
    assert node.wait() == 0, job.story()
    assert [event["how"] for event in job.found("dying")] == hows
    check_lives(job, len(hows) + 1, world=2)


@pytest.mark.dropin
def test_death_of_a_data_loader_process(job):
    """A DataLoader's process is killed: its rank fails, and the next life has data again."""
    node = job.standalone(
        "steps.py", "--steps=5", "--data-worker", "--fault=0:1:dataloader:kill", flags=["--max-restarts=1"]
    )
    assert node.wait() == 0, job.story()
    dying = job.found("dying", phase="dataloader")
    assert len(dying) == 1 and dying[0]["pid"] != job.pid(rank=1, life=0)
    check_lives(job, 2, world=2)


@pytest.mark.dropin
def test_one_death(job):
    """kill -9 of one rank from outside: every rank has a new life, counted once, and training goes on."""
    node = job.standalone("steps.py", flags=["--max-restarts=3"])
    job.wait_stepping(life=0, world=2)
    os.kill(job.pid(rank=1, life=0), signal.SIGKILL)
    job.wait_stepping(life=1, world=2)
    job.stop()
    assert node.wait() == 0, job.story()
    check_lives(job, 2, world=2)


def test_ports_of_the_stores_go_round_in_their_range(job):
    """What is left of the round before finds nobody at its store's port."""
    first = free_port()
    last = first + 9
    flags = ["--max-restarts=3", f"--port-range={first}-{last}"]
    node = job.standalone("tell.py", "--exit", "1", "--exit-rank", "1", flags=flags)
    assert node.wait() == 1, job.story()
    ports = [int(event["env"]["MASTER_PORT"]) for event in job.found("told", rank=1)]
    assert len(ports) == 4 and all(first <= port <= last for port in ports), ports
    assert len({*ports[:3]}) == len({*ports[1:]}) == 3, ports


def test_two_ranks_at_once(job):
    """Both ranks are killed together: one failure, one restart."""
    node = job.standalone("light_steps.py", flags=["--max-restarts=1"])
    job.wait_stepping(life=0, world=2)
    pids = [job.pid(rank, life=0) for rank in (0, 1)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)  # so that neither can see the other die first
    kill_each(pids)
    job.wait_stepping(life=1, world=2)
    job.stop()
    assert node.wait() == 0, job.story()
    check_lives(job, 2, world=2)


def test_kill_during_a_recovery(job):
    """A rank dies while the others of its new life are still starting: yet another life, no hang."""
    node = job.standalone("light_steps.py", flags=["--max-restarts=3"])
    job.wait_stepping(life=0, world=2)
    os.kill(job.pid(rank=0, life=0), signal.SIGKILL)
    os.kill(job.pid(rank=1, life=1), signal.SIGKILL)
    job.wait_stepping(life=2, world=2)
    job.stop()
    assert node.wait() == 0, job.story()
    assert sorted(job.lives()) == [0, 1, 2]


@pytest.mark.slow
def test_two_nodes_restart_together(job):
    """Deaths on both nodes, in several phases: both restart each time, with the same count, and keep their ranks."""
    plan = ["0:3:first_step:kill", "1:0:all_reduce:kill", "2:2:before_init:exception", "3:1:import:exit3"]
    arguments = ["--steps=3", *(f"--fault={fault}" for fault in plan)]
    nodes = [job.node(index, "light_steps.py", *arguments, nproc=2, flags=["--max-restarts=4"]) for index in (0, 1)]
    assert [node.wait() for node in nodes] == [0, 0], job.story()
    assert len(job.found("dying")) == len(plan)
    check_lives(job, len(plan) + 1, world=4)
    places = {event["rank"]: event["local_rank"] for event in job.found("done")}
    assert places == {0: 0, 1: 1, 2: 0, 3: 1}


@pytest.mark.slow
def test_deaths_on_both_nodes_at_once(job):
    """One rank of each node is killed at the same moment: one restart of the job, equal everywhere."""
    nodes = [job.node(index, "light_steps.py", flags=["--max-restarts=1"]) for index in (0, 1)]
    job.wait_stepping(life=0, world=2)
    pids = [job.pid(rank, life=0) for rank in (0, 1)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    kill_each(pids)
    job.wait_stepping(life=1, world=2)
    job.stop()
    assert [node.wait() for node in nodes] == [0, 0], job.story()
    check_lives(job, 2, world=2)
