"""What the fuzzers of formats that Python writes begin with is what Python writes today. That the agent takes them is
tested with its parsers (TakesTheSeedsOfItsFuzzer)."""

import json
import os
import struct
import textwrap
import types
from pathlib import Path

import pytest
import zygote_agent
from phalanx._bootstrap import board
from zygote_agent import Agent

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def kept():
    """A function for the seed of that name. `written` is what it is made of today: it is in build/seeds, to be copied
    where the format has changed."""

    def kept(name, written):
        today = ROOT / "build" / "seeds" / name
        today.parent.mkdir(parents=True, exist_ok=True)
        today.write_bytes(written)
        assert (ROOT / "src" / name).is_file(), f"no seed src/{name}; what is written today: {today}"
        return (ROOT / "src" / name).read_bytes()

    return kept


# The board.

LIVES = {
    "taken": lambda: None,
    "stepping": lambda: (
        board.script_starts(),
        board.optimizer_stepped(),
        board.first_step_done(),
        board.set_step(7),
        board.step_split(900, 100),
    ),
    "saves_and_counts_on": lambda: (
        board.script_starts(),
        board.restored_step(40),
        board.hear_rescale(),
        board.optimizer_stepped(),
        board.begin_saving(),
        board.saved_step(41),
        board.end_saving(),
        board.optimizer_stepped(),
        board.begin_saving(),
    ),
    "exiting": lambda: (board.script_starts(), board.set_step(3), board.script_ends()),
}


@pytest.mark.parametrize("name", LIVES)
def test_a_slot_of_a_board(name, kept, tmp_path, monkeypatch):
    """All words but the pid are the same: the clock is the test's."""
    ticks = iter(range(1_000_000, 2_000_000, 1_000))
    monkeypatch.setattr(board, "time", types.SimpleNamespace(monotonic_ns=lambda: next(ticks)))
    path = str(tmp_path / "board")
    zygote_agent.write_board(path, redo_until=40)
    board.attach(path, 1)
    try:
        LIVES[name]()
        written = bytes(board.words)
    finally:
        while board._saves:
            board.end_saving()
        board.let_go()
    pid = struct.pack("<Q", 4711)
    assert written[:8] == struct.pack("<Q", os.getpid())
    assert kept(f"agent/workers/corpus/board_fuzzer/{name}", pid + written[8:]) == pid + written[8:]


# The worker socket.


class Listening(zygote_agent.Peer):
    """Keeps what it has read."""

    def __init__(self):
        super().__init__()
        self.said = b""

    def _exactly(self, count):
        data = super()._exactly(count)
        self.said += data or b""
        return data


def frames(said):
    """Of messages: the type and the names of the fields."""
    found = []
    while said:
        (length,) = struct.unpack_from("<I", said)
        found.append(shape(said[4 : 4 + length]))
        said = said[4 + length :]
    return found


def shape(text):
    message = json.loads(text)
    return message["type"], sorted(message)


SCRIPT = """
    import os, phalanx
    phalanx.step(3)
    os.write(1, b"done")
"""


@pytest.fixture
def listening(monkeypatch):
    monkeypatch.setattr(zygote_agent, "Peer", Listening)


def test_a_zygote_its_spare_and_a_rank(kept, listening, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    zygote_agent.write_board(tmp_path / "board")
    with Agent() as agent:
        agent.start_zygote(script)
        worker = agent.fork()
        worker.run(script, board={"path": str(tmp_path / "board"), "slot": 0})
        assert worker.result() == (0, "done", "")
        worker.messages()
        for name, said in (("zygote", agent.zygote.said), ("rank", worker.peer.said)):
            assert frames(kept(f"agent/workers/corpus/wire_fuzzer/{name}", said)) == frames(said) != []


def test_a_zygote_that_says_what_it_may_not_keep(kept, listening, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import busy")
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "busy.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    with Agent(env={"PYTHONPATH": str(packages)}) as agent:
        agent.start_zygote(script)
        while agent.zygote.receive() is not None:
            pass
        said = agent.zygote.said
    assert frames(kept("agent/workers/corpus/wire_fuzzer/tainted", said)) == frames(said) != []


def test_a_cold_worker(kept, listening, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("pass")
    with Agent() as agent:
        worker = agent.cold()
        worker.run(script, cold="the zygote is gone", deny="a.b")
        worker.wait()
        worker.messages()
        said = worker.peer.said
    assert frames(kept("agent/workers/corpus/wire_fuzzer/cold", said)) == frames(said) != []


# The checkpoint socket.


@pytest.fixture
def packets(agent, monkeypatch, tmp_path):
    """{type: what a rank has said first of it}, as bytes."""
    found = {}
    load = json.loads

    def heard(data):
        message = load(data)
        if isinstance(message, dict) and isinstance(data, bytes) and "type" in message:
            found.setdefault(message["type"], data.replace(os.fsencode(tmp_path), b""))
        return message

    monkeypatch.setattr("checkpoint_agent.json.loads", heard)
    return found


def test_packets_of_a_rank_that_saves_and_restores(agent, make, packets, kept, tmp_path):
    from test_checkpoint_save import next_life, state_of

    checkpointer = make(archive=str(tmp_path / "archive"))
    assert checkpointer.save(1, state_of(1, words=100)).wait_committed()
    agent.commits = False
    for step in (2, 3, 4):
        last = checkpointer.save(step, state_of(step, words=100))
    assert not last.wait_staged()
    agent.wait_packet("skipped")
    agent.commits = True
    next_life(agent, checkpointer)
    make().load()
    assert {"open", "prepare", "sealed", "skipped", "wait", "restore"} <= packets.keys()
    for name, packet in packets.items():
        assert shape(kept(f"agent/checkpoint/corpus/{name}", packet)) == shape(packet)


def test_packets_of_a_rank_that_fetches_shards(agent, make, packets, kept, monkeypatch):
    from phalanx.data.shards import Shards

    def answer(agent, ours, packet):
        agent._send(ours, packet, **({"shard": 0} if packet["ask"] == "take" else {}))

    monkeypatch.setattr(type(agent), "_on_shards", answer, raising=False)
    make()
    shards = Shards("documents", size=100, shard_size=10, shuffle=True)
    shards.done(shards.fetch())
    packet = packets["shards"]
    assert shape(kept("agent/checkpoint/corpus/shards", packet)) == shape(packet)
