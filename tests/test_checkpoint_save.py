"""Saves and restores through real slots, a real control page and a real socket. The agent is checkpoint_agent.py."""

import contextlib
import functools
import json
import os
import random
import re
import shutil
import signal
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from checkpoint_agent import TIMEOUT_S, CheckpointAgent, write_manifest  # noqa: E402
from phalanx import _door as door  # noqa: E402
from phalanx._bootstrap import board, memory, rescale  # noqa: E402
from phalanx.checkpoint import (  # noqa: E402
    CannotSave,
    Checkpointer,
    DataPosition,
    PerRank,
    Storage,
    StoreResult,
    dcp,
    ddp,
    files,
    native,
)
from phalanx.checkpoint.copying.flight import Flight  # noqa: E402
from phalanx.checkpoint.formats import named  # noqa: E402
from phalanx.checkpoint.handle import SaveHandle  # noqa: E402
from phalanx.checkpoint.ranks import safe_point  # noqa: E402
from share import free_port  # noqa: E402
from zygote_agent import Agent  # noqa: E402

WORDS = 50_000  # a record of 200 KB: large enough to be copied later


@pytest.fixture
def main_page():
    """The page and the slots of what the ranks of a node share."""
    with CheckpointAgent() as page:
        yield page


def next_life(agent, checkpointer):
    checkpointer.close()
    memory.forget()
    agent.new_life()


def state_of(step, words=WORDS):
    return {"w": torch.full((words,), float(step)), "note": "x" * (step % 7), "step": step}


def is_state_of(loaded, step):
    return loaded["step"] == step and loaded["w"].unique().tolist() == [float(step)]


def test_a_state_comes_back_from_memory_in_the_next_life(agent, make):
    checkpointer = make()
    for step in range(1, 6):
        handle = checkpointer.save(step, state_of(step))
        assert handle.wait_staged() and handle.wait_committed(), handle.why
        assert handle.staged_ns > 0 and handle.held_ns > 0
    next_life(agent, checkpointer)
    checkpointer = make()
    loaded, step = checkpointer.load()
    assert (step, checkpointer.source) == (5, "memory") and is_state_of(loaded, 5)


def test_a_slot_is_a_file_that_stock_torch_load_and_unzip_read(agent, make):
    import zipfile

    checkpointer = make()
    assert checkpointer.save(3, state_of(3)).wait_committed()
    path = agent.slot_path(agent.sealed()[3])
    assert native.check_file(path) is None
    for mmap in (False, True):
        assert is_state_of(torch.load(path, mmap=mmap, weights_only=True), 3)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        info = json.loads(archive.read("archive/.phalanx/info"))
    assert info == {**info, "version": 1, "step": 3, "epoch": 1, "rank": 0, "world_size": 1, "kind": "full"}
    rank = agent.page.slot(agent.sealed()[3])[0]
    assert (rank[1], rank[2], rank[5], rank[6]) == (3, 1, 0, 1)


def test_nothing_is_saved_yet(agent, make, tmp_path):
    checkpointer = make()
    assert checkpointer.load(default="none") == ("none", 0)
    assert (checkpointer.source, checkpointer.why) == (None, "nothing is committed")


def test_a_save_that_finds_no_free_slot_is_skipped_with_its_reason_and_later_ones_are_not(agent, make):
    agent.commits = False
    checkpointer = make(slots=2)
    handles = [checkpointer.save(step, state_of(step)) for step in (1, 2, 3)]
    assert [handle.wait_staged() for handle in handles] == [True, True, False]
    assert "no slot is free" in handles[2].why
    assert agent.wait_packet("skipped")["step"] == 3
    assert not handles[2].wait_committed()
    agent.commit(2)
    handle = checkpointer.save(4, state_of(4))
    assert handle.wait_staged(), handle.why
    assert set(agent.sealed()) == {2, 4}
    agent.commit(4)
    assert handle.wait_committed()


def test_waits_end_when_their_time_is_up(agent, make, monkeypatch):
    """For the copy, for who holds it up, and for the other ranks."""
    agent.commits = False
    checkpointer = make()
    handle = checkpointer.save(1, state_of(1))
    with pytest.raises(TimeoutError):
        handle.wait_committed(timeout=0.05)
    assert handle.wait_staged(timeout=0)
    agent.commit(1)
    assert handle.wait_committed(timeout=60)

    later = SaveHandle(checkpointer, 2, Storage.MEMORY)
    writer, copying = checkpointer._writer, native.Outcome(state=native.COPYING)
    monkeypatch.setattr(writer, "_flight", Flight(later, None, None, 0, None))
    monkeypatch.setattr(writer._slots, "wait_copied", lambda until_ns=None: copying)
    with pytest.raises(TimeoutError, match=r"step 2 is not staged within 0\.01 s"):
        later.wait_staged(timeout=0.01)
    assert not later.is_over and writer._flight is not None
    monkeypatch.undo()
    with writer.lock, ThreadPoolExecutor() as pool, pytest.raises(TimeoutError):
        pool.submit(later.wait_committed, timeout=0.01).result()


@pytest.fixture
def asked(monkeypatch):
    """As if nodes were to join, behind whatever step. The steps with which this rank came to a safe point."""
    came = []
    monkeypatch.setattr(rescale, "_channel", object())
    monkeypatch.setattr(rescale, "come_to_safe_point", came.append)
    announced = memoryview(bytearray(16)).cast("q")
    announced[0] = 1
    monkeypatch.setattr(board, "_rescale", announced)
    yield came
    board.hear_rescale(0)


def hears():
    return board.words[board.HEARS_RESCALE] != 0


def test_the_last_save_before_nodes_join_is_one_to_disk_where_each_rank_has_its_own(agent, make, asked):
    checkpointer = make()
    board.set_step(1)
    handle = checkpointer.save(2, state_of(2))
    assert (asked, handle.storage) == ([2], Storage.DISK)
    checkpointer.save(3, state_of(3))
    assert hears()
    checkpointer.close()
    assert not hears()


