"""Shards of a dataset that the master hands out: whoever dies, each is reported done once, and none is lost."""

import collections
import concurrent.futures
import json
import os
import re
import signal
import socket
import subprocess
import sys

import pytest
from harness import ROOT, command_path
from phalanx import data
from phalanx._bootstrap import memory
from phalanx.data import Shard, Shards, ShardsError
from phalanx.data.permutation import Permutation

# --- jobs


def start_master(job, *flags):
    """A phalanx-master of its own, that can be started again and again."""
    place = [f"--port={job.port}", f"--job-id={job.id}", f"--state-dir={job.folder / 'master'}", "--nnodes=2"]
    job.master = job.run(*place, "--ready-fd=1", *flags, command=[command_path("phalanx-master")], name="master")
    job.master.wait_line("^ready ", stream="stdout")
    return job.master


def wait_given(job, count, **fields):
    return job.wait_events("given", count, **fields)[-1]


def numbers(job, name):
    return [event["number"] for event in job.found(name)]


def told(job):
    (record,) = job.folder.glob("**/events.db")
    return job.phalanx("events", f"--state-dir={record.parent}").stdout


def expect_all_done_once(job, shards):
    """A rank says `done` when the master has answered it. One that was killed before may have been heard: then its
    shard is done, and nobody else was given it afterwards."""
    assert set(numbers(job, "given")) == set(range(shards)), job.story()
    done = collections.Counter(numbers(job, "done"))
    assert {number: times for number, times in done.items() if times > 1} == {}, job.story()
    reporting = {event["number"]: (event["rank"], event["life"]) for event in job.found("reporting")}
    unheard = [reporting[number] for number in range(shards) if number not in done]
    assert len(unheard) == len(set(unheard)), "a rank waits for one answer at a time"
    assert all(life < max(job.lives()) for _, life in unheard), job.story()
    assert "all its shards are" in told(job)


@pytest.mark.timeout(900)
def test_each_record_is_done_once_whoever_dies(job):
    """Two nodes of two ranks: a rank is killed, then the master, then a whole node, in whose place another comes."""
    words = ["light_shards.py", "--size=600", "--work-ms=10"]
    master = start_master(job)
    nodes = [job.node(index, *words, nproc=2) for index in (0, 1)]
    job.killed_by_test = True
    wait_given(job, 40, life=0)
    os.kill(job.pid(3, 0), signal.SIGKILL)
    wait_given(job, 40, life=1)
    master.signal(signal.SIGKILL)
    assert master.wait() == -signal.SIGKILL
    given = len(job.found("given"))
    master = start_master(job, "--resume")
    wait_given(job, given + 80)
    assert sorted(job.lives()) == [0, 1], "no rank notices a new master"
    job.signal_node(nodes[1], signal.SIGKILL)
    nodes[1] = job.node(2, *words, nproc=2)
    assert [node.wait() for node in nodes] == [0, 0], job.story()
    assert master.wait() == 0
    assert sorted(job.lives()) == [0, 1, 2], job.story()
    expect_all_done_once(job, 600)


def test_a_state_goes_back(job):
    """What one job has done another one does not do, and what it had not it does."""
    saved = {
        "phalanx_shards": 1,
        "name": "data",
        "size": 10,
        "shard_size": 2,
        "shuffle": "records",
        "seed": 0,
        "next": 6,
        "undone_gaps": [1, 3],
    }
    words = ["--size=10", "--shard-size=2", "--epochs=2", "--shuffle=records", f"--state={json.dumps(saved)}"]
    node = job.standalone("light_shards.py", *words)
    assert node.wait() == 0, job.story()
    assert sorted(numbers(job, "done")) == [1, 4, 6, 7, 8, 9]
    of_epoch = [event["records"] for event in job.found("given") if event["epoch"] == 1]
    assert len({record for records in of_epoch for record in records}) == 8, "shard 5 of epoch 1 was done"
    left = [event["state"]["undone_gaps"] for event in job.found("end")]
    assert left[-1] == []


def test_ranks_that_do_not_agree(job):
    node = job.standalone("light_shards.py", "--size=10", "--differ", flags=["--max-restarts=0"])
    assert node.wait() == 1
    assert "dataset 'data': it has begun with" in node.stderr


