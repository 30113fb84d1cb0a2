"""--nnodes=MIN:MAX: start with few, grow, shrink, replace. Membership changes cost no restart of the budget."""

import signal
import socket
import subprocess

import pytest
from harness import command_path, descends_from

FLAGS = ["--max-restarts=0"]  # so that any membership change that was counted as a failure would end the job


@pytest.mark.slow
def test_grow_and_shrink(job):
    """1:3 starts at once with one node, takes in two more, and goes on with two when one leaves by SIGTERM."""
    first = job.node(0, "steps.py", nnodes="1:3", flags=FLAGS)
    job.wait_stepping(life=0, world=1)
    others = [job.node(index, "steps.py", nnodes="1:3", flags=FLAGS) for index in (1, 2)]
    life = job.wait_world(3)  # where one of them is much later than the other, there was one of 2 before
    assert descends_from(job.pid(0, life), first.pid)
    leaver = next(node for node in others if descends_from(job.pid(1, life), node.pid))
    leaver.signal(signal.SIGTERM)
    job.wait_world(2, after=life)
    assert leaver.wait() == 143, job.story()
    job.stop()
    stayed = [node for node in (first, *others) if node is not leaver]
    assert [node.wait() for node in stayed] == [0, 0], job.story()


@pytest.mark.slow
def test_survivors_keep_their_ranks(job):
    """A lost node's ranks go to the newcomer; the survivor keeps its own, and no failure is counted."""
    nodes = [job.node(index, "light_steps.py", nnodes="2", flags=FLAGS) for index in (0, 1)]
    job.wait_stepping(life=0, world=2)
    ranks = {rank: next(n for n in nodes if descends_from(job.pid(rank, 0), n.pid)) for rank in (0, 1)}
    victim, survivor = ranks[1], ranks[0]
    victim.signal(signal.SIGKILL)
    job.killed_by_test = True
    newcomer = job.node(2, "light_steps.py", nnodes="2", flags=FLAGS)
    job.wait_stepping(life=1, world=2)
    assert descends_from(job.pid(0, 1), survivor.pid)
    assert descends_from(job.pid(1, 1), newcomer.pid)
    job.stop()
    assert [survivor.wait(), newcomer.wait()] == [0, 0], job.story()


def test_more_nodes_than_max_are_spares(job):
    """A node that finds the job full waits as a spare, and ends with 0 when the job does."""
    nodes = [job.node(0, "light_steps.py", nnodes="1:1", flags=FLAGS)]
    job.wait_stepping(life=0, world=1)
    nodes.append(job.node(1, "light_steps.py", nnodes="1:1", flags=FLAGS))
    nodes[1].wait_line("spare")
    job.stop()
    assert [node.wait() for node in nodes] == [0, 0], job.story()
    assert sorted(job.lives()) == [0]


def test_wrong_job_is_refused(job):
    """A node of another job that comes to this port is told so, and not which is there; the job does not notice."""
    first = job.node(0, "light_steps.py", nnodes="1:2", flags=FLAGS)
    job.wait_stepping(life=0, world=1)
    stranger = job.node(1, "light_steps.py", nnodes="1:2", flags=[*FLAGS, "--rdzv-id=another-job"])
    assert stranger.wait() == 1, job.story()
    assert "this master serves another job than 'another-job'" in stranger.stderr
    assert job.id not in stranger.stderr
    job.stop()
    assert first.wait() == 0, job.story()
    assert sorted(job.lives()) == [0]


def test_port_of_somebody_else(job):
    """Where --rdzv-endpoint is another program's, the error names the port; nothing hangs."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", job.port))
        other.listen()
        node = job.node(0, "tell.py", nnodes="1", flags=["--rdzv-conf=join_timeout=2"])
        assert node.wait() == 1, job.story()
    assert str(job.port) in node.stderr


@pytest.mark.slow
def test_nodes_in_units(job):
    """--node-unit=2: two nodes train, then four; when one of them leaves, a second one waits as a spare."""
    flags = ["--max-restarts=0", "--node-unit=2"]
    nodes = [job.node(index, "light_steps.py", nnodes="1:5", flags=flags) for index in (0, 1)]
    job.wait_stepping(life=0, world=2)
    nodes += [job.node(index, "light_steps.py", nnodes="1:5", flags=flags) for index in (2, 3)]
    nodes[2].wait_line("taken as 2:4, the multiples of --node-unit=2")
    job.wait_stepping(life=1, world=4)
    leaver = next(node for node in nodes if descends_from(job.pid(1, 1), node.pid))
    leaver.signal(signal.SIGTERM)
    job.wait_stepping(life=2, world=2)
    assert leaver.wait() == 143
    left = [node for node in nodes if node is not leaver]
    spare = "this node waits as a spare: --node-unit=2"
    job.wait(lambda _: sum(spare in node.stderr for node in left) == 1, "one spare")
    job.stop()
    assert [node.wait() for node in left] == [0, 0, 0], job.story()


def test_a_short_script_and_a_late_node(job):
    """It has ended before the second node comes, and the master with it: there that node begins a job of its own."""
    nodes = []
    for index in range(2):
        nodes.append(job.node(index, "printer.py", nnodes="1:2"))
        assert nodes[index].wait() == 0, job.story()
    assert ["out of rank 0 in life 0" in node.stdout for node in nodes] == [True, True], job.story()


def test_a_short_script_and_a_last_call(job):
    """With --rdzv-conf=last_call_timeout=N the first node waits for the second, as under torchrun: both run it."""
    flags = ["--rdzv-conf=last_call_timeout=50", "--explain"]
    first = job.node(0, "printer.py", nnodes="1:2", flags=flags)
    first.wait_line("the stream to the master is open")
    status = [command_path("phalanx"), "status", "--watch=1", f"--state-dir={job.folder / 'state0'}"]
    with subprocess.Popen(status, stdout=subprocess.PIPE, text=True) as watch:
        # For longer than it would without, which is 0.3 s.
        looks = (line for line in watch.stdout if "gathering" in line)
        assert [next(looks, "") != "" for _ in range(2)] == [True, True], job.story()
        watch.terminate()
    second = job.node(1, "printer.py", nnodes="1:2", flags=flags)
    assert [first.wait(), second.wait()] == [0, 0], job.story()
    told = sorted(line for node in (first, second) for line in node.stdout.splitlines() if line.startswith("out of"))
    assert told == ["out of rank 0 in life 0", "out of rank 1 in life 0"], job.story()
