"""The network of a node is cut while its processes live: others go on, and it comes back when the network is healed."""

import json
import re
import subprocess
import sys

import pytest
from harness import wait_ends

FLAGS = ["--max-restarts=0", "--explain"]
MASTERS_HOST = 3
# What happens to the cable of the node, and what mends it.
CUTS = {
    "pulled": (lambda network, host: network.pull(host), lambda network, host: network.plug(host)),
    "it is not heard": (
        lambda network, host: network.cut(host, "from"),
        lambda network, host: network.heal(host, "from"),
    ),
    "it does not hear": (
        lambda network, host: network.cut(host, "to"),
        lambda network, host: network.heal(host, "to"),
    ),
}


def start(make_network, make_job):
    """Three nodes, that of rank 0 on host 0, and a master on a host of its own."""
    job = make_job(make_network(4))
    job.start_master("1:3", "--max-restarts=0", host=MASTERS_HOST)
    nodes = [job.node(0, "light_steps.py", nnodes="1:3", flags=FLAGS)]
    alone = job.wait_world(1)
    nodes += [job.node(index, "light_steps.py", nnodes="1:3", flags=FLAGS) for index in (1, 2)]
    life = job.wait_world(3, after=alone)
    assert job.node_of(0, life) is nodes[0]
    return job, nodes, life


def dials(node):
    return node.stderr.count("explain: the master is dialled again")


def wait_cut_off(job, node):
    """Its agent has given the stream up and tries in vain to open another."""
    before = dials(node)
    job.wait(lambda _: dials(node) > before, f"{node.name} dialling the master")


@pytest.mark.slow
def test_the_node_of_rank_0_is_cut_off(make_network, make_job):
    """Rank 0 and the store are behind a cut, in one direction or both. The others are a world of two when the lease is
    over; the agent that is cut off notices and dials on. Healed, its node comes back, and its old rank has done
    nothing: at most it ended the step for which the others had sent their numbers before they were stopped, since the
    kernel of a host sends what is left of a closed connection once the cable is back."""
    job, nodes, life = start(make_network, make_job)
    for cut, heal in CUTS.values():
        victim = job.node_of(0, life)
        old = job.pid(0, life)
        cut(job.network, nodes.index(victim))
        life = job.wait_world(2, after=life)
        steps_of_old = len(job.found("step", pid=old))
        wait_cut_off(job, victim)
        heal(job.network, nodes.index(victim))
        life = job.wait_world(3, after=life)
        assert wait_ends([old], 60) == []
        assert len(job.found("step", pid=old)) <= steps_of_old + 1
        assert {job.node_of(rank, life) for rank in range(3)} == set(nodes)
    job.stop()
    assert [node.wait() for node in (*nodes, job.master)] == [0] * 4, job.story()


def test_a_stranger_at_the_store_is_named(make_network, make_job):
    """A client from outside the round is turned away; who it was is said on the console and in the record."""
    job = make_job(make_network(2))
    job.start_master("1:2", host=0)
    node = job.node(0, "light_steps.py", nnodes="1:2")
    job.wait_world(1)

    def rows(kind):
        lines = job.phalanx("events", f"--state-dir={job.folder / 'master'}", "--json").stdout.splitlines()
        return [row for row in map(json.loads, lines) if row["kind"] == kind]

    (round_started,) = rows("round-started")
    address, _, port = round_started["detail"]["store"].split()
    knock = f"import socket; print(socket.create_connection(({address!r}, {port})).recv(1))"
    command = [*job.network.on(1), sys.executable, "-c", knock]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60).stdout == "b''\n"
    why = rf"store refused {job.network.address(1)}:\d+: its address is not of this round"
    node.wait_line(why)
    job.master.wait_line(why)
    job.stop()
    assert [node.wait(), job.master.wait()] == [0, 0], job.story()
    (refused,) = rows("store-refused")
    assert re.search(why, refused["reason"])
    assert refused["node"] == round_started["detail"]["members"]