def test_no_save_is_the_last_where_several_checkpointers_save(agent, make, asked):
    """In turn, and where the second begins late. Nor in another thread, which does not train."""
    board.set_step(1)
    first, second = make(), make()
    with ThreadPoolExecutor() as pool:
        for step in (2, 3):
            pool.submit(first.save, step, state_of(step)).result().wait_committed()
    assert not hears() and asked == []
    first.save(4, state_of(4))
    for step in (5, 6, 7):
        second.save(step, state_of(step))
        first.save(step, state_of(step))
        assert not hears()
    assert asked == [4]


def test_training_goes_on_where_nobody_says_that_all_have_the_last_save(agent, make, asked, monkeypatch):
    """The master is away for good, say. It is waited for once."""
    monkeypatch.setattr(safe_point, "PATIENCE_S", 0.05)
    checkpointer = make()
    board.set_step(1)
    agent.commits = False
    assert checkpointer.save(2, state_of(2)).storage is Storage.DISK
    assert checkpointer.save(3, state_of(3)).storage is Storage.MEMORY
    assert asked == []


def fill_socket(checkpointer):
    while checkpointer._door.tell(door.packet(type="restored", dir=checkpointer.directory, branch=0, why="x" * 4000)):
        pass


def test_an_agent_that_was_stopped_hears_of_each_save(agent, make):
    """Its socket is full meanwhile."""
    checkpointer = make()
    checkpointer.prepare(state_of(1))
    with agent.stopped:
        fill_socket(checkpointer)
        first = checkpointer.save(1, state_of(1))
        assert first.wait_staged() and first.why.endswith("the agent could not be told of it yet")
        second = checkpointer.save(2, state_of(2))
        assert second.wait_staged()
        with pytest.raises(TimeoutError):
            second.wait_committed(timeout=0.05)
        third = checkpointer.save(3, state_of(3))
        assert third.wait_staged()
        skipped = checkpointer.save(4, state_of(4))
        assert not skipped.wait_staged() and "no slot is free" in skipped.why
    assert first.wait_committed(timeout=TIMEOUT_S) and not skipped.wait_committed(timeout=TIMEOUT_S)
    told = [(packet["type"], packet["step"]) for packet in agent.log if packet["type"] in ("sealed", "skipped")]
    assert told == [("sealed", 1), ("sealed", 2), ("sealed", 3), ("skipped", 4)]
    assert is_state_of(checkpointer.load()[0], 3)


def test_a_step_that_is_dropped_is_not_committed(agent, make):
    agent.commits = False
    checkpointer = make()
    handle = checkpointer.save(1, state_of(1))
    assert handle.wait_staged()
    agent.gone.add(1)
    assert not handle.wait_committed()


def test_another_structure_gets_other_slots_only_where_it_must(agent, make):
    checkpointer = make()
    assert checkpointer.prepare(state_of(1)) is None
    assert checkpointer.save(1, state_of(1)).wait_committed()
    assert checkpointer.save(2, {"other": 2, **state_of(2, WORDS - 100)}).wait_committed()
    assert len(agent.packets("prepare")) == 1
    assert checkpointer.save(3, state_of(3, 3 * WORDS)).wait_committed()
    assert len(agent.packets("prepare")) == 2
    assert checkpointer.save(4, state_of(4, WORDS)).wait_committed()
    assert len(agent.packets("prepare")) == 3, "slots of thrice the size are given back"
    assert is_state_of(checkpointer.load()[0], 4)


def test_a_pickle_that_outgrows_its_room_gets_more(agent, make):
    checkpointer = make()
    assert checkpointer.save(1, state_of(1)).wait_committed()
    text = "y" * 1_000_000
    handle = checkpointer.save(2, {**state_of(2), "text": text})
    assert handle.wait_committed(), handle.why
    assert len(agent.packets("prepare")) == 2
    assert checkpointer.load()[0]["text"] == text


def test_fewer_slots_than_asked_for_are_said(agent, make):
    agent.slots = 2
    checkpointer = make()
    assert checkpointer.prepare(state_of(1)) == "memory for 2 slots"
    assert checkpointer.save(1, state_of(1)).wait_committed()


def test_no_memory_costs_the_save_and_not_the_training(agent, make):
    checkpointer = make()
    agent.refuses["prepare"] = "/dev/shm has 3 MB left and 2 slots take 8 MB"
    assert checkpointer.prepare(state_of(1)) == agent.refuses["prepare"]
    handle = checkpointer.save(1, state_of(1))
    assert not handle.wait_staged() and agent.refuses["prepare"] in handle.why
    del agent.refuses["prepare"]
    assert checkpointer.save(2, state_of(2)).wait_committed()


def test_memory_is_made_ready_beside_the_training(agent, make):
    """The first save waits for what is left of it, and asks for nothing more, also where it has grown since."""
    checkpointer = make()
    agent.lets_answer.clear()
    assert checkpointer.prepare(state_of(1), waits=False) is None
    with ThreadPoolExecutor() as pool:
        saving = pool.submit(checkpointer.save, 1, {**state_of(1), "log": "x" * 20_000})
        agent.lets_answer.set()
        assert saving.result().wait_committed()
    (packet,) = agent.packets("prepare")
    assert packet["bytes"] % 4096 == 0, "what is written past the page cache is whole pages"
    assert checkpointer.prepare(state_of(2), waits=False) is None
    assert checkpointer.save(2, state_of(2)).wait_committed()
    assert len(agent.packets("prepare")) == 1, "what is there already fits"
    assert is_state_of(checkpointer.load()[0], 2)


def test_the_image_that_ranks_share_has_its_memory_made_ready_beside_the_training(agent, main_page, make):
    agent.main = main_page
    checkpointer = make(ddp.Checkpointer)
    assert checkpointer.prepare({**state_of(1), "rng": True}, waits=False) is None
    agent.wait_packet("prepare", 2)
    assert checkpointer.save(1, {**state_of(1), "rng": True}).wait_committed()
    assert sorted(packet["page"] for packet in agent.packets("prepare")) == ["main", "own"]


