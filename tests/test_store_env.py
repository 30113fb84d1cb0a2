"""The store on MASTER_ADDR:MASTER_PORT: whichever way a script meets it, in its first life and after a restart."""

import signal

import pytest
from harness import command_path, wait_ends, workload


def check(job, node, agent_store):
    assert node.wait() == 0, job.story()
    used = job.found("used")
    assert sorted((event["life"], event["rank"]) for event in used) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(event["total"] == 2 and event["launched"] for event in used)
    assert {event["agent_store"] for event in used} == {agent_store}


@pytest.mark.parametrize("how", ["env", "tcp", "own"])
def test_agents_store(job, how):
    """The agent hosts the store (TORCHELASTIC_USE_AGENT_STORE=True): env://, tcp:// and a TCPStore of one's own."""
    node = job.standalone("stores.py", how, flags=["--max-restarts=1"])
    check(job, node, "True")
    ports = {life: {event["port"] for event in job.found("main", life=life)} for life in (0, 1)}
    assert len(ports[0]) == len(ports[1]) == 1
    assert ports[0] != ports[1]  # a fresh store for each round: nothing of the old one is in it


@pytest.mark.dropin
@pytest.mark.parametrize("how", ["env", "tcp", "own"])
def test_rank_0s_store(job, how):
    """TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 leaves MASTER_PORT to rank 0 (TORCHELASTIC_USE_AGENT_STORE=False)."""
    env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    node = job.standalone("stores.py", how, flags=["--max-restarts=1"], env=env)
    check(job, node, "False")


@pytest.mark.slow
def test_two_nodes(job):
    """The store of group rank 0 serves the other node's ranks, after a restart as well."""
    nodes = [job.node(index, "stores.py", "env", flags=["--max-restarts=1"]) for index in (0, 1)]
    assert nodes[1].wait() == 0, job.story()
    check(job, nodes[0], "True")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["env", "tcp", "own"])
def test_two_nodes_with_relays(job, how):
    """The ranks of the node that does not hold the store come to it by its relay, at another port in each life."""
    flags = ["--max-restarts=1", "--store-relay=on"]
    nodes = [job.node(index, "stores.py", how, flags=flags) for index in (0, 1)]
    assert nodes[1].wait() == 0, job.story()
    check(job, nodes[0], "True")
    ports = {"store": set(), "relay": set()}
    for life in (0, 1):
        first, second = sorted(job.found("main", life=life), key=lambda event: event["rank"])
        assert second["address"] == "127.0.0.1"
        assert second["port"] != first["port"]
        ports["store"].add(first["port"])
        ports["relay"].add(second["port"])
    assert [len(of_both_lives) for of_both_lives in ports.values()] == [2, 2], job.story()


def stores_of(job, life):
    """{rank: HOST:PORT} of the store that the ranks of a life were given."""
    return {event["rank"]: event["store"] for event in job.found("main", life=life)}


@pytest.mark.slow
def test_the_agent_that_holds_the_store_is_killed(job):
    """Ranks behind a relay see what they see of a store that dies; the next round has another store, and relays."""
    flags = ["--max-restarts=0", "--store-relay=on"]
    job.start_master("1:3", "--max-restarts=0")
    nodes = [job.node(0, "steps.py", nnodes="1:3", flags=flags)]
    life = job.wait_world(1)
    nodes += [job.node(index, "steps.py", nnodes="1:3", flags=flags) for index in (1, 2)]
    life = job.wait_world(3, after=life)
    job.killed_by_test = True
    for world in (3, 2):
        holder = job.node_of(0, life)
        stores = stores_of(job, life)
        assert len(stores) == world, stores
        assert stores.pop(0) == f"127.0.0.{nodes.index(holder) + 1}", job.story()
        assert set(stores.values()) == {"127.0.0.1"}
        of_holder = job.processes(holder)
        holder.signal(signal.SIGKILL)
        life = job.wait_world(world - 1, after=life)
        assert wait_ends(of_holder, 20) == []
    job.stop()
    last = job.node_of(0, life)
    assert [last.wait(), job.master.wait()] == [0, 0], job.story()


def test_a_relay_to_rank_0s_store_is_refused(job):
    env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    node = job.standalone("stores.py", "env", flags=["--store-relay=on"], env=env)
    assert node.wait() == 2
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 leaves the store to rank 0" in node.stderr


def limited():
    return ["bash", "-c", 'ulimit -Sn 90 && exec "$@"', "limited", command_path("phalanx-run")]


def test_more_ranks_than_open_files(job):
    """Also a node that holds no store has the files that its own workers need."""
    nodes = []
    for index, nproc in enumerate([1, 24]):
        flags = ["--nnodes=2", f"--nproc-per-node={nproc}", f"--node-rank={index}", "--tee=3", "--no-python"]
        flags += ["--master-addr=127.0.0.1", f"--master-port={job.port}"]
        flags += [f"--log-dir={job.folder / 'logs'}", f"--state-dir={job.folder / f'state{index}'}"]
        nodes.append(job.run(*flags, "sh", "-c", "sleep 1; ulimit -Sn", command=limited()))
    assert [node.wait() for node in nodes] == [0, 0], job.story()
    assert nodes[1].stdout.count(":90\n") == 24


def test_more_clients_than_open_files(job):
    """The agent lets its store have the files a world needs; its workers keep the limit that phalanx-run had."""
    flags = ["--standalone", "--nproc-per-node=2", f"--state-dir={job.folder / 'state'}"]
    for warmth in ("--warm", "--no-warm"):
        node = job.run(*flags, warmth, workload("many_clients.py"), command=limited())
        assert node.wait() == 0, job.story()
    connected = job.found("connected")
    assert [event["soft"] for event in connected] == [90] * 4
    assert all(event["answers"] == [7] * 100 for event in connected)
