"""ShardingClient and IndexShardingClient of compat/dlrover, used as DLRover's documentation uses them."""

import json
import os
import re
import signal
import sys

import pytest
from dlrover_jobs import COMPAT, dlrover_run
from harness import WORKLOADS

sys.path.insert(0, str(COMPAT))

from dlrover.python.elastic_agent.sharding import client as sharding

SIZE = 150


def start(job, *words, nproc=2):
    script = [WORKLOADS / "dlrover_shards.py", *words]
    return dlrover_run(job, "--standalone", f"--nproc_per_node={nproc}", *script)


def trained(job):
    return [record for event in job.found("trained") for record in event["records"]]


def last_state(job):
    """Of the rank that was the last to end."""
    return json.loads(job.found("end")[-1]["state"])


@pytest.mark.parametrize(
    "words",
    [
        ["--kind=shards"],
        ["--kind=shards", "--shuffle", "--fail"],
        ["--kind=shards", "--storage=text", "--shuffle"],
        ["--kind=index"],
        ["--kind=index", "--storage=text", "--shuffle"],
    ],
    ids=" ".join,
)
def test_each_record_once(job, words):
    node = start(job, *words)
    assert node.wait() == 0, job.story()
    assert sorted(trained(job)) == list(range(SIZE))
    assert last_state(job)["undone_gaps"] == []
    assert {event["epoch"] for event in job.found("end")} == {0}


@pytest.mark.slow
def test_workers_of_a_data_loader(job):
    pytest.importorskip("torch")
    node = start(job, "--kind=loader")
    assert node.wait() == 0, job.story()
    assert sorted(trained(job)) == list(range(SIZE))


def test_what_a_dead_rank_held_is_trained_by_others(job):
    node = start(job, "--kind=shards")
    job.wait_events("trained", 8)
    os.kill(job.pid(1, 0), signal.SIGKILL)
    assert node.wait() == 0, job.story()
    assert set(trained(job)) == set(range(SIZE))
    held = 2 * 8  # a shard of each rank
    assert len(trained(job)) <= SIZE + held, "what was reported done is not done again"
    assert last_state(job)["undone_gaps"] == []


def test_a_checkpoint_is_gone_back_to(job, make_job):
    assert start(job, "--kind=shards", nproc=1).wait() == 0, job.story()
    state = {**last_state(job), "next": 3, "undone_gaps": [1]}
    other = make_job()
    assert start(other, "--kind=index", f"--state={json.dumps(state)}").wait() == 0, other.story()
    done = {*range(8), *range(16, 24)}
    assert sorted(trained(other)) == sorted(set(range(SIZE)) - done)


# --- one process


@pytest.fixture
def handed_out(monkeypatch):
    """Numbers of shards that are done and given back; a master that gives all."""
    from phalanx import data

    told = {"done": [], "back": []}
    numbers = iter(range(1_000))
    monkeypatch.setattr(data.Shards, "fetch", lambda shards, timeout=None: shards._shard(next(numbers)))
    monkeypatch.setattr(data.Shards, "_report", lambda _, ask, shards, __: told[ask].extend(s.number for s in shards))
    return told


def client_of(**arguments):
    return sharding.ShardingClient("train", 4, 1, 100, num_minibatches_per_shard=2, **arguments)


def test_batches_come_to_shards(handed_out):
    client = client_of()
    assert client.report_batch_done() is False, "there is none"
    for _ in range(3):
        client.fetch_shard()
    assert [client.report_batch_done() for _ in range(3)] == [False, True, False]
    assert client.get_current_task().task_id == 1
    assert client.report_batch_done(12) is True, "the rest of one, and another"
    assert handed_out == {"done": [0, 1, 2], "back": []}


def test_errors_are_given_back(handed_out):
    client = client_of()
    tasks = [client.get_task() for _ in range(3)]
    assert client.report_batch_done(8, "it is broken", [tasks[1].task_id]) is True
    client.report_all_task_error("all are")
    assert handed_out == {"done": [], "back": [1, 0, 2]}
    assert client.get_current_task() is None


def test_an_error_of_a_part_of_a_shard_gives_all_of_it_back(handed_out):
    client = client_of()
    tasks = [client.get_task() for _ in range(2)]
    assert client.report_batch_done(4, "it is broken") is False
    assert client.report_batch_done(4) is True
    assert client.report_batch_done(8) is True
    assert handed_out == {"done": [tasks[1].task_id], "back": [tasks[0].task_id]}


def test_counts():
    client = sharding.ShardingClient("train", 4, 3, 101)
    assert client.dataset_name == "train"
    assert client.get_minibatch_count_per_epoch() == 25
    assert client.get_total_sample_num() == 303
    assert client.restore_shard_from_checkpoint("") is False


def test_what_is_not_there():
    with pytest.raises(ValueError, match='storage_type=\'sls\': expected "table" or "text"'):
        client_of(storage_type="sls")
    with pytest.raises(ValueError, match="no checkpoint of shards"):
        client_of().restore_shard_from_checkpoint("{")
    with pytest.raises(AttributeError, match=re.escape("ShardingClient.reset_dataset: make a client with another")):
        client_of().reset_dataset()