def test_nobody_waits_at_the_end_for_memory_that_is_made_ready(agent, make):
    checkpointer = make()
    agent.lets_answer.clear()
    checkpointer.prepare(state_of(1), waits=False)
    assert agent.was_asked.wait(30)
    checkpointer.close()
    agent.lets_answer.set()
    agent.wait_packet("prepare")
    next_life(agent, checkpointer)
    assert make().save(1, state_of(1)).wait_committed()


def test_the_first_save_says_what_memory_there_is_less(agent, make):
    agent.slots = 2
    checkpointer = make()
    assert checkpointer.prepare(state_of(1), waits=False) is None
    assert "memory for 2 slots" in checkpointer.save(1, state_of(1)).why
    assert "memory" not in (checkpointer.save(2, state_of(2)).why or "")


def test_memory_that_is_not_there_beside_the_training_is_asked_for_once_more_by_the_save(agent, make):
    checkpointer = make()
    agent.refuses["prepare"] = "/dev/shm has 3 MB left and 2 slots take 8 MB"
    assert checkpointer.prepare(state_of(1), waits=False) is None
    handle = checkpointer.save(1, state_of(1))
    assert not handle.wait_staged() and agent.refuses["prepare"] in handle.why
    del agent.refuses["prepare"]
    assert checkpointer.save(2, state_of(2)).wait_committed()
    assert len(agent.packets("prepare")) == 3


def test_an_agent_that_cannot_serve_the_directory_says_why(agent, make):
    agent.refuses["open"] = "/data/run7 is another job's"
    with pytest.raises(RuntimeError, match="/data/run7 is another job's"):
        make()


def test_a_rank_of_an_older_life_writes_no_more(agent, make):
    checkpointer = make()
    assert checkpointer.save(1, state_of(1)).wait_committed()
    agent.page.set_epoch(2)
    handle = checkpointer.save(2, state_of(2))
    assert not handle.wait_staged() and "epoch 2 lives" in handle.why
    assert set(agent.sealed()) == {1}


def test_the_training_outlives_the_agent(agent, make):
    checkpointer = make()
    assert checkpointer.save(1, state_of(1)).wait_committed()
    agent.leave()
    handle = checkpointer.save(2, state_of(2))
    assert handle.wait_staged() and "the agent could not be told" in handle.why
    assert not handle.wait_committed() and "agent" in handle.why
    handle = checkpointer.save(3, state_of(3, 9 * WORDS))
    assert not handle.wait_staged() and "the agent" in handle.why


def test_what_cannot_be_saved_raises_and_the_next_save_goes_on(agent, make):
    checkpointer = make()
    with pytest.raises(CannotSave, match=r"^state\['bad'\]\['x'\]: sparse tensors"):
        checkpointer.save(1, {"bad": {"x": torch.eye(2).to_sparse()}})
    with pytest.raises(CannotSave, match=r"^state\['bad'\]: .*weights_only"):
        checkpointer.save(1, {"bad": random.Random()})
    assert checkpointer.save(2, state_of(2)).wait_committed()
    assert make(weights_only=False).save(3, {"any": random.Random(4)}).wait_committed()


def test_a_save_inside_a_save_is_skipped(agent, make):
    """As from a signal handler."""
    checkpointer = make()
    inner = []

    class Saves:
        def state_dict(self):
            inner.append(checkpointer.save(1, state_of(1)))
            return {}

    assert checkpointer.save(2, {"module": Saves(), **state_of(2)}).wait_committed()
    assert not inner[0].wait_staged() and "another save was under way" in inner[0].why


def test_the_state_is_that_of_the_call(agent, make):
    """What no optimizer guards may be written as soon as save() returns."""
    checkpointer = make()
    state = state_of(1)
    handle = checkpointer.save(1, state)
    state["w"].fill_(7.0)
    assert handle.wait_committed()
    assert is_state_of(checkpointer.load()[0], 1)
    assert "copied before save() returned: " in handle.why


def test_what_was_loaded_stays_as_it_is_under_later_saves(agent, make):
    for agent.stable in (True, False):
        checkpointer = make(slots=2)
        assert checkpointer.save(1, state_of(1)).wait_committed()
        loaded, _ = checkpointer.load()
        for step in (2, 3, 4, 5):
            assert checkpointer.save(step, state_of(step)).wait_committed()
        assert is_state_of(loaded, 1)
        next_life(agent, checkpointer)


