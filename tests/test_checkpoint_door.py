"""A rank's questions to its agent: several at once, from threads and from signal handlers, and each with an end."""

import itertools
import json
import os
import signal
import socket
import threading
import time

import pytest
from phalanx import _door as door

TIMEOUT_S = 30


@pytest.fixture
def ends():
    """(Door, the agent's socket)."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(TIMEOUT_S)
    rank = door.Door(theirs.fileno())
    theirs.close()
    yield rank, ours
    rank.close()
    ours.close()


def asked(agent, count=1):
    """{n of the question: its id}"""
    packets = [json.loads(agent.recv(1 << 16)) for _ in range(count)]
    return {packet["n"]: packet["id"] for packet in packets}


def answer(agent, number, **fields):
    agent.send(json.dumps({"id": number, **fields}).encode())


def test_answers_may_come_in_any_order(ends):
    rank, agent = ends
    found = {}
    threads = [threading.Thread(target=lambda n=n: found.update({n: rank.ask("wait", n=n)["was"]})) for n in range(8)]
    for thread in threads:
        thread.start()
    ids = asked(agent, len(threads))
    for n in reversed(range(8)):
        answer(agent, ids[n], was=n)
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert found == {n: n for n in range(8)}


def test_a_signal_handler_asks_while_its_thread_waits(ends):
    """Whose answer comes first decides nothing, nor who reads it."""
    rank, agent = ends

    def serve(first):
        ids = asked(agent)
        os.kill(os.getpid(), signal.SIGUSR1)
        ids.update(asked(agent))
        for n in first:
            answer(agent, ids[n], was=n)

    for first in (["outer", "inner"], ["inner", "outer"]):
        heard = []
        before = signal.signal(signal.SIGUSR1, lambda *_, told=heard: told.append(rank.ask("wait", n="inner")["was"]))
        server = threading.Thread(target=serve, args=(first,))
        server.start()
        try:
            assert rank.ask("wait", TIMEOUT_S, n="outer")["was"] == "outer"
            assert heard == ["inner"]
        finally:
            server.join(TIMEOUT_S)
            signal.signal(signal.SIGUSR1, before)


def test_a_question_has_its_time(ends):
    rank, agent = ends
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
        rank.ask("wait", 0.05, n="late")
    assert time.monotonic() - began >= 0.05
    late = asked(agent)["late"]
    answer(agent, late, was="late")  # passed over
    server = threading.Thread(target=lambda: answer(agent, asked(agent)["next"], was="next"))
    server.start()
    assert rank.ask("wait", TIMEOUT_S, n="next")["was"] == "next"
    server.join(TIMEOUT_S)


def packets(agent, count):
    return [json.loads(agent.recv(1 << 16)) for _ in range(count)]


def test_what_finds_no_room_is_told_before_what_is_asked_next(ends):
    rank, agent = ends
    told = itertools.count()
    while rank.tell(door.packet(type="skipped", why="x" * 4000, n=next(told))):
        pass
    assert not rank.tell(door.packet(type="skipped", n=next(told))) and not rank.tell_kept()
    with pytest.raises(TimeoutError):  # and not for as long as there is no room
        rank.ask("wait", 0.05, n=-1)
    found = {}
    thread = threading.Thread(target=lambda: found.update(rank.ask("wait", n=next(told))))
    thread.start()
    came = packets(agent, 1)
    while came[-1]["type"] == "skipped":
        came += packets(agent, 1)
    answer(agent, came[-1]["id"], was="late")
    thread.join(TIMEOUT_S)
    assert found["was"] == "late" and rank.tell_kept()
    assert [packet["n"] for packet in came] == list(range(len(came)))


def test_nothing_is_kept_for_an_agent_that_has_gone(ends):
    rank, agent = ends
    while rank.tell(door.packet(type="skipped", why="x" * 4000)):
        pass
    agent.close()
    assert not rank.tell(door.packet(type="skipped")) and rank.tell_kept()
    with pytest.raises(door.Gone):
        rank.ask("wait")


def test_all_who_wait_hear_that_the_agent_has_gone(ends):
    rank, agent = ends
    heard = []

    def wait(n):
        with pytest.raises(door.Gone, match="has closed the checkpoint socket"):
            rank.ask("wait", n=n)
        heard.append(n)

    threads = [threading.Thread(target=wait, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    asked(agent, 3)
    agent.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert sorted(heard) == [0, 1, 2]


def test_two_doors_at_one_socket_put_down_each_others_answers(ends):
    """There is one for each Checkpointer. Whose thread reads, and which numbers they have given, decides nothing."""
    first, agent = ends
    second = door.Door(first.fileno())
    found = {}

    def ask(rank, n):
        found[n] = rank.ask("wait", TIMEOUT_S, n=n)["was"]

    threads = [threading.Thread(target=ask, args=(rank, n)) for n, rank in enumerate((first, second, first, second))]
    for thread in threads:
        thread.start()
    ids = asked(agent, 4)
    assert len(set(ids.values())) == 4
    for n in (3, 0, 2, 1):
        answer(agent, ids[n], was=n)
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert found == {n: n for n in range(4)}
    second.close()
    server = threading.Thread(target=lambda: answer(agent, asked(agent)["on"], was="on"))
    server.start()
    assert first.ask("wait", TIMEOUT_S, n="on")["was"] == "on", "the other is open still"
    server.join(TIMEOUT_S)


def test_who_waits_when_a_door_is_closed_is_refused_and_so_is_who_comes_later(ends):
    rank, agent = ends
    other = door.Door(rank.fileno())
    heard = []

    def wait():
        with pytest.raises(door.Refusal, match="closed by us"):
            other.ask("wait", n="never")
        heard.append(True)

    waiting = threading.Thread(target=wait)
    waiting.start()
    asked(agent)
    other.close("closed by us")
    waiting.join(TIMEOUT_S)
    assert heard == [True]
    with pytest.raises(door.Refusal, match="closed by us"):
        other.ask("wait", n="late")


def test_questions_leave_no_descriptors(ends):
    rank, _ = ends
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(TimeoutError):
            rank.ask("wait", 0.001, n=1)
    assert len(os.listdir("/proc/self/fd")) == before
