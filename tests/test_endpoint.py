"""Scripts that bring the address of --master-port or --rdzv-endpoint themselves find the live round's store there."""

import contextlib
import socket

import pytest
from harness import workload
from phalanx._bootstrap import agent_store
from share import free_port

SUMS = {(life, rank) for life in (0, 1) for rank in (0, 1)}


def check(job, nodes):
    assert [node.wait() for node in nodes] == [0] * len(nodes), job.story()
    used = job.found("used")
    assert {(event["life"], event["rank"]) for event in used} == SUMS
    assert {event["total"] for event in used} == {2}


@pytest.mark.dropin
@pytest.mark.parametrize("way", [pytest.param("group", marks=pytest.mark.slow), "client"])
def test_the_master_port(job, way):
    """As torchrun's users write it, in its first life and after a restart: each round's store is a new one."""
    port = free_port()
    flags = [f"--master-port={port}", "--nproc-per-node=2", "--max-restarts=1"]
    own = [] if job.launcher == "torchrun" else [f"--state-dir={job.folder / 'state'}"]
    node = job.run(*flags, *own, workload("endpoint.py"), way, f"tcp://127.0.0.1:{port}")
    check(job, [node])


@pytest.mark.slow
def test_the_rendezvous_endpoint(job):
    """By another name of it, and from another node."""
    url = f"tcp://localhost:{job.port}"
    nodes = [job.node(index, "endpoint.py", "group", url, flags=["--max-restarts=1"]) for index in (0, 1)]
    check(job, nodes)


@pytest.mark.slow
def test_a_master_that_belongs_to_no_node(job):
    job.start_master("2")
    url = f"tcp://127.0.0.1:{job.port}"
    nodes = [job.node(index, "endpoint.py", "client", url, flags=["--max-restarts=1"]) for index in (0, 1)]
    check(job, nodes)


@pytest.mark.slow
def test_an_older_rounds_rank_is_not_let_in(job):
    """It outlives its round, where the other node has begun the next one: torch's keys name no round, and its own would
    be read there."""
    url = f"tcp://127.0.0.1:{job.port}"
    flags = ["--max-restarts=1", "--restart-grace=1.5"]
    nodes = [job.node(index, "endpoint.py", "lingering", url, flags=flags) for index in (0, 1)]
    check(job, nodes)
    knocks = job.found("knocked")
    began = min(event["t"] for event in job.found("used", life=1))
    assert any(event["t"] < began for event in knocks)
    assert [event for event in knocks if event["let_in"]] == []
    assert {event["keys"] for event in job.found("used", life=1)} == {1, 2}


def test_strangers_are_closed(job):
    """At the first byte that is neither gRPC's nor the store's; the job goes on."""
    node = job.node(0, "light_steps.py", nnodes="1", nproc=2)
    job.wait_stepping(life=0, world=2)
    with socket.create_connection(("127.0.0.1", job.port)) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(100) == b""
    job.stop()
    assert node.wait() == 0, job.story()
    assert sorted(job.lives()) == [0]
    log = next(iter(job.folder.glob("state*/*/master.log"))).read_text()
    assert "it is neither an agent nor a client of the store" in log


@pytest.mark.parametrize(
    ("endpoint", "hostname", "port", "same"),
    [
        ("node1:29500", "node1", 29500, True),
        ("node1:29500", "node1", 29501, False),
        ("127.0.0.1:29500", "localhost", 29500, True),
        ("[::1]:29500", "::1", 29500, True),
        ("127.0.0.1:29500", "127.0.0.2", 29500, False),
        ("no-such-host.invalid:29500", "127.0.0.1", 29500, False),
        ("", "127.0.0.1", 29500, False),
    ],
)
def test_by_whatever_name(endpoint, hostname, port, same):
    assert agent_store.is_endpoint(endpoint, hostname, port) == same