def test_random_numbers_go_on_where_they_were(agent, make):
    numpy = pytest.importorskip("numpy")

    def draw():
        return [random.random(), random.gauss(0, 1), numpy.random.rand(), numpy.random.randn(), torch.rand(2).tolist()]

    draw()
    checkpointer = make()
    assert checkpointer.save(1, {"rng": True, **state_of(1)}).wait_committed()
    drawn = [draw(), draw()]
    loaded, _ = checkpointer.load()
    assert [draw(), draw()] == drawn
    assert loaded["rng"] is True and is_state_of(loaded, 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_data_goes_on_where_it_was(agent, make, workers):
    """Two epochs of a shuffled loader whose samples are drawn at random, cut short in the first."""

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 24

        def __getitem__(self, index):
            return torch.tensor([float(index), torch.rand(()).item(), random.random()])

    def epoch(position, checkpointer=None):
        loader = torch.utils.data.DataLoader(Data(), batch_size=4, shuffle=True, num_workers=workers)
        for batch in position.batches(loader):
            noise = torch.rand(2)
            if checkpointer is not None and position.batch == 3:
                assert checkpointer.save(3, {"data": position, "rng": True}).wait_committed()
            yield torch.cat([batch.reshape(-1), noise]).tolist()

    torch.manual_seed(11)
    random.seed(11)
    position, checkpointer = DataPosition(), make()
    uncut = list(epoch(position, checkpointer)) + list(epoch(position))
    assert (position.epoch, position.batch, len(uncut)) == (2, 0, 12)
    next_life(agent, checkpointer)
    torch.rand(5), random.random()
    state, _ = make().load()
    position = DataPosition()
    position.load_state_dict(state["data"])
    assert (position.epoch, position.batch) == (0, 3)
    # The noise of the batch at which the save stood had been drawn before it.
    assert list(epoch(position)) + list(epoch(position)) == uncut[3:]


def test_ranks_of_ddp_share_one_state_and_keep_what_is_their_own(agent, make, monkeypatch, tmp_path):
    position = DataPosition()

    def state(epoch):
        position.epoch = epoch
        torch.manual_seed(epoch)
        return {"rng": True, "data": position, "seen": PerRank({"documents": torch.arange(epoch)}), **state_of(7)}

    with CheckpointAgent() as agent.main:
        monkeypatch.setenv("LOCAL_RANK", "0")
        first = make(ddp.Checkpointer)
        assert first.prepare(state(4)) is None
        assert first.save(7, state(4)).wait_committed()
        drawn = torch.rand(1)
        assert list(torch.load(agent.slot_path(agent.sealed()[7]))) == ["rng", "data", "seen"]
        shared = str(shutil.copyfile(agent.main.slot_path(agent.main.sealed()[7]), tmp_path / "main.pt"))
        loaded, step = first.load()
        assert step == 7 and is_state_of(loaded, 7) and loaded["data"].epoch == 4
        assert loaded["seen"].value["documents"].tolist() == [0, 1, 2, 3]
        assert torch.equal(torch.rand(1), drawn)
        first.close()
    agent.main = None
    agent.new_life()
    monkeypatch.setenv("LOCAL_RANK", "1")
    other = make(ddp.Checkpointer)
    assert other.save(7, state(5)).wait_committed()
    own = agent.slot_path(agent.sealed()[7])
    assert list(torch.load(own)) == ["rng", "data", "seen"] and os.path.getsize(own) < 200_000
    drawn = torch.rand(1)
    answer = {"own": own, "main": shared}
    agent.restores = {"step": 7, "source": "memory", "files": answer, "world_size": 2, "why": ""}
    loaded, step = other.load()
    assert step == 7 and is_state_of(loaded, 7) and loaded["data"].epoch == 5
    assert loaded["seen"].value["documents"].tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(torch.rand(1), drawn)
    before = torch.get_rng_state()
    answer["own"] = None  # a rank that the saved world did not have
    loaded, _ = other.load()
    assert torch.equal(torch.get_rng_state(), before) and loaded["data"].epoch == 4 and loaded["rng"] is True
    assert loaded["seen"].value is None


def test_what_each_rank_has_for_itself_stands_at_the_top(agent, make):
    checkpointer = make()
    with pytest.raises(CannotSave, match=r"PerRank\(7\) does not stand at the top level of the state"):
        checkpointer.save(1, {"inner": {"seen": PerRank(7)}})
    assert checkpointer.save(2, {"seen": PerRank([7]), "step": 2}).wait_committed()
    loaded, step = checkpointer.load()
    assert (step, loaded["step"], loaded["seen"].value) == (2, 2, [7])


# --- what became of a save on disk


class Told:
    """An `on_stored` that puts down what it is told, and by which thread."""

    def __init__(self):
        self.results, self.threads = [], set()
        self._came = threading.Condition()

    def __call__(self, result):
        with self._came:
            self.results.append(result)
            self.threads.add(threading.current_thread())
            self._came.notify_all()

    def wait(self, count):
        with self._came:
            assert self._came.wait_for(lambda: len(self.results) >= count, 30), self.results
        return self.results


def disk(checkpointer, step, told):
    return checkpointer.save(step, state_of(step), storage=Storage.DISK, on_stored=told)


class Counting:
    """A thread that counts in the first element of a tensor, and then in the last: at no moment are they further apart
    than 1."""

    def __init__(self, tensor):
        self._first, self._last = tensor[:1].numpy(), tensor[-1:].numpy()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._count)

    def _count(self):
        while not self._stop.is_set():
            self._first += 1
            self._last += 1

    def start(self):
        self._thread.start()

    def end(self):
        self._stop.set()
        self._thread.join()


def counted_at_once(tensor):
    return tensor.flatten()[0] - tensor.flatten()[-1] in (0, 1)


@pytest.mark.parametrize("kind", [ddp.Checkpointer, dcp.Checkpointer])
def test_what_is_a_ranks_own_is_whole_or_not_saved(agent, main_page, make, monkeypatch, kind):
    """Another thread writes it until its image, which comes first, is there."""
    agent.main, seen = main_page, torch.zeros(8 << 20, dtype=torch.int64)
    checkpointer = make(kind)
    owner, name = (checkpointer._own, "write") if kind is ddp.Checkpointer else (checkpointer, "_own")
    saves = getattr(owner, name)

    def save(step, counting):
        def saves_and_ends(*arguments):
            try:
                return saves(*arguments)
            finally:
                counting.end()

        monkeypatch.setattr(owner, name, saves_and_ends)
        counting.start()
        return checkpointer.save(step, {"w": torch.zeros(WORDS), "seen": PerRank(seen)})

    for step in range(1, 4):
        handle = save(step, Counting(seen))
        if not handle.wait_committed():
            assert "'seen'" in handle.why and "changed while it was copied" in handle.why, handle.why
            continue
        if kind is ddp.Checkpointer:
            assert counted_at_once(checkpointer.load()[0]["seen"].value)
    monkeypatch.undo()
    assert checkpointer.save(4, {"w": torch.zeros(WORDS), "seen": PerRank(seen)}).wait_committed()


def save_by_a_planner(checkpointer, step, state):
    writer = checkpointer.get_storage_writer(step, Storage.MEMORY, waits=False)
    with contextlib.suppress(torch.distributed.checkpoint.api.CheckpointException):
        torch.distributed.checkpoint.save(state, storage_writer=writer, no_dist=True)
    return writer.handle


def load_into(checkpointer, step, state):
    into = {"w": torch.zeros_like(state["w"])}
    assert checkpointer.load(into) == step
    return into["w"]


def load_file(checkpointer, step, state):
    safetensors = pytest.importorskip("safetensors.torch")
    return safetensors.load(checkpointer.load()[0].read("a"))["w"]


