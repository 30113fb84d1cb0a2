"""Nodes on networks of their own are checked: a cable that is slow, and a way between two that is broken. What is made
of results is in src/master/rules/suspects_test.cc; nodes on one machine are in test_node_check.py."""

import re

NODES = 4
SLOW_MBIT_PER_S = 40  # 4 MiB of an all-reduce take a second there
SLOW_RAIL_MBIT_PER_S = 10  # 4 MiB take four seconds, whatever else this machine does
CHECK = ("--network-check", "--check-timeout=40")


def start(make_job, network, *flags, nnodes, agent_flags=()):
    """A job on all hosts but the last, which has the master. Nodes come one behind the other: so they meet first."""
    job = make_job(network)
    job.start_master(nnodes, "--precheck=1", "--last-call-ms=60000", *flags, host=NODES)
    nodes = []
    for index in range(NODES):
        nodes.append(job.node(index, "light_steps.py", nnodes=nnodes, flags=[*CHECK, *flags, *agent_flags]))
        job.wait(lambda _, there=index + 1: job.master.stderr.count("node-ready") >= there, "its node")
    return job, nodes


def test_a_slow_cable_is_named_and_its_node_left_out(make_network, make_job):
    network = make_network(NODES + 1)
    network.throttle(1, SLOW_MBIT_PER_S)
    job, nodes = start(make_job, network, "--exclude-straggler", nnodes="3:4")
    job.wait_world(3)
    line = nodes[0].wait_line(r"node check: ")
    assert re.search(
        r"10\.77\.1\.2 slow \([\d.]+ x the mean of the others: .*all_reduce_time\): left out, 3 train", line
    )
    job.stop()
    assert [nodes[index].wait() for index in (0, 2, 3)] == [0] * 3, job.story()


def test_a_slow_rail_is_named_though_the_jobs_own_is_fast(make_network, make_job):
    """Of nodes with two cables each: what the job's address tells says nothing of the other."""
    network = make_network(NODES + 1)
    network.lay_rails()
    network.throttle(1, SLOW_RAIL_MBIT_PER_S, rail=True)
    job, nodes = start(make_job, network, "--exclude-straggler", nnodes="3:4", agent_flags=["--check-nics=eth0,eth1"])
    job.wait_world(3)
    line = nodes[0].wait_line(r"node check: ")
    assert re.search(
        r"10\.77\.1\.2 slow \([\d.]+ x the mean of the others: .*tcp_time:eth1\): left out, 3 train", line
    ), line
    job.stop()
    assert [nodes[index].wait() for index in (0, 2, 3)] == [0] * 3, job.story()


def test_a_broken_way_between_two_nodes_costs_neither(make_network, make_job):
    """Each of them meets another node, and passes: it is the link that is told."""
    network = make_network(NODES + 1)
    network.cut_link(0, 1)
    job, nodes = start(make_job, network, nnodes="4")
    line = nodes[2].wait_line(r"node check: ")
    assert re.search(r"the link between 10\.77\.[01]\.2 and 10\.77\.[01]\.2 failed", line), line
    assert "left out" not in line
    job.stop()
