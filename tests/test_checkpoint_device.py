"""What is copied from devices is whole: on a device where there is one, and on one that is none, which does everything
late and in pieces."""

import gc
import signal
import threading

import pytest

torch = pytest.importorskip("torch")

from phalanx.checkpoint import Checkpointer, native  # noqa: E402
from phalanx.checkpoint.copying import cuda, device, overlap  # noqa: E402
from phalanx.checkpoint.formats import framed  # noqa: E402
from slow_device import SlowDriver  # noqa: E402
from test_checkpoint_cuda import agent as agent  # noqa: E402

WIDTH = 512  # a weight of 1 MiB
PATIENCE_S = 30
has_device = torch.cuda.is_available()
needs_overlap = pytest.mark.skipif(
    overlap.why_not_with(torch.__version__) is not None, reason="this torch copies nothing later"
)


@pytest.fixture
def make_slow(monkeypatch):
    def make(**settings):
        driver = SlowDriver(**settings)
        monkeypatch.setattr(cuda, "Driver", lambda: driver)
        return driver

    return make


@pytest.fixture(
    params=["slow", pytest.param("cuda", marks=pytest.mark.skipif(not has_device, reason="no CUDA device"))]
)
def where(request, make_slow):
    """The device of tensors. Chunks are small, so that there are several of a weight."""
    if request.param == "slow":
        make_slow(seed=7)
    return "cpu" if request.param == "slow" else "cuda"


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(device, "CHUNK_BYTES", 300_000)


class Training:
    def __init__(self, where, checkpointer, extra=(), make=torch.optim.SGD):
        self.model = torch.nn.Linear(WIDTH, WIDTH).to(where)
        self.optimizer = make(self.model.parameters(), lr=1.0)
        self.checkpointer, self.number, self.extra = checkpointer, 0, dict(extra)
        self.fill()

    def fill(self):
        """The step's number in each element, which is what step() leaves, too."""
        for parameter in self.model.parameters():
            parameter.data.fill_(self.number)

    def step(self):
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, -1.0)
        self.optimizer.step()
        self.number += 1

    def save(self):
        """Behind a step that its optimizer was seen to make, so that parameters are copied later."""
        self.step()
        state = {"model": self.model, "optimizer": self.optimizer, **self.extra}
        return self.checkpointer.save(self.number, state)

    def load(self):
        state, step = self.checkpointer.load()
        return {name: set(state["model"][name].unique().tolist()) for name in ("weight", "bias")}, step

    def weight(self):
        return self.model.weight


@pytest.fixture
def train(agent, where, tmp_path):
    with Checkpointer(tmp_path / "run") as checkpointer:
        training = Training(where, checkpointer)
        training.checkpointer.prepare({"model": training.model, "optimizer": training.optimizer})
        assert training.save().wait_committed()
        yield training


def before_the_copy(monkeypatch, write):
    """`write()` by the device itself, between the begin of a save and the copies that come later."""
    copy = device._Group.copy

    def copy_behind(self):
        if any(record.guarded for record in self.large):
            self._queue.run(write)
        copy(self)

    monkeypatch.setattr(device._Group, "copy", copy_behind)


def between_the_looks(monkeypatch, write):
    """`write()` when all was copied, and before it is looked at again."""
    look_again = device.Copies._look_again

    def look_behind(self):
        for part in self._parts:
            part.copied.synchronize()
        write()
        look_again(self)

    monkeypatch.setattr(device.Copies, "_look_again", look_behind)


# --- what is whole ---------------------------------------------------------------------------------------------------