LAYOUTS = {
    "safetensors": (
        functools.partial(Checkpointer, layout="safetensors"),
        Checkpointer.save,
        lambda checkpointer, step, state: checkpointer.load()[0]["w"],
    ),
    "dcp": (dcp.Checkpointer, dcp.Checkpointer.save, load_into),
    "dcp by a planner": (dcp.Checkpointer, save_by_a_planner, load_into),
    "files": (
        files.Checkpointer,
        lambda checkpointer, step, state: checkpointer.save(step, {"a": files.Safetensors(state)}),
        load_file,
    ),
}


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_a_tensor_with_gaps_is_whole_or_not_saved(agent, main_page, make, layout):
    """What is copied is a copy without gaps, which nobody else writes."""
    kind, save, load_whole = LAYOUTS[layout]
    agent.main, counted = None if layout == "safetensors" else main_page, torch.zeros(8 << 20, dtype=torch.int64)
    checkpointer, state = make(kind), {"w": counted.view(2048, -1).t()}

    def load(step):
        if agent.main is not None:
            paths = {"main": agent.main.slot_path(agent.main.sealed()[step])}
            paths["ranks"] = {"0": agent.slot_path(agent.sealed()[step])}
            agent.restores = {"step": step, "source": "memory", "files": paths, "world_size": 1, "why": ""}
        return load_whole(checkpointer, step, state)

    for step in range(1, 3):
        counting = Counting(counted)
        counting.start()
        try:
            handle = save(checkpointer, step, state)
        finally:
            counting.end()
        if handle.wait_committed():
            assert counted_at_once(load(step)[[0, -1], [0, -1]])
        else:
            assert "w" in handle.why and "changed while it was copied" in handle.why, handle.why
    handle = save(checkpointer, 3, state)
    assert handle.wait_committed(), handle.why
    assert torch.equal(load(3), state["w"])


def test_what_became_of_a_save_on_disk_is_told_once(agent, make):
    """In a thread of its own, in the order of the saves, and while the training goes on. Nothing of it is left then."""
    checkpointer, told = make(), Told()
    for step in (1, 2, 3):
        disk(checkpointer, step, told)
    assert told.wait(3) == [StoreResult(step, True, None) for step in (1, 2, 3)]
    agent.refuses["prepare"] = "/dev/shm has 3 MB left"
    checkpointer.save(4, state_of(4, 9 * WORDS), storage=Storage.DISK, on_stored=told)
    assert told.wait(4)[3] == StoreResult(4, False, "/dev/shm has 3 MB left")
    assert {thread.name for thread in told.threads} == {"phalanx-on-stored"}
    checkpointer.close()
    assert len(told.results) == 4 and not any(thread.is_alive() for thread in told.threads)


def test_a_save_that_the_others_drop_is_told_as_not_stored(agent, make):
    agent.commits = False
    checkpointer, told = make(), Told()
    assert disk(checkpointer, 1, told).wait_staged()
    agent.wait_packet("wait")
    agent.gone.add(1)
    agent._answer_waiting()
    assert told.wait(1) == [StoreResult(1, False, None)]


def test_a_save_within_a_save_is_told_as_not_stored(agent, make):
    checkpointer, told = make(), Told()

    class Saves:
        def state_dict(self):
            disk(checkpointer, 1, told)
            return {}

    assert checkpointer.save(2, {"module": Saves(), **state_of(2)}).wait_committed()
    assert told.wait(1) == [StoreResult(1, False, "another save was under way in this thread")]


def test_what_on_stored_raises_is_reported_and_ends_nothing(agent, make, monkeypatch):
    reported = []
    monkeypatch.setattr(threading, "excepthook", reported.append)
    checkpointer, told = make(), Told()

    def fails(result):
        raise ArithmeticError(f"at {result.step}")

    for step, function in ((1, fails), (2, told), (3, lambda result: sys.exit(3)), (4, told)):
        assert disk(checkpointer, step, function).wait_committed()
    assert [result.step for result in told.wait(2)] == [2, 4]
    assert [(each.exc_type, str(each.exc_value), each.thread.name) for each in reported] == [
        (ArithmeticError, "at 1", "phalanx-on-stored"),
        (SystemExit, "3", "phalanx-on-stored"),
    ]


def test_who_asks_late_is_told_of_a_save_whose_slot_holds_a_newer_one(agent, make):
    checkpointer, told, release = make(), Told(), threading.Event()
    disk(checkpointer, 1, lambda result: release.wait(30))
    for step in range(2, 2 + 2 * agent.slots):
        assert disk(checkpointer, step, told).wait_committed()
    assert told.results == [] and 2 not in [step for _, step, _ in agent.committed()]
    release.set()
    assert told.wait(2 * agent.slots)[0] == StoreResult(2, True, None)


def test_close_waits_for_what_is_to_be_told(agent, make):
    agent.commits = False
    checkpointer, told = make(), Told()
    assert disk(checkpointer, 1, told).wait_staged()
    agent.wait_packet("wait")
    closing = threading.Thread(target=checkpointer.close)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive() and told.results == []
    agent.commit(1)
    closing.join(30)
    assert told.results == [StoreResult(1, True, None)]


def test_who_fails_does_not_wait_for_storage(agent, make):
    agent.commits = False
    told = Told()
    with pytest.raises(ArithmeticError), make() as checkpointer:
        assert disk(checkpointer, 1, told).wait_staged()
        agent.wait_packet("wait")
        raise ArithmeticError
    why = "the Checkpointer was closed before the agent had answered"
    assert told.results == [StoreResult(1, False, why, may_come=True)]


def test_a_save_waits_for_nothing_while_storage_is_waited_for(agent, make, tmp_path):
    """Nor do other Checkpointers of this process, which ask the same agent."""
    agent.commits = False
    checkpointer, other, told = make(), make(), Told()
    assert disk(checkpointer, 1, told).wait_staged()
    agent.wait_packet("wait")
    for _ in range(20):
        assert other.load()[1] == 0, "answered to whom it was asked by"
        assert checkpointer.load()[1] == 0
    assert checkpointer.save(2, state_of(2)).wait_staged()
    assert told.results == []
    agent.commit(1)
    assert told.wait(1)[0].stored


