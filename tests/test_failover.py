"""The node that hosts the job's master is lost: another node takes the job up, without a service for that."""

import os
import re
import secrets
import signal
import socket
import subprocess

import pytest
import share
from harness import command_path, name_of, wait_ends

FLAGS = ["--max-restarts=0"]  # so that any loss that was counted as a failure would end the job
HOSTS_IT = "the job's master is at ([^ ]+) now"


def start(job, nodes, script="light_steps.py", env=None):
    """The first node is there first, and so hosts the master: on one machine every address is everybody's."""
    of_all = {"nnodes": f"1:{nodes}", "flags": FLAGS, "env": env}
    started = [job.node(0, script, **of_all)]
    alone = job.wait_world(1)
    started += [job.node(index, script, **of_all) for index in range(1, nodes)]
    life = job.wait_world(nodes, after=alone)
    for node in started[1:]:
        assert not re.search(HOSTS_IT, node.stderr)
    return started, life


def kill(job, node):
    """Everything of it, its master included."""
    job.killed_by_test = True
    pids = job.processes(node)
    job.signal_node(node, signal.SIGKILL)
    assert wait_ends(pids, 20) == []


def hosts_it(nodes):
    """Where all of them say that the master is; and which of them hosts it."""
    addresses = {node.wait_line(HOSTS_IT).split(" is at ")[1].split()[0] for node in nodes}
    assert len(addresses) == 1
    # A later successor has offered itself, too, where the first one was slow.
    (address,) = addresses
    (host,) = [node for node in nodes if f"--local-addr={address.rpartition(':')[0]}" in node.command]
    assert "this node would take its place" in host.stderr
    return host


@pytest.mark.parametrize("env", [None, {"PHALANX_TOKEN": secrets.token_hex(16)}], ids=["open", "a token"])
def test_the_masters_node_is_killed_and_then_the_next_one(job, env):
    """Three nodes go on as two, and then as one. The first comes back, and is sent on."""
    nodes, life = start(job, 3, env=env)
    kill(job, nodes[0])
    life = job.wait_world(2, after=life)
    host = hosts_it(nodes[1:])
    (last,) = [node for node in nodes[1:] if node is not host]
    kill(job, host)
    life = job.wait_world(1, after=life)
    assert job.node_of(0, life) is last
    back = job.node(0, "light_steps.py", nnodes="1:3", flags=FLAGS, env=env)
    life = job.wait_world(2, after=life)
    assert {job.node_of(rank, life) for rank in range(2)} == {last, back}
    job.stop()
    assert [last.wait(), back.wait()] == [0, 0], job.story()
    assert "restart 1" not in last.stderr


def test_a_node_with_too_few_ports_says_that_it_cannot_host_the_master(job):
    first = next(port for port in iter(share.free_port, None) if port % share.PORTS_EACH < share.PORTS_EACH - 3)
    few = f"--port-range={first}-{first + 3}"
    node = job.node(0, "light_steps.py", "--steps=3", nnodes="1:2", flags=[*FLAGS, few])
    assert node.wait() == 0, job.story()
    assert f"this node cannot host the job's master: {few} has 4 ports, which its stores need" in node.stderr


@pytest.mark.parametrize("is_candidate", [True, False], ids=["to be elected", "the job's"])
def test_a_master_whose_node_is_gone(tmp_path, is_candidate):
    """One that was not elected ends with its node, whatever became of that; another serves those that live."""
    near, far = socket.socketpair()
    flags = ["--embedded", "--spec-from-hello", "--port=0", "--job-id=j", f"--state-dir={tmp_path}"]
    flags += ["--candidate-term=2"] if is_candidate else []
    command = [command_path("phalanx-master"), *flags, f"--ready-fd={far.fileno()}"]
    with subprocess.Popen(command, pass_fds=[far.fileno()]) as master, near, far:
        far.close()
        assert near.recv(100).startswith(b"ready ")
        near.close()
        if is_candidate:
            assert master.wait(20) == 143
            return
        with pytest.raises(subprocess.TimeoutExpired):
            master.wait(1)
        master.kill()