# --- the names


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("", 1, 1), "name='': expected a text of 1 to 256 bytes"),
        (("\udc80", 1, 1), "expected a text of 1 to 256 bytes of UTF-8"),
        (("data", 0, 1), "size=0: expected a number from 1"),
        (("data", 1, 1.5), "shard_size=1.5: expected a number from 1"),
        (("data", 1, 1, -1), "epochs=-1: expected a number from 0"),
        (("data", 1 << 48, 1, 17), "epochs=17: that is"),
        (("data", 1, 1, 1, "all"), "shuffle='all': expected False, True or \"records\""),
    ],
)
def test_wrong_arguments(arguments, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        Shards(*arguments)


def test_without_an_agent():
    with pytest.raises(ShardsError, match="start the script by phalanx-run"):
        Shards("data", 10, 1).fetch()


def test_states_of_others():
    shards = Shards("data", 10, 1)
    state = {"phalanx_shards": 1, "name": "data", "size": 10, "shard_size": 1, "shuffle": "none", "seed": 0, "next": 1}
    for change, sentence in (
        ({"phalanx_shards": 2}, "no state of shards"),
        ({"size": 11}, "the state is of size=11; expected 10"),
        ({"shuffle": "shards"}, "the state is of shuffle='shards'; expected 'none'"),
        ({"undone_gaps": None}, "no numbers"),
        ({"undone_gaps": [10**9] * 9_000}, "9000 shards that are not done; expected fewer"),
    ):
        with pytest.raises(ValueError, match=re.escape(sentence)):
            shards.load_state_dict({**state, "undone_gaps": [], **change})


@pytest.fixture
def agent(monkeypatch):
    """Its end of the socket of this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.settimeout(30)
    monkeypatch.setattr(memory, "socket_fd", ours.fileno)
    monkeypatch.setattr(data.shards, "_doors", {})
    with ours, theirs:
        yield theirs


def heard(agent, answer=None, **fields):
    """What the rank asks next; it is given that answer, where there is one."""
    packet = json.loads(agent.recv(1 << 16))
    if answer is not None:
        agent.send(json.dumps({"id": packet["id"], **answer, **fields}).encode())
    return packet


def test_a_fetch_takes_the_place_of_one_that_was_given_up(agent):
    """So that a shard which the master gives late is not lost to the round."""
    shards = Shards("data", 10, 1)
    with concurrent.futures.ThreadPoolExecutor(1) as rank:
        fetched = rank.submit(shards.fetch, 0.2)
        assert heard(agent, {"shard": None})["ask"] == "open"
        given_up = heard(agent)
        with pytest.raises(TimeoutError):
            fetched.result(30)
        fetched = rank.submit(shards.fetch)
        again = heard(agent, {"shard": 4})
        assert fetched.result(30).number == 4
        fetched = rank.submit(shards.fetch)
        other = heard(agent, {"shard": None})
        assert fetched.result(30) is None
    assert (again["ask"], again["request"]) == ("take", given_up["request"])
    assert other["request"] != again["request"]


def test_the_masters_sentence_is_raised(agent):
    shards = Shards("data", 10, 1)
    with concurrent.futures.ThreadPoolExecutor(1) as rank:
        fetched = rank.submit(shards.fetch)
        heard(agent, {"error": "dataset 'data': it has begun with 11 records"})
        with pytest.raises(ShardsError, match="it has begun with 11 records"):
            fetched.result(30)


def test_it_is_imported_without_torch():
    line = "import sys, phalanx.data; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", line], cwd=ROOT).returncode == 0


# --- shuffles


@pytest.mark.parametrize("n", [1, 2, 3, 7, 64, 1_000, 4_097])
def test_a_permutation_is_one(n):
    assert sorted(map(Permutation(n, 5, 0), range(n))) == list(range(n))


def test_epochs_and_seeds_differ():
    orders = {tuple(map(Permutation(1_000, seed, epoch), range(1_000))) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


def test_a_permutation_stays_what_it_is():
    """Checkpoints rely on it: docs/shards.md states how it is made."""
    assert [Permutation(10, 0, 0)(i) for i in range(10)] == [0, 1, 2, 9, 8, 3, 4, 7, 6, 5]
    assert Permutation(10**14, 7, 3)(123_456_789) == 92_915_459_441_371


def test_a_permutation_leaves_little_in_its_place():
    """Neighbours go far, and places are met evenly: a chi-square of 100 boxes stays below its 0.1 % point."""
    n = 100_000
    order = [Permutation(n, 1, 0)(i) for i in range(1_000)]
    boxes = collections.Counter(place * 100 // n for place in order)
    assert sum((boxes[box] - 10) ** 2 / 10 for box in range(100)) < 149
    assert sum(abs(a - b) == 1 for a, b in zip(order, order[1:])) <= 2


def test_a_shard_has_its_records():
    shards = Shards("data", 10, 4, 2, shuffle=True)
    of_epoch = [shards._shard(number) for number in range(3)]
    assert sorted(record for shard in of_epoch for record in shard.records()) == list(range(10))
    assert sorted(map(len, of_epoch)) == [2, 4, 4]
    assert [shards._shard(number).epoch for number in (2, 3, 5)] == [0, 1, 1]
    assert Shards("data", 10, 4)._shard(5) == Shard(5, 1, 8, 10)
    assert sorted(Shards("data", 10, 4, shuffle="records")._shard(0).records()) != [0, 1, 2, 3]