def test_an_on_stored_that_can_never_be_called_is_refused(agent, make):
    checkpointer = make()
    with pytest.raises(ValueError, match=r"on_stored is given with Storage\.MEMORY; expected storage=Storage\.DISK"):
        checkpointer.save(1, state_of(1), on_stored=print)
    with pytest.raises(TypeError, match="on_stored is 7; expected a function"):
        checkpointer.save(1, state_of(1), storage=Storage.DISK, on_stored=7)
    assert agent.packets("sealed") == []


# --- where tensors are loaded to


class Placing:
    """A map_location that puts down where storages were."""

    def __init__(self):
        self.asked = []

    def __call__(self, storage, location):
        self.asked.append((location, storage.nbytes()))
        return storage


def on_disk_of(agent, folder, step=1):
    """The step that memory holds, stored, for a process without an agent."""
    agent.store(folder, step)
    memory.forget()
    return Checkpointer(folder)


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_a_map_location_is_that_of_torch_load(agent, make, tmp_path, where):
    checkpointer = make()
    assert checkpointer.save(1, {"rng": True, **state_of(1)}).wait_committed()
    drawn = random.random()
    if where == "disk":
        checkpointer.close()
        checkpointer = on_disk_of(agent, tmp_path / "run")
    placing = Placing()
    for map_location in ("cpu", None, torch.device("cpu", 0), {"cuda:7": "cpu"}, placing, lambda *_: None):
        loaded, _ = checkpointer.load(map_location=map_location)
        assert checkpointer.source == where and is_state_of(loaded, 1) and loaded["w"].device == torch.device("cpu")
        assert random.random() == drawn
    assert ("cpu", 4 * WORDS) in placing.asked, "of each storage, as torch.load does"


@pytest.mark.parametrize("mapped", [True, False])
def test_a_safetensors_file_is_loaded_to_one_device(agent, make, tmp_path, mapped):
    agent.layout = "safetensors"
    checkpointer = make(layout="safetensors")
    weight = torch.arange(6.0).view(2, 3)
    assert checkpointer.save(
        1, {"a": weight, "tied": weight[0], "b": torch.nn.Parameter(torch.ones(2))}
    ).wait_committed()
    path = agent.slot_path(agent.sealed()[1])
    loaded = named.load(path, mapped, True, "meta")  # stands for a device: there is none on every machine
    assert [(name, each.device.type, each.shape) for name, each in loaded.items()] == [
        ("a", "meta", (2, 3)),
        ("tied", "meta", (3,)),
        ("b", "meta", (2,)),
    ]
    assert isinstance(loaded["b"], torch.nn.Parameter)
    if not mapped:
        checkpointer.close()
        checkpointer = on_disk_of(agent, tmp_path / "run")
    for map_location in ("cpu", None, torch.device("cpu")):
        assert torch.equal(checkpointer.load(map_location=map_location)[0]["a"], weight)
    for map_location in ({"cuda:0": "cpu"}, Placing()):
        with pytest.raises(TypeError, match=r"does not say on which device a tensor was: expected one device for all"):
            checkpointer.load(map_location=map_location)


def test_what_ranks_of_ddp_share_is_mapped_and_their_own_is_not(agent, main_page, make):
    agent.main = main_page
    checkpointer = make(ddp.Checkpointer)
    assert checkpointer.save(1, {"rng": True, **state_of(1)}).wait_committed()
    drawn = torch.rand(3)
    placing = Placing()
    loaded, _ = checkpointer.load(map_location=placing)
    assert is_state_of(loaded, 1) and torch.equal(torch.rand(3), drawn)
    assert [size for _, size in placing.asked].count(4 * WORDS) == 1


def test_a_map_location_that_torch_load_would_not_take_is_refused_before_anything_is_asked(agent, main_page, make):
    checkpointer, agent.main = make(), main_page
    for wrong, kind, what in (
        ("gpu", ValueError, "'gpu'; expected a device"),
        ("meta", ValueError, "'meta'; expected a device"),
        (torch.device("cuda", 99), ValueError, "'cuda:99'; expected a device that torch sees here"),
        (0, TypeError, "0; expected None, a device, a dict of devices or a function"),
    ):
        with pytest.raises(kind, match=f"^phalanx.checkpoint: map_location is {what}"):
            checkpointer.load(map_location=wrong)
    assert agent.packets("restore") == []
    with pytest.raises(TypeError, match=r"map_location is 'cpu'; expected None: load\(\) writes into the tensors"):
        make(dcp.Checkpointer).load({}, map_location="cpu")


# --- disk


@pytest.fixture
def on_disk(agent, make, tmp_path):
    """Steps 1 and 2 on disk, and a process without an agent."""
    checkpointer = make()
    for step in (1, 2):
        assert checkpointer.save(step, state_of(step), storage=Storage.DISK).wait_stored()
    checkpointer.close()
    memory.forget()
    return tmp_path / "run"


def load(folder):
    checkpointer = Checkpointer(folder)
    loaded, step = checkpointer.load()
    assert loaded is None or is_state_of(loaded, step)
    return step, checkpointer.source, checkpointer.why


def test_without_an_agent_the_newest_step_on_disk_is_read(on_disk):
    assert load(on_disk) == (2, "disk", f"step 2 is restored from storage, {on_disk / '2'}")
    assert Checkpointer(on_disk / "elsewhere").load(default=3) == (3, 0)


def test_a_step_without_a_whole_manifest_does_not_count(on_disk):
    manifest = on_disk / "2" / "manifest.json"
    whole = manifest.read_bytes()
    manifest.write_bytes(whole.replace(b'"step": 2', b'"step": 3'))
    restored = f"step 1 is restored from storage, {on_disk / '1'} (passed over: {on_disk / '2'}: "
    step, source, why = load(on_disk)
    assert (step, source) == (1, "disk") and why.startswith(restored)
    assert "whose CRC is not that of their last line" in why
    manifest.write_bytes(whole[:-5])
    step, source, why = load(on_disk)
    assert (step, source) == (1, "disk") and "cut off: " in why
    manifest.unlink()
    assert load(on_disk) == (1, "disk", f"{restored}no manifest: not committed)")