def test_its_master_alone_is_killed_and_nobody_else_takes_it(job):
    nodes, life = start(job, 3)
    (master,) = [pid for pid in job.processes(nodes[0]) if "phalanx-master" in name_of(pid)]
    job.killed_by_test = True
    os.kill(master, signal.SIGKILL)
    nodes[0].wait_line("the job's master has ended .* it is started again")
    for node in nodes:
        node.wait_line("the master answers again")
    job.wait_stepping(life, 3)
    job.stop()
    assert [node.wait() for node in nodes] == [0, 0, 0], job.story()
    assert not any(re.search(HOSTS_IT, node.stderr) for node in nodes)


def test_the_masters_node_is_cut_off_and_comes_back(make_network, make_job):
    """The others are a world of two; the one that was cut off ends its ranks and begins no round alone. When its cable
    is back, its master steps aside, and it is taken in again."""
    job = make_job(make_network(3))
    job.endpoint_host = job.network.address(0)
    nodes, life = start(job, 3)
    assert f"the job is open: whoever reaches {job.network.address(0)}" in nodes[0].stderr
    assert all("the job is open" not in node.stderr for node in nodes[1:])
    job.network.pull(0)
    life = job.wait_world(2, after=life)
    assert hosts_it(nodes[1:]) is not nodes[0]
    nodes[0].wait_line("waiting for 1 more of the 3 nodes that trained last: 1 is here")
    job.network.plug(0)
    life = job.wait_world(3, after=life)
    nodes[0].wait_line(HOSTS_IT)
    alone = [event for event in job.found("main") if event["world"] == 1]
    assert len(alone) == 1, "the node that was cut off has begun a round alone"
    job.stop()
    assert [node.wait() for node in nodes] == [0, 0, 0], job.story()


def test_a_name_of_all_machines(make_network, make_job, tmp_path):
    """One of them hosts the job, whoever is there first. Who comes when that one is gone, and its address silent, finds
    the master where it is by then."""
    job = make_job(make_network(4))
    job.network.name_all("masters", tmp_path / "hosts")
    job.endpoint_host = "masters"
    nodes = [job.node(2, "light_steps.py", nnodes="1:4", flags=FLAGS)]
    nodes[0].wait_line("no answer from the master")
    nodes += [job.node(index, "light_steps.py", nnodes="1:4", flags=FLAGS) for index in (1, 0)]
    life = job.wait_world(3)
    masters = [sum("phalanx-master" in name_of(pid) for pid in job.processes(node)) for node in nodes]
    assert masters == [0, 0, 1]
    kill(job, nodes[2])
    life = job.wait_world(2, after=life)
    for node in nodes[:2]:
        node.wait_line(HOSTS_IT)
    back = job.node(0, "light_steps.py", nnodes="1:4", flags=FLAGS)  # it would host the job once more
    life = job.wait_world(3, after=life)
    kill(job, back)
    life = job.wait_world(2, after=life)
    job.network.pull(0)
    late = job.node(3, "light_steps.py", nnodes="1:4", flags=FLAGS)
    life = job.wait_world(3, after=life)
    job.stop()
    assert [node.wait() for node in (*nodes[:2], late)] == [0, 0, 0], job.story()


def test_of_two_nodes_the_one_without_the_master_waits_while_it_is_cut_off(make_network, make_job):
    """Nobody can tell it whether the other trains on, and the other does."""
    job = make_job(make_network(2))
    job.endpoint_host = job.network.address(0)
    nodes, life = start(job, 2)
    job.network.pull(0)
    life = job.wait_world(1, after=life)
    assert job.node_of(0, life) is nodes[0]
    nodes[1].wait_line("this node would take its place")
    nodes[1].wait_line("has ended: ")  # it was not elected
    job.network.plug(0)
    life = job.wait_world(2, after=life)
    job.stop()
    assert [node.wait() for node in nodes] == [0, 0], job.story()