def on_host(value):
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {key: on_host(inner) for key, inner in value.items()}
    return [on_host(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return all(equal(a[key], b[key]) for key in a)
    return all(map(equal, a, b)) if isinstance(a, (list, tuple)) else a == b


@pytest.mark.parametrize("verify", ["always", "never"])
@pytest.mark.parametrize("settings", [{}, {"fused": True}, {"capturable": True}])
def test_saves_are_as_the_state_was(agent, where, tmp_path, settings, verify):
    """Copied later, at once and gathered, while the training goes on."""
    if where == "cpu" and ("capturable" in settings or overlap.why_not_with(torch.__version__)):
        settings = {"amsgrad": True}  # older torch fuses nothing on a CPU
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.BatchNorm1d(WIDTH)).to(where)
    optimizer = torch.optim.AdamW(model.parameters(), **settings)
    average = torch.zeros(WIDTH, WIDTH, device=where)
    small = [torch.full((number % 50 + 1,), number, dtype=torch.int16, device=where) for number in range(100)]

    def step():
        optimizer.zero_grad()
        model(torch.randn(64, WIDTH, device=where)).square().mean().backward()
        optimizer.step()

    step()
    with Checkpointer(tmp_path / "run", verify=verify) as checkpointer:
        for number in range(4):
            step()
            state = {"model": model, "optimizer": optimizer, "average": average, "small": small}
            before = on_host({**state, "model": model.state_dict(), "optimizer": optimizer.state_dict()})
            handle = checkpointer.save(number, state)
            assert overlap.why_not_with(torch.__version__) or handle.why is None
            for each in (average, *small):
                each.add_(1)  # no optimizer guards it
            step()
            step()
            assert handle.wait_committed(), handle.why
            assert native.check_file(agent.slot_path(agent.sealed()[number])) is None
            loaded, _ = checkpointer.load()
            assert equal(before, loaded)


def test_small_records_are_gathered_and_come_to_their_places(agent, make_slow, tmp_path, monkeypatch):
    monkeypatch.setattr(device, "GATHERED_BYTES_MAX", 1000)  # in pieces of several
    driver = make_slow(late_s=0)
    state = {f"t{number}": torch.full((number % 90 + 16,), number % 251, dtype=torch.uint8) for number in range(500)}
    with Checkpointer(tmp_path / "run") as checkpointer:
        assert checkpointer.save(1, state).wait_committed()
        loaded, _ = checkpointer.load()
    assert equal(state, loaded)
    (queue,) = driver.queues
    assert queue.done.count("copy") < 200, "some thirty pieces, four copies each"


def test_devices_are_looked_at_again_when_all_of_them_were_copied(agent, make_slow, tmp_path):
    """A device that is done first waits for the other."""
    driver = make_slow(seed=3, devices=2)
    with Checkpointer(tmp_path / "run") as checkpointer:
        training = Training("cpu", checkpointer, extra={"more": [torch.ones(70_000 + n) for n in range(20)]})
        for _ in range(3):
            assert training.save().wait_committed()
            assert training.load() == ({"weight": {training.number}, "bias": {training.number}}, training.number)
    assert len(driver.queues) == 2
    assert all("follow" in queue.done for queue in driver.queues)


# --- what is not -----------------------------------------------------------------------------------------------------


@needs_overlap
@pytest.mark.filterwarnings("ignore:phalanx.checkpoint:RuntimeWarning")
@pytest.mark.parametrize(
    ("when", "part"),
    [  # a sample stands for a chunk, and not for each row of it
        (before_the_copy, slice(None)),
        (between_the_looks, slice(None)),
        (between_the_looks, slice(WIDTH // 2, WIDTH // 2 + 1)),
    ],
)
def test_what_no_optimizer_writes_drops_the_save(train, monkeypatch, when, part):
    """Past every version counter: a whole weight, and one row of it where it is seen by the second look."""
    weight = train.weight()
    with monkeypatch.context() as patched:
        when(patched, lambda: weight.data[part].mul_(-1))
        handle = train.save()
        assert not handle.wait_committed()
    assert "state['model']['weight'] changed while it was copied" in handle.why
    train.fill()
    assert train.load() == ({"weight": {1}, "bias": {1}}, 1), "what was committed before"
    assert train.save().wait_committed()
    assert train.load()[1] == 3


@needs_overlap
@pytest.mark.filterwarnings("ignore:phalanx.checkpoint:RuntimeWarning")
def test_a_write_between_both_looks_is_not_seen_by_who_does_not_look(agent, where, tmp_path, monkeypatch):
    """That it is the second look that sees it."""
    with Checkpointer(tmp_path / "run", verify="never") as checkpointer:
        training = Training(where, checkpointer)
        assert training.save().wait_committed()
        between_the_looks(monkeypatch, lambda: training.weight().data.mul_(-1))
        assert training.save().wait_committed()


@pytest.mark.filterwarnings("ignore:phalanx.checkpoint:RuntimeWarning")
@pytest.mark.parametrize("size", [10, 100_000])
def test_what_is_copied_at_once_is_looked_at_twice_as_well(agent, where, tmp_path, monkeypatch, size):
    """Written by another thread, or another stream: a small one among others, and a large one."""
    others = [torch.zeros(20, device=where) for _ in range(9)]
    tensor = torch.zeros(size, device=where)
    look_again = device._Group.look_again

    def write_before(self):
        self._queue.run(lambda: tensor[size // 3 : size // 3 + 1].fill_(1))
        look_again(self)

    with Checkpointer(tmp_path / "run") as checkpointer:
        state = {"others": others, "this": tensor, "last": torch.zeros(30, device=where)}
        assert checkpointer.save(1, state).wait_committed()
        monkeypatch.setattr(device._Group, "look_again", write_before)
        handle = checkpointer.save(2, state)
        assert not handle.wait_committed()
        assert "state['this'] changed while it was copied" in handle.why
        assert checkpointer.load()[1] == 1


@needs_overlap
@pytest.mark.filterwarnings("ignore:phalanx.checkpoint:RuntimeWarning")
@pytest.mark.parametrize("writes", [False, True])
def test_what_the_host_copies_is_looked_at_again_behind_the_device(agent, make_slow, tmp_path, monkeypatch, writes):
    """A state that lies in part on the host, where it is copied long before the device has done its part."""
    on_the_host = torch.nn.Linear(WIDTH, WIDTH)
    storages = {each.untyped_storage().data_ptr() for each in on_the_host.parameters()}
    make_slow(is_here=lambda storage: storage.data_ptr() in storages)
    gate, copied = threading.Event(), threading.Event()
    with Checkpointer(tmp_path / "run") as checkpointer:
        training = Training("cpu", checkpointer)
        training.optimizer.add_param_group({"params": list(on_the_host.parameters())})
        training.extra["host"] = on_the_host
        assert training.save().wait_committed()
        before_the_copy(monkeypatch, lambda: (copied.set(), gate.wait(PATIENCE_S)))
        handle = training.save()
        assert copied.wait(PATIENCE_S)
        checkpointer._writer._slots.wait_copied()  # the host's part
        if writes:
            on_the_host.weight.data.mul_(-1)
        gate.set()
        training.step()
        assert handle.is_over, "the step has waited for all of it"
        assert handle.wait_committed() != writes
        assert not writes or "state['host']['weight'] changed" in handle.why
        assert checkpointer.load()[1] == (1 if writes else 2)


# --- a device that has no room, and a slot that is not pinned --------------------------------------------------------


def test_without_memory_for_the_second_look_all_is_copied_at_once(agent, make_slow, tmp_path):
    driver = make_slow()
    with Checkpointer(tmp_path / "run") as checkpointer:
        training = Training("cpu", checkpointer)
        assert training.save().wait_committed()
        for call in range(1, 100):  # whichever piece of memory it is that is not there
            driver.no_memory_at = call
            handle = training.save()
            if driver.no_memory_at > 0:
                break  # it takes no more pieces
            training.weight().data.mul_(-1)
            training.fill()
            assert "the device has no memory for the second look" in handle.why
            assert handle.wait_committed()
            assert training.load()[0] == {"weight": {training.number}, "bias": {training.number}}
        assert call > 5


def test_a_slot_that_is_not_pinned_is_filled_at_once(agent, make_slow, tmp_path):
    make_slow().not_pinned = 2
    with Checkpointer(tmp_path / "run") as checkpointer:
        training = Training("cpu", checkpointer)
        for _ in range(2):
            handle = training.save()
            training.weight().data.mul_(-1)
            training.fill()
            assert "CUDA does not pin a slot" in handle.why and handle.wait_committed()
            assert training.load()[0] == {"weight": {training.number}, "bias": {training.number}}


@needs_overlap
def test_a_second_look_for_which_there_is_no_memory_proves_nothing(agent, make_slow, tmp_path, monkeypatch):
    """The save is dropped, the training hears nothing of it, and the next one goes its usual way."""
    make_slow()
    look_again = device._FromDevice.look_again

    def without_memory(self):
        look_again(self)
        raise torch.cuda.OutOfMemoryError("the device has no memory")

    with Checkpointer(tmp_path / "run") as checkpointer:
        training = Training("cpu", checkpointer)
        assert training.save().wait_committed()
        with monkeypatch.context() as patched:
            patched.setattr(device._FromDevice, "look_again", without_memory)
            handle = training.save()
            training.step()
            assert not handle.wait_committed()
        assert handle.why == "the device had no memory for the second look"
        assert checkpointer.load()[1] == 1
        handle = training.save()
        assert handle.why is None and handle.wait_committed()


class CutOff(BaseException):
    """As a signal handler may raise it."""


@needs_overlap
def test_a_save_that_is_cut_off_costs_itself_alone(agent, make_slow, tmp_path, monkeypatch):
    make_slow()

    def cut_off(self):
        raise CutOff

    with Checkpointer(tmp_path / "run") as checkpointer:
        training = Training("cpu", checkpointer)
        assert training.save().wait_committed()
        with monkeypatch.context() as patched:
            patched.setattr(device._Group, "copy", cut_off)
            with pytest.raises(CutOff):
                training.save()
        assert agent.wait_packet("skipped")["step"] == 2
        for _ in range(4):  # more than there are slots
            assert training.save().wait_committed()
        assert training.load()[1] == 6


class Changing:
    """Memory of a device that is another each time it is read."""

    def __init__(self):
        self.count = 0

    def cpu(self):
        self.count += 1
        return torch.full((8,), self.count, dtype=torch.uint8)


def test_what_is_filled_at_once_is_read_twice(monkeypatch):
    source, slot = Changing(), torch.zeros(64, dtype=torch.uint8)
    ones, address = torch.ones(8, dtype=torch.uint8), slot.data_ptr()
    still = device._Record(4, ones.untyped_storage(), ones.data_ptr(), 8, address, False)
    changing = device._Record(5, ones.untyped_storage(), ones.data_ptr(), 8, address + 16, True)
    monkeypatch.setattr(device._Record, "view", lambda self: ones if self is still else source)
    waits = []
    assert device._copied_at_once({"a": [still], "b": [changing]}, True, lambda: waits.append(1)).land() == 5
    assert waits == [1], "what the host copies is there before the second look"
    assert device._copied_at_once({"a": [still]}, True, list).land() is None
    assert device._copied_at_once({"b": [changing]}, False, list).land() is None
    assert slot[:8].tolist() == [1] * 8 and slot[16:24].tolist() == [3] * 8


def test_what_was_pinned_is_let_go(agent, make_slow, tmp_path):
    driver = make_slow()
    with Checkpointer(tmp_path / "run") as checkpointer:
        training = Training("cpu", checkpointer)
        assert training.save().wait_committed()
        assert len(driver.pinned) == 3
        training.extra["more"] = torch.ones(1 << 20)  # slots of another size
        assert training.save().wait_committed()
        assert len(driver.pinned) == 3
        training.save()
    assert driver.pinned == set(), "also with copies under way"


def test_slots_are_pinned_beside_the_training(agent, make_slow, tmp_path):
    driver = make_slow()
    with Checkpointer(tmp_path / "run") as checkpointer:
        training = Training("cpu", checkpointer)
        training.step()
        state = {"model": training.model, "optimizer": training.optimizer}
        assert checkpointer.prepare(state, waits=False) is None
        checkpointer._writer._take_reserved()
        assert len(driver.pinned) == 3 and driver.entered == [("phalanx-memory", 0)]
        assert training.save().wait_committed()
    assert driver.pinned == set()


@needs_overlap
def test_an_image_is_sealed_without_anybody_coming_by(agent, make_slow, tmp_path):
    """As from the host: an evaluation may follow that takes long."""
    make_slow()
    with Checkpointer(tmp_path / "run") as checkpointer:
        training = Training("cpu", checkpointer)
        training.save()
        training.save()
        assert agent.wait_packet("sealed", 2)["step"] == 2


@needs_overlap
def test_who_never_closes_has_its_last_image_sealed_and_its_slots_let_go(agent, make_slow, tmp_path):
    driver = make_slow()
    training = Training("cpu", Checkpointer(tmp_path / "run"))
    assert training.save().wait_committed()
    training.save()
    training.checkpointer = None
    assert agent.wait_packet("sealed", 2)["step"] == 2
    for thread in threading.enumerate():
        if thread.name == "phalanx-copies":
            thread.join()
    gc.collect()
    assert driver.pinned == set()


def test_what_is_begun_in_inference_mode_ends_outside_it(agent, make_slow, tmp_path):
    make_slow()
    with Checkpointer(tmp_path / "run") as checkpointer:
        training = Training("cpu", checkpointer)
        assert training.save().wait_committed()
        with torch.inference_mode():
            handle = checkpointer.save(2, {"model": training.model, "optimizer": training.optimizer})
        training.step()
        assert handle.wait_committed(), handle.why
        assert training.load() == ({"weight": {1}, "bias": {1}}, 2)


def test_memory_for_the_host_is_the_hosts_whatever_the_default_device():
    with torch.device("meta"):
        assert cuda.Driver().host_bytes(8).device.type == "cpu"


def test_samples_are_words_where_memory_has_words():
    memory = torch.arange(3 << 18, dtype=torch.int32).view(torch.uint8)
    assert memory.data_ptr() % 8 == 0
    every, storage = device.SAMPLE_EVERY_BYTES, memory.untyped_storage()
    for begin, size in ((0, 1 << 20), (4, 1 << 20), (0, (1 << 20) + 4), (0, 80_000), (8, every + every // 2 + 1)):
        part = framed.Part(memory[begin : begin + size])
        record = device._Record(0, part if begin else storage, memory.data_ptr() + begin, size, 0, True)
        dtype = torch.int64 if begin % 8 == 0 and size % 8 == 0 else torch.uint8
        assert record.has_words() == (dtype is torch.int64)
        first = min(every, size) // 2 // 8 * 8
        expected = memory[begin : begin + size][first:]
        expected = expected.view(dtype)[:: every // dtype.itemsize] if dtype is torch.int64 else expected[::every]
        assert torch.equal(device._sampled(record, dtype), expected)


@pytest.mark.filterwarnings("ignore:phalanx.checkpoint:RuntimeWarning")
@pytest.mark.parametrize("number", [0, 3, 7, 8])
@pytest.mark.parametrize("at", ["first", "last", "middle"])
def test_who_was_written_is_named_wherever_the_write_is(agent, where, tmp_path, monkeypatch, number, at):
    """Records whose sizes are no multiples of words, some of them over several comparisons, all looked at together."""
    sizes = [70_001, 299_999, 65_537, 900_003, 100_000, 299_936, 65_543, 300_000, 1_000_001]
    tensors = [torch.zeros(size, dtype=torch.uint8, device=where) for size in sizes]
    byte = {"first": 0, "last": sizes[number] - 1, "middle": sizes[number] // 2}[at]
    with Checkpointer(tmp_path / "run") as checkpointer:
        assert checkpointer.save(1, {"t": tensors}).wait_committed()
        write = tensors[number][byte : byte + 1].fill_
        look_again = device._Group.look_again

        def write_before(self):
            self._queue.run(lambda: write(1))
            look_again(self)

        monkeypatch.setattr(device._Group, "look_again", write_before)
        handle = checkpointer.save(2, {"t": tensors})
        assert not handle.wait_committed()
        assert f"state['t'][{number}] changed while it was copied" in handle.why


@needs_overlap
def test_what_the_device_refuses_behind_save_costs_that_save_alone(agent, make_slow, tmp_path, monkeypatch):
    """Queued by a thread: the training hears of it by the handle."""
    driver = make_slow()
    with Checkpointer(tmp_path / "run") as checkpointer:
        training = Training("cpu", checkpointer)
        assert training.save().wait_committed()
        (entered,) = {each[0] for each in driver.entered}
        assert entered == "phalanx-copies"

        def refuse(*unused):
            raise RuntimeError("CUDA queues no copy (error 719)")

        with monkeypatch.context() as patched:
            patched.setattr(device._FromDevice, "copy_later", refuse)
            handle = training.save()
            training.step()
            assert not handle.wait_committed()
        assert handle.why == "its copy was cut off: CUDA queues no copy (error 719)"
        assert training.save().wait_committed()
        assert checkpointer.load()[1] == 4


@needs_overlap
def test_what_the_device_refuses_within_save_costs_that_save_alone(agent, make_slow, tmp_path, monkeypatch):
    make_slow()
    with Checkpointer(tmp_path / "run") as checkpointer:
        training = Training("cpu", checkpointer)
        assert training.save().wait_committed()

        def refuse(self):
            raise RuntimeError("CUDA error 900")

        with monkeypatch.context() as patched:
            patched.setattr(device._FromDevice, "begin", refuse)
            handle = training.save()
        assert not handle.wait_committed() and handle.why == "the device refuses it: CUDA error 900"
        assert training.save().wait_committed()


@needs_overlap
@pytest.mark.parametrize("behind", ["copy_later", "look_again"])
def test_memory_that_is_freed_or_moved_is_not_read(agent, make_slow, tmp_path, monkeypatch, behind):
    """Between save() and the copies, or between those and the second look."""
    make_slow()
    with Checkpointer(tmp_path / "run") as checkpointer:
        training = Training("cpu", checkpointer)
        assert training.save().wait_committed()
        go_on = getattr(device._FromDevice, behind)

        def move_before(self):
            monkeypatch.setattr(device._Record, "is_there", lambda record: False)
            go_on(self)

        with monkeypatch.context() as patched:
            patched.setattr(device._FromDevice, behind, move_before)
            handle = training.save()
            assert not handle.wait_committed()
        assert "was freed or moved, and no step was made" in handle.why
        monkeypatch.undo()


def test_a_record_knows_whether_its_memory_is_where_it_was():
    memory = torch.zeros(100, dtype=torch.uint8)
    storage = memory.untyped_storage()
    record = device._Record(0, storage, memory.data_ptr(), 100, 0, True)
    assert record.is_there()
    storage.resize_(0)
    assert not record.is_there()


@needs_overlap
def test_save_returns_while_what_is_guarded_waits_for_room(agent, make_slow, tmp_path, monkeypatch):
    """A device's queue that is full holds the thread that fills it, and a step, but not save()."""
    driver = make_slow()
    gate = threading.Event()
    with Checkpointer(tmp_path / "run") as checkpointer:
        training = Training("cpu", checkpointer)
        assert training.save().wait_committed()
        queue = driver.queues[0]
        copy = queue.copy

        def copy_behind(*moves):
            if threading.current_thread() is not threading.main_thread():
                assert gate.wait(PATIENCE_S)
            copy(*moves)

        monkeypatch.setattr(queue, "copy", copy_behind)
        handle = training.save()
        assert not handle.is_over
        threading.Timer(0.2, gate.set).start()
        training.step()
        assert gate.is_set(), "the step has waited"
        assert handle.wait_committed(), handle.why
        assert training.load()[0] == {"weight": {2}, "bias": {2}}


# --- order -----------------------------------------------------------------------------------------------------------


@needs_overlap
def test_a_step_waits_for_the_second_look(agent, make_slow, tmp_path, monkeypatch):
    make_slow()
    with Checkpointer(tmp_path / "run") as checkpointer:
        training = Training("cpu", checkpointer)
        assert training.save().wait_committed()
        handle = training.save()
        (part,) = checkpointer._writer._flight._copies._parts
        training.step()
        assert part.over.query(), "the stand-in's training is held on the host"
        assert handle.wait_committed()
        state, _ = checkpointer.load()
        assert state["model"]["weight"].unique().tolist() == [2]


@needs_overlap
@pytest.mark.filterwarnings("ignore:phalanx.checkpoint:RuntimeWarning")
def test_a_save_that_was_given_up_leaves_no_copies_behind(agent, make_slow, tmp_path, monkeypatch):
    """The next save takes its slot: copies that come late would be written into that."""
    on_the_host = torch.nn.Linear(WIDTH, WIDTH)
    storages = {each.untyped_storage().data_ptr() for each in on_the_host.parameters()}
    driver = make_slow(is_here=lambda storage: storage.data_ptr() in storages)
    gate = threading.Event()
    with Checkpointer(tmp_path / "run") as checkpointer:
        training = Training("cpu", checkpointer)
        training.optimizer.add_param_group({"params": list(on_the_host.parameters())})
        training.extra["host"] = on_the_host
        assert training.save().wait_committed()
        with monkeypatch.context() as patched:
            before_the_copy(patched, lambda: gate.wait(PATIENCE_S))
            handle = training.save()
            checkpointer._writer._slots.give_up(0)
            threading.Timer(0.2, gate.set).start()
            training.step()
        assert handle.is_over and not handle.is_sealed
        (queue,) = driver.queues
        assert gate.is_set() and queue._work.empty()


def ring_within_a_save(monkeypatch):
    """SIGALRM in the next save, as it begins to copy."""
    copy = device._Group.copy

    def ring(group):
        monkeypatch.setattr(device._Group, "copy", copy)
        signal.raise_signal(signal.SIGALRM)
        copy(group)

    monkeypatch.setattr(device._Group, "copy", ring)


def test_a_handler_may_save_within_a_save(agent, make_slow, tmp_path, monkeypatch):
    """Which holds the training meanwhile, on a device that is slow."""
    make_slow(late_s=0.05)
    handles = []
    with Checkpointer(tmp_path / "run") as checkpointer:
        training = Training("cpu", checkpointer, extra={"more": torch.ones(1 << 16)})
        assert training.save().wait_committed()
        before = signal.signal(signal.SIGALRM, lambda *_: handles.append(checkpointer.save(90, {"x": torch.ones(99)})))
        ring_within_a_save(monkeypatch)
        handle = training.save()
        signal.signal(signal.SIGALRM, before)
        assert handles, "the handler has run"
        assert handle.wait_committed() and checkpointer.load()[1] == (2 if handles[0].why else 90)


@needs_overlap
@pytest.mark.parametrize("device_is", ["here", "slow"])
@pytest.mark.parametrize("waits", ["for the copy", "in a step", "for the commit"])
def test_a_handler_may_close_within_a_wait(agent, make_slow, tmp_path, monkeypatch, device_is, waits):
    """The slots are gone when that goes on."""
    if device_is == "slow":
        make_slow()
    checkpointer = Checkpointer(tmp_path / "run")
    training = Training("cpu", checkpointer)
    assert training.save().wait_committed()
    gate, wait_copied = threading.Event(), native.Slots.wait_copied

    def wait_late(slots, *until):
        if threading.current_thread() is not threading.main_thread():
            gate.wait(PATIENCE_S)
        return wait_copied(slots, *until)

    monkeypatch.setattr(native.Slots, "wait_copied", wait_late)
    before_the_copy(monkeypatch, lambda: gate.wait(PATIENCE_S))
    handle = training.save()
    closed = []
    before = signal.signal(signal.SIGALRM, lambda *_: (gate.set(), closed.append(checkpointer.close())))
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    {"for the copy": checkpointer.wait, "in a step": training.step, "for the commit": handle.wait_committed}[waits]()
    signal.signal(signal.SIGALRM, before)
    assert closed == [None], "within it"
    assert handle.is_sealed, handle.why


def test_a_handler_may_close_within_a_save(agent, make_slow, tmp_path, monkeypatch):
    """The slots stay until the save is over."""
    driver = make_slow(late_s=0.05)
    checkpointer = Checkpointer(tmp_path / "run")
    training = Training("cpu", checkpointer, extra={"more": torch.ones(1 << 16)})
    assert training.save().wait_committed()
    closed = []
    before = signal.signal(signal.SIGALRM, lambda *_: closed.append(checkpointer.close()))
    ring_within_a_save(monkeypatch)
    training.save()
    signal.signal(signal.SIGALRM, before)
    assert closed == [None], "within it"
    assert agent.wait_packet("sealed", 2)["step"] == 2
    assert driver.pinned == set()