def test_nobody_begins_anew_beside_a_step_that_may_be_whole(on_disk):
    """Of a newer Phalanx, say."""
    shutil.rmtree(on_disk / "1")
    shards = json.loads((on_disk / "2" / "manifest.json").read_bytes().partition(b"\n")[0])["shards"]
    write_manifest(on_disk / "2", 2, 9, shards, version=99)
    with pytest.raises(RuntimeError, match=r"whether there is a step to restore is not known: .*newer Phalanx"):
        load(on_disk)


@pytest.mark.parametrize("damage", ["flipped", "short", "gone"])
def test_a_step_whose_file_is_damaged_is_passed_over(on_disk, damage):
    path = on_disk / "2" / "rank_0.pt"
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 4
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(data if damage == "flipped" else data[:-4096])
    step, source, why = load(on_disk)
    wrong = {"flipped": "the checksum of rank_0.pt", "short": "bytes instead of", "gone": "No such file"}
    assert (step, source) == (1, "disk") and wrong[damage] in why


def test_a_step_that_was_saved_again_counts_more(on_disk):
    shutil.copytree(on_disk / "2", on_disk / "2.9")
    shards = json.loads((on_disk / "2" / "manifest.json").read_bytes().partition(b"\n")[0])["shards"]
    write_manifest(on_disk / "2.9", 2, 9, [{**shards[0], "crc32": 1}])  # to tell them apart
    step, _, why = load(on_disk)
    assert step == 2 and f"{on_disk}/2.9: the checksum of rank_0.pt is" in why
    write_manifest(on_disk / "2.9", 2, 9, [{**shards[0], "file": "../2/rank_0.pt"}])
    step, _, why = load(on_disk)
    assert step == 2 and "has no plain file name" in why


def test_a_step_that_was_stored_later_counts_more(on_disk):
    """Whatever its number; what has no manifest is no step, and says so where it may be newer."""
    for name, sequence in (("1", 3), ("2", 2)):
        shards = json.loads((on_disk / name / "manifest.json").read_bytes().partition(b"\n")[0])["shards"]
        write_manifest(on_disk / name, int(name), 9, shards, sequence=sequence)
    (on_disk / "5").mkdir()
    step, _, why = load(on_disk)
    assert step == 1 and f"(passed over: {on_disk}/5: " in why


# --- processes


def test_a_forked_child_saves_nothing_and_disturbs_nothing(agent, make):
    model = torch.nn.Linear(300, 300)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    checkpointer = make()

    def step():
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.step()

    step()
    checkpointer.prepare({"model": model, "optimizer": optimizer})
    step()
    expected = model.weight.detach().clone()
    handle = checkpointer.save(1, {"model": model, "optimizer": optimizer})
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            torch.set_num_threads(1)  # the threads of the parent are not here
            step()
            checkpointer.wait()
            handle.wait_staged()
            checkpointer.close()
            checkpointer.save(2, {})
        except RuntimeError as error:
            status = 0 if "a child process of a rank cannot save" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    step()
    assert handle.wait_committed()
    assert torch.equal(checkpointer.load()[0]["model"]["weight"], expected)


SCRIPT = """
    import sys
    import torch
    from phalanx.checkpoint import Checkpointer, Storage
    model = torch.nn.Linear(2000, 1000)
    optimizer = torch.optim.Adam(model.parameters())
    checkpointer = Checkpointer(sys.argv[1], verify="always")
    def step():
        model(torch.ones(1, 2000)).sum().backward()
        optimizer.step()
    step()
    checkpointer.prepare({"model": model, "optimizer": optimizer})
    step()
    handle = checkpointer.save(9, {"model": model, "optimizer": optimizer})
    assert not handle.is_over or "loses optimizer hooks" in handle.why, handle
    if sys.argv[2] == "raises":
        raise SystemExit(3)
"""


@pytest.mark.parametrize("how", ["ends", "raises"])
def test_the_last_save_of_a_script_is_not_lost_at_its_end(agent, tmp_path, how):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    with Agent(python=sys.executable) as zygote, open(os.devnull) as null:
        worker = zygote.cold()
        fds = [null.fileno(), worker.out.fileno(), worker.err.fileno(), agent.rank_fd]
        env = {"PHALANX_EPOCH": "1", "OMP_NUM_THREADS": "1"}
        worker.run(script, tmp_path / "run", how, cwd=tmp_path, stdio=fds, env=env)
        status, _, err = worker.result()
        assert (status, err) == (3 if how == "raises" else 0, "")
    assert agent.wait_packet("sealed")["step"] == 9
    assert native.check_file(agent.slot_path(agent.sealed()[9])) is None


def test_a_killed_rank_leaves_no_torn_image(agent, tmp_path):
    script = tmp_path / "script.py"
    kill = "\n__import__('os').kill(__import__('os').getpid(), 9)\n"
    script.write_text(textwrap.dedent(SCRIPT) + kill)
    with Agent(python=sys.executable) as zygote, open(os.devnull) as null:
        worker = zygote.cold()
        fds = [null.fileno(), worker.out.fileno(), worker.err.fileno(), agent.rank_fd]
        worker.run(script, tmp_path / "run", "dies", cwd=tmp_path, stdio=fds, env={"PHALANX_EPOCH": "1"})
        assert worker.wait() == -signal.SIGKILL
    for slot in agent.sealed().values():  # where the copy was faster than the kill
        assert native.check_file(agent.slot_path(slot)) is None


def test_the_ten_lines_of_the_documentation_run_and_resume(agent, main_page, tmp_path):
    lines = (Path(__file__).parent.parent / "docs" / "checkpoint.md").read_text().split("```")[1]
    text = lines.partition("\n")[2].replace("/data/run7", str(tmp_path / "run"))
    script = tmp_path / "script.py"
    agent.main = main_page
    group = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    for life, steps in ((1, 20), (2, 40)):
        script.write_text(text.replace("1000", str(steps)))
        env = {**group, "MASTER_PORT": str(free_port()), "PHALANX_EPOCH": str(life)}
        with Agent(python=sys.executable) as zygote, open(os.devnull) as null:
            worker = zygote.cold()
            fds = [null.fileno(), worker.out.fileno(), worker.err.fileno(), agent.rank_fd]
            worker.run(script, cwd=tmp_path, stdio=fds, env=env)
            assert worker.wait() == 0, worker.stderr()
        agent.wait_packet("sealed", count=4 * life)
        agent.new_life()
        main_page.page.set_epoch(agent.epoch)
    sealed = [(packet["page"], packet["step"]) for packet in agent.packets("sealed")]
    assert sealed == [(page, step) for step in (10, 20, 30, 40) for page in ("own", "main")]


# What the README's reader has already, and a list of what is asked of the Checkpointer.
READERS_OWN = """
import functools
import torch
import torch.distributed as dist
from phalanx.checkpoint import ddp

def listed(name, call):
    @functools.wraps(call)
    def listing(*args, **options):
        with open("calls", "a") as calls:
            print(name, file=calls)
        return call(*args, **options)
    return listing

for name in ("load", "prepare", "save"):
    setattr(ddp.Checkpointer, name, listed(name, getattr(ddp.Checkpointer, name)))
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.AdamW(model.parameters())

def train_one_step():
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_the_example_of_the_readme_makes_memory_ready_before_its_first_save(agent, main_page, tmp_path):
    page = (Path(__file__).parent.parent / "README.md").read_text()
    example = page.partition("```python\n")[2].partition("```")[0]
    script = tmp_path / "script.py"
    script.write_text(READERS_OWN + example.replace("/data/run7", str(tmp_path / "run")).replace("1000", "3"))
    agent.main = main_page
    group = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    env = {**group, "MASTER_PORT": str(free_port()), "PHALANX_EPOCH": "1"}
    with Agent(python=sys.executable) as zygote, open(os.devnull) as null:
        worker = zygote.cold()
        fds = [null.fileno(), worker.out.fileno(), worker.err.fileno(), agent.rank_fd]
        worker.run(script, cwd=tmp_path, stdio=fds, env=env)
        assert worker.wait() == 0, worker.stderr()
    assert (tmp_path / "calls").read_text().split() == ["load", "prepare", "save", "save", "save"]


# --- what others hear of it


@pytest.fixture
def slot(monkeypatch):
    """The board's words, as a life finds them."""
    monkeypatch.setattr(board, "words", memoryview(bytearray(board.SLOT_BYTES)).cast("Q"))
    monkeypatch.setattr(board, "_signed", board.words.cast("B").cast("q"))
    monkeypatch.setattr(board, "_known", (0, 0))
    monkeypatch.setattr(board, "_counts_on", False)
    monkeypatch.setattr(board, "_counted_on", False)
    board._signed[board.STEP] = board._signed[board.FROM_STEP] = -1
    return board._signed


@pytest.mark.parametrize(
    ("life", "step", "from_step"),
    [
        ("step*3 save:3 step*2", 5, 0),
        ("step*4 save:3 step*2 save:5 step*1", 6, 2),  # the first is step 0: known from the second save on
        ("step*90 save:1 step*90 save:2 step*90", 2, 0),  # epochs
        ("load:60 step*2", -1, -1),
        ("load:60 step*5 save:65 step*2", 67, 60),
        ("load:60 step*1 load:50 step*5 save:55 step*2", 57, 49),
        ("step*3 tell:3 save:3 step*2", 3, 2),  # by phalanx.step
        ("step*3 save:3 step*1 tell:4 step*1", 4, 0),
        ("step*3 save:3 step*1 tell:4 step*1 save:5 step*1", 5, 0),
        ("save:3 step*2", 3, 3),
        ("behind load:60 step*2", 62, 60),  # the life before counted on
        ("behind step*1 load:60 step*2 save:62 step*1", 63, 59),
        ("behind load:60", -1, -1),  # no step has been made
        ("behind load:3 tell:61 step*2", 61, 61),
        ("behind load:60 step*50 save:61 step*1", 61, 60),  # it does not any more
    ],
)
def test_steps_are_counted_on_between_two_saves(slot, life, step, from_step):
    for word in life.split():
        kind, number = word.replace("*", ":").split(":") if word != "behind" else (word, 0)
        {
            "behind": lambda _: board.expect_counting_on(),
            "step": lambda count: [board.optimizer_stepped() for _ in range(count)],
            "save": board.saved_step,
            "load": board.restored_step,
            "tell": board.set_step,
        }[kind](int(number))
    assert (slot[board.STEP], slot[board.FROM_STEP]) == (step, from_step)


def test_saves_are_told_and_counted(agent, make, monkeypatch, slot):
    checkpointer = make()
    monkeypatch.setattr(board, "on_step", lambda step: None)
    checkpointer.save(41, state_of(1))
    assert not board.tells_steps(), "safe points count the optimizer's steps"
    assert board.words[board.SAVING_NS] > 0 and board.words[board.SAVING_SINCE_NS] == 0
    monkeypatch.setattr(board, "on_step", None)
    checkpointer.save(42, state_of(1))
    assert board._signed[board.STEP] == 42


def test_the_agent_hears_the_settings(agent, make, tmp_path):
    make(keep_last=3, keep_every=100, save_at_breakpoint=True, memory_budget=1 << 30, slots=2, trackers=("latest",))
    packet = agent.wait_packet("open")
    wanted = {"keep_last": 3, "keep_every": 100, "save_at_breakpoint": True, "memory_budget": 1 << 30}
    assert packet == {**packet, **wanted, "slots_wanted": 2, "trackers": ["latest"], "dir": str(tmp_path / "run")}


@pytest.mark.parametrize("wrong", [{"slots": 4}, {"verify": "maybe"}, {"keep_last": 0}, {"memory_budget": 1.5}])
def test_settings_that_mean_nothing_are_refused(wrong, tmp_path):
    name, value = next(iter(wrong.items()))
    with pytest.raises(ValueError, match=f"{name} is {value!r}; expected"):
        Checkpointer(tmp_path, **wrong)


@pytest.mark.parametrize("url", ["s3://bucket/run7", Path("gs://bucket/run7"), b"file:///data/run7"])
def test_a_url_is_no_directory(url):
    """It would be a folder below the script's own, which nobody looks for there."""
    with pytest.raises(ValueError, match=re.escape(f"directory is {url!r}; expected a path in a file system")):
        Checkpointer(url)
