"""phalanx.checkpoint.dcp in real jobs: sharded state into memory and to disk, back after a kill, and by stock DCP."""

import ctypes
import io
import os
import pickle
import shutil
import signal
import zlib
from pathlib import Path

import pytest
import torch
from checkpoint_agent import CheckpointAgent
from harness import ckpt
from test_checkpoint_job import jobs_with_memory as jobs_with_memory
from test_checkpoint_job import make_job as make_job
from test_checkpoint_job import memory_of_all

WORLD = 2


def long(*values):
    return pytest.param(*values, marks=pytest.mark.long)


def start(job, directory, kind, *arguments, flags=()):
    return job.standalone("sharding.py", f"--dir={directory}", f"--kind={kind}", *arguments, nproc=WORLD, flags=flags)


def of_ranks(job, name, count=WORLD, **fields):
    return sorted(job.wait_events(name, count, **fields), key=lambda event: event["rank"])


def ready_before_first_save(job, world):
    """Whether each rank of the first life had its memory made ready beside the training before it saved."""
    told = [
        [event for event in job.events if event["ev"] in ("prepared", "saved") and (event["life"], event["rank"]) == of]
        for of in ((0, rank) for rank in range(world))
    ]
    return all(of_rank[0]["ev"] == "prepared" and of_rank[0]["waits"] is False for of_rank in told)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fsdp2", "hsdp", long("fsdp1"), long("dtensor")])
def test_a_killed_rank_goes_on_from_memory_as_if_nothing_had_been(job, tmp_path, kind):
    assert start(job, tmp_path / "other", kind).wait() == 0, job.story()
    expected = [(event["whole"], event["draw"]) for event in of_ranks(job, "trained")]
    job.events.clear()

    node = start(job, tmp_path / "run", kind, "--pause-at=5", flags=["--max-restarts=1"])
    of_ranks(job, "pausing")
    saved = of_ranks(job, "saved", n=4)
    assert all(event["committed"] for event in saved), saved
    os.kill(job.pid(1, 0), signal.SIGKILL)
    assert node.wait() == 0, job.story()
    for event, before in zip(of_ranks(job, "loaded", life=1), saved):
        assert (event["n"], event["source"]) == (4, "memory"), event
        assert event["whole"] == before["whole"]
        assert (event["note"], event["counted"], event["own"]) == ("short", 4, [event["rank"], 4])
    assert [(event["whole"], event["draw"]) for event in of_ranks(job, "trained", life=1)] == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tp_dp", long("hsdp")])
def test_a_mesh_of_two_dimensions_over_two_nodes(job, tmp_path, kind):
    """TP on each node and FSDP across them, or two replicas of two shards: back from memory behind a kill, and from
    disk by stock DCP, on the same mesh and on another one."""
    directory, ranks = tmp_path / "run", 4
    arguments = [f"--dir={directory}", f"--kind={kind}", "--disk-every=4", "--pause-at=5"]
    flags = ["--max-restarts=1"]
    nodes = [job.node(index, "sharding.py", *arguments, nnodes="2", nproc=2, flags=flags) for index in (0, 1)]
    of_ranks(job, "pausing", ranks)
    saved = of_ranks(job, "saved", ranks, n=4)
    assert all(event["committed"] for event in saved), saved
    assert all(event["whole"] == saved[0]["whole"] for event in saved), "the whole state is one"
    os.kill(job.pid(3, 0), signal.SIGKILL)
    assert [node.wait() for node in nodes] == [0, 0], job.story()
    for event in of_ranks(job, "loaded", ranks, life=1):
        assert (event["n"], event["source"], event["own"]) == (4, "memory", [event["rank"], 4]), event
        assert event["whole"] == saved[0]["whole"]
    trained = of_ranks(job, "trained", ranks, life=1)
    assert all(event["whole"] == trained[0]["whole"] != saved[0]["whole"] for event in trained)
    for nproc, read_as in ((ranks, kind), (2, "tp_dp") if kind == "tp_dp" else (3, "fsdp2")):
        job.events.clear()
        node = job.standalone("sharding.py", f"--dir={directory / '4'}", f"--kind={read_as}", "--stock", nproc=nproc)
        assert node.wait() == 0, job.story()
        for event in of_ranks(job, "read", nproc):
            assert (event["step"], event["note"]) == (4, "short")
            assert event["whole"] == saved[0]["whole"]


def check_that_nothing_is_written_twice(folder):
    """What several ranks of a node have, replicas above all, lies in one of their files: all that is written is named,
    but for what brings items to multiples of 64 and files to pages."""
    stored = pickle.loads((folder / ".metadata").read_bytes()).storage_data.values()
    lengths = dict.fromkeys((f"__{rank}_0.distcp" for rank in range(WORLD)), 0)
    for info in stored:
        lengths[info.relative_path] += -(-info.length // 64) * 64
    sizes = {name: (folder / name).stat().st_size for name in lengths}
    assert all(lengths[name] <= sizes[name] + 63 and sizes[name] < lengths[name] + 4096 for name in sizes), (
        lengths,
        sizes,
    )
    assert all(lengths.values()), "both ranks take part"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "worlds"),
    [
        ("fsdp2", (1, 3)),
        *(long(kind, (world,)) for kind in ("fsdp1", "hsdp", "dtensor") for world in (1, 3)),
    ],
)
def test_what_is_on_disk_is_read_by_stock_dcp_in_any_world(job, tmp_path, kind, worlds):
    directory = tmp_path / "run"
    assert start(job, directory, kind, "--disk-every=4", "--steps=4").wait() == 0, job.story()
    saved = of_ranks(job, "saved", n=4)
    assert all(event["committed"] for event in saved), saved
    folder = directory / "4"
    assert sorted(path.name for path in folder.iterdir()) == [
        ".metadata",
        "__0_0.distcp",
        "__1_0.distcp",
        "manifest.json",
    ]
    check_that_nothing_is_written_twice(folder)
    for nproc in worlds:
        node = job.standalone("sharding.py", f"--dir={folder}", f"--kind={kind}", "--stock", nproc=nproc)
        assert node.wait() == 0, job.story()
        for event in of_ranks(job, "read", nproc, world=nproc):
            assert (event["step"], event["note"]) == (4, "short")
            assert event["whole"] == saved[0]["whole"]


@pytest.mark.slow
def test_the_memory_of_a_dead_job_is_rescued(job, tmp_path):
    """As a step that stock DCP reads. Where a rank's memory is missing it is refused."""
    arguments = [f"--dir={tmp_path / 'run'}", "--kind=fsdp2", "--pause-at=5"]
    node = job.node(0, "sharding.py", *arguments, nnodes="1", nproc=WORLD, flags=["--max-restarts=0"])
    of_ranks(job, "pausing")
    (saved, _) = of_ranks(job, "saved", n=4)
    try:
        os.kill(job.pid(1, 0), signal.SIGKILL)
        assert node.wait() != 0
        (left,) = memory_of_all(job)
        rescued = tmp_path / "rescued"
        assert ckpt("rescue", left, "--to", rescued)["step"] == 4
        assert ckpt("verify", rescued)["damaged"] == 0
        assert ckpt("show", rescued / "4")["layout"] == "dcp"
        again = job.standalone("sharding.py", f"--dir={rescued / '4'}", "--kind=fsdp2", "--stock", nproc=3)
        assert again.wait() == 0, job.story()
        for event in of_ranks(job, "read", 3, world=3):
            assert (event["step"], event["whole"]) == (4, saved["whole"])
        (page,) = left.glob("*/control-1")
        page.unlink()
        assert "of 2 this memory has 1" in ckpt("rescue", left, "--to", tmp_path / "half", expect=2)
        assert not (tmp_path / "half").exists()
    finally:
        for path in memory_of_all(job):
            shutil.rmtree(path)


@pytest.mark.slow
def test_a_named_step_is_loaded_into_another_world_and_by_no_rank_where_one_file_is_damaged(job, tmp_path):
    directory = tmp_path / "run"
    assert start(job, directory, "fsdp2", "--disk-every=2", "--steps=4").wait() == 0, job.story()
    saved = of_ranks(job, "saved", n=2)
    again = [f"--dir={directory}", "--steps=2", "--load-step=2"]
    assert job.standalone("sharding.py", *again, nproc=3).wait() == 0, job.story()
    for event in of_ranks(job, "loaded", 3, world=3):
        assert (event["n"], event["source"], event["whole"]) == (2, "disk", saved[0]["whole"]), event
    shard = directory / "2" / "__1_0.distcp"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    assert job.standalone("sharding.py", *again, nproc=3).wait() == 0, job.story()
    for event in of_ranks(job, "refused", 3, world=3):
        reason = "the checksum of __1_0.distcp is" if event["rank"] == 1 else "another rank's part of it is not whole"
        assert "step 2 cannot be restored" in event["why"] and reason in event["why"], event


@pytest.mark.slow
def test_another_world_takes_the_step_from_disk(job, tmp_path):
    directory = tmp_path / "run"
    assert start(job, directory, "fsdp2", "--disk-every=4", "--steps=4").wait() == 0, job.story()
    saved = of_ranks(job, "saved", n=4)
    node = job.standalone("sharding.py", f"--dir={directory}", "--steps=4", nproc=3)
    assert node.wait() == 0, job.story()
    for event in of_ranks(job, "loaded", 3, world=3):
        assert (event["n"], event["source"]) == (4, "disk"), event
        assert event["whole"] == saved[0]["whole"]


@pytest.mark.slow
def test_fsdp2_is_copied_while_it_trains_and_fsdp1_never(job, tmp_path):
    """verify="always" compares what was copied later with its source: a shard that anything but the optimizer writes
    would be found."""
    for kind in ("fsdp2", "fsdp1"):
        assert start(job, tmp_path / kind, kind, "--save-every=1", "--steps=8").wait() == 0, job.story()
        saved = of_ranks(job, "saved", 2 * 8)
        assert all(event["committed"] for event in saved), saved
        reasons = {event["why"] for event in saved if event["n"] > 2}
        over = {event["over"] for event in of_ranks(job, "saving", 2 * 8) if event["n"] > 2}
        if kind == "fsdp2":
            assert (reasons, over) == ({None}, {False})
        else:
            assert over == {True}
            assert all("FSDP" in why for why in reasons)
        job.events.clear()


def test_a_state_that_one_rank_cannot_save_costs_that_save_alone(job, tmp_path):
    assert start(job, tmp_path / "run", "fsdp2", "--fail-at=4").wait() == 0, job.story()
    (refused,) = of_ranks(job, "refused", 1)
    assert refused["rank"] == 1
    assert "bad: a meta tensor has no data" in refused["why"]
    (skipped,) = of_ranks(job, "saved", 1, n=4)
    assert (skipped["rank"], skipped["committed"]) == (0, False)
    assert "another rank cannot save its state" in skipped["why"]
    assert all(event["committed"] for event in of_ranks(job, "saved", n=6))


def test_a_plan_follows_a_state_that_changes_on_one_rank(job, tmp_path):
    changing = ["--grow-at=3", "--save-every=1", "--pause-at=5"]
    node = start(job, tmp_path / "run", "fsdp2", *changing, flags=["--max-restarts=1"])
    of_ranks(job, "pausing")
    os.kill(job.pid(0, 0), signal.SIGKILL)
    assert node.wait() == 0, job.story()
    for event in of_ranks(job, "loaded", life=1):
        assert (event["n"], event["source"], len(event["note"])) == (5, "memory", 5000), event
        assert "only" in event["names"] and "phalanx.rank_1" in event["names"], event["names"]


def documented(heading, folder, end, told):
    """A script of the lines below a heading of docs/checkpoint.md: it saves in `folder`, ends behind step `end`, and
    then runs the lines `told`."""
    text = (Path(__file__).parent.parent / "docs" / "checkpoint.md").read_text()
    lines = text.split(heading)[1].split("```")[1].replace("python\n", "", 1)
    assert "/data/run7" in lines and "range(done, 1000)" in lines
    script = folder / "script.py"
    script.write_text(lines.replace("/data/run7", str(folder / "run")).replace("1000", str(end)) + told)
    return script


@pytest.mark.slow
def test_the_ten_lines_of_the_documentation_run_and_resume(job, tmp_path):
    for end in (100, 105):
        told = "\nprint(f'went {done} {step + 1} {ckpt.source}')\ndist.destroy_process_group()\n"
        script = documented("## FSDP in ten lines", tmp_path, end, told)
        node = job.standalone(script, nproc=WORLD)
        assert node.wait() == 0, job.story()
    assert node.stdout.count("went 100 105 disk") == WORLD, node.stdout


@pytest.mark.slow
def test_the_lines_for_the_whole_state_on_rank_0_run_and_resume_in_another_world(job, tmp_path):
    for end, nproc in ((100, WORLD), (105, 1), (115, 3)):
        told = (
            "\nprint(f'went {done} {step + 1} {ckpt.source} {sorted(found)}')\n"
            "del model, optimizer\ndist.destroy_process_group()\n"
        )
        script = documented("## The whole state of an FSDP model, on rank 0", tmp_path, end, told)
        node = job.standalone(script, nproc=nproc)
        assert node.wait() == 0, job.story()
    assert job.nodes[1].stdout.count("went 100 105 disk ['state.pt']") == 1, job.nodes[1].stdout
    assert job.nodes[2].stdout.count("went 100 115 disk ['state.pt']") == 3, job.nodes[2].stdout
    whole = torch.load(tmp_path / "run" / "100" / "state.pt", weights_only=True)
    assert whole["model"]["weight"].shape == (8, 8) and len(whole["optimizer"]["state"]) == 2


# --- before the first step, in this process


@pytest.fixture
def make_alone(agent, make, tmp_path):
    """Makes a dcp.Checkpointer of the only rank, and tells the agent which files a restore is to find."""
    import torch
    from phalanx.checkpoint import dcp

    with CheckpointAgent() as agent.main:

        def in_memory(step):
            files = {"main": agent.main.slot_path(agent.main.sealed()[step])}
            files["ranks"] = {"0": agent.slot_path(agent.sealed()[step])}
            agent.restores = {"step": step, "source": "memory", "files": files, "world_size": 1, "why": ""}

        store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        yield lambda: make(dcp.Checkpointer), in_memory
        torch.distributed.destroy_process_group()


@pytest.fixture
def steps(monkeypatch):
    """How many steps this process's board counts, of whichever optimizer is the first to step from now on."""
    from phalanx._bootstrap import board, hooks
    from torch.optim.optimizer import register_optimizer_step_post_hook

    handle = register_optimizer_step_post_hook(hooks._after_step)

    def steps():
        monkeypatch.setattr(hooks, "_first_optimizer", None)
        return board.words[board.OPTIMIZER_STEPS]

    yield steps
    handle.remove()


class Sharded:
    def __init__(self, kind, optimizer, **settings):
        import torch
        from torch.distributed import fsdp

        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
        if kind == "fsdp2":
            model = fsdp.fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (1,)))
        elif kind == "fsdp1":
            model = fsdp.FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
        self.model = model
        self.optimizer = getattr(torch.optim, optimizer)(model.parameters(), **settings)
        self.state = {"model": model, "nested": {"optimizer": [self.optimizer]}, "step": 0}

    def train(self):
        import torch

        self.optimizer.zero_grad()
        self.model(torch.ones(2, 8)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def all(self):
        """All that the optimizer has, and the bits of what it writes."""
        parameters = [getattr(each, "_local_tensor", each).detach() for each in self.model.parameters()]
        grads = [each.grad for each in self.model.parameters()]
        return str(self.optimizer.state_dict()), [each.numpy().tobytes() for each in parameters], grads


ALONE = [("plain", "AdamW", {}), ("plain", "SGD", {"lr": 0.1}), ("plain", "LBFGS", {}), ("plain", "ASGD", {})]
ALONE += [("fsdp2", "AdamW", {}), ("fsdp1", "AdamW", {})]


@pytest.mark.parametrize(("kind", "optimizer", "settings"), ALONE)
def test_nothing_has_happened_to_an_optimizer_before_its_first_step(make_alone, steps, kind, optimizer, settings):
    make, in_memory = make_alone
    checkpointer, saved = make(), Sharded(kind, optimizer, **settings)
    called = []
    saved.optimizer.register_step_pre_hook(lambda *arguments: called.append(1))
    before, steps_before = saved.all(), steps()
    assert checkpointer.load(saved.state) == 0
    assert saved.all() == before
    assert checkpointer.prepare(saved.state) is None
    assert saved.all() == before
    handle = checkpointer.save(1, saved.state)
    assert handle.wait_committed(), handle.why
    assert saved.all() == before
    in_memory(1)
    for has_trained in (False, True):
        other = Sharded(kind, optimizer, **settings)
        if has_trained and optimizer != "LBFGS":  # whose step needs a closure
            other.train()
        steps_before = steps() if has_trained else steps_before
        assert checkpointer.load(other.state) == 1
        assert other.all() == before
    assert (steps(), called) == (steps_before, [])


def test_all_memory_is_made_ready_beside_the_training(agent, make_alone):
    checkpointer, saved = make_alone[0](), Sharded("plain", "AdamW")
    saved.train()
    assert checkpointer.prepare(saved.state, waits=False) is None
    agent.wait_packet("prepare", 2)
    saved.train()
    assert checkpointer.save(1, saved.state).wait_committed()
    assert sorted(packet["page"] for packet in agent.packets("prepare")) == ["main", "own"]


@pytest.mark.parametrize(("kind", "optimizer", "settings"), [case for case in ALONE if case[1] != "LBFGS"])
def test_what_is_loaded_before_the_first_step_counts_none(make_alone, steps, kind, optimizer, settings):
    make, in_memory = make_alone
    checkpointer, saved = make(), Sharded(kind, optimizer, **settings)
    saved.train()
    saved.train()
    handle = checkpointer.save(2, saved.state)
    assert handle.wait_committed(), handle.why
    in_memory(2)
    other, steps_before, called = Sharded(kind, optimizer, **settings), steps(), []
    other.optimizer.register_step_post_hook(lambda *arguments: called.append(1))
    assert checkpointer.load(other.state) == 2
    assert (steps(), called) == (steps_before, [])
    assert other.optimizer not in checkpointer._writer._guard._seen
    assert other.all() == saved.all()
    other.train()
    saved.train()
    assert other.all() == saved.all()
    assert called == [1], "its hooks are there again"


def test_a_load_that_fails_leaves_no_state_behind(make_alone):
    import torch

    make, in_memory = make_alone
    checkpointer, saved = make(), Sharded("plain", "AdamW")
    saved.train()
    assert checkpointer.save(2, saved.state).wait_committed()
    in_memory(2)
    other = Sharded("plain", "AdamW")
    before = other.all()
    other.state["more"] = torch.ones(3)
    with pytest.raises(torch.distributed.checkpoint.CheckpointException, match="more"):
        checkpointer.load(other.state)
    assert other.all() == before


# --- plans, without a job


def parts_of(states, nodes):
    from phalanx.checkpoint.formats import plan, sharded

    forms = sharded.Forms()
    locals_ = [sharded.Local(state, plan.Describer()) for state in states]
    return locals_, [sharded.Part(local, forms, node) for local, node in zip(locals_, nodes)], forms


def test_every_node_holds_all_that_its_ranks_need():
    import torch
    from phalanx.checkpoint.formats import sharded

    shared = {"weight": torch.arange(9.0), "step": 7, "large": torch.ones(100)}
    states = [{**shared, f"own_{rank}": torch.full((3,), rank)} for rank in range(4)]
    locals_, parts, _ = parts_of(states, ["a", "a", "b", "b"])
    assignments = sharded.arranged(locals_[0].planner, parts)
    for ranks in ((0, 1), (2, 3)):
        held = sorted(index.fqn for rank in ranks for index, _, _ in assignments[rank].items)
        assert held == sorted([*shared, *(f"own_{rank}" for rank in ranks)])
        metadata = pickle.loads(assignments[ranks[0]].metadata)
        files = {info.relative_path for index, info in metadata.storage_data.items() if index.fqn in shared}
        assert files <= {sharded.file_name(rank) for rank in ranks}
        assert {index.fqn for index in metadata.storage_data} == set(shared) | {f"own_{rank}" for rank in range(4)}
        assert assignments[ranks[1]].metadata is None
    for assignment in assignments:
        ends = [0] + [at + length for _, at, length in assignment.items]
        assert all(at >= end and at % 64 == 0 for (_, at, _), end in zip(assignment.items, ends))


def test_a_value_that_outgrows_its_place_asks_for_a_new_plan():
    import torch
    from phalanx.checkpoint.formats import plan, sharded

    locals_, parts, forms = parts_of([{"weight": torch.ones(4), "note": "n"}], [0])
    (assignment,) = sharded.arranged(locals_[0].planner, parts)
    file = sharded.File(assignment, forms)
    first = file.image(locals_[0])
    longer = sharded.Local({"weight": torch.ones(4), "note": "n" * 40}, plan.Describer())
    assert file.image(longer).key() == first.key()
    longest = sharded.Local({"weight": torch.ones(4), "note": "n" * 4000}, plan.Describer())
    assert longest.structure() == locals_[0].structure()
    with pytest.raises(sharded.Outgrown):
        file.image(longest)
    other = sharded.Local({"weight": torch.ones(5), "note": "n"}, plan.Describer())
    assert other.structure() != locals_[0].structure()


def file_of(image):
    """The bytes of an image: its frame with the memory in between, and the CRC of each piece of it."""
    frame, data, crcs = io.BytesIO(image.frame), bytearray(), []
    for at, size, pointer in zip(image.record_at, image.sizes, image.pointers):
        memory = ctypes.string_at(pointer, size)
        data += frame.read(at - len(data)) + memory
        crcs.append(zlib.crc32(memory))
    data += frame.read()
    for place, record in zip(image.patches[::2], image.patches[1::2]):
        data[place : place + 4] = crcs[record].to_bytes(4, "little")
    return bytes(data)


NOTE = "n" * 4000  # a value that may grow by a quarter: a tensor more in it fits
NESTED = {
    "one moves": [lambda a, b, c: {"x": (a, NOTE), "y": (b, c)}, lambda a, b, c: {"x": (a, b, NOTE), "y": (c,)}],
    "an empty one": [
        lambda a, b, c: {"x": (a[:0].clone(), NOTE), "y": (NOTE,)},
        lambda a, b, c: {"x": (NOTE,), "y": (a[:0].clone(), NOTE)},
    ],
    "there and back": [
        lambda a, b, c: {"x": (a, b, NOTE), "y": (NOTE,)},
        lambda a, b, c: {"x": (NOTE,), "y": (a, b, NOTE)},
        lambda a, b, c: {"x": (a, b, NOTE), "y": (NOTE,)},
    ],
    "names in a value": [lambda a, b, c: {"x": ({"a": a}, NOTE)}, lambda a, b, c: {"x": ({"b": (a,)}, NOTE)}],
    "lists and tuples": [lambda a, b, c: {"x": [a, b], "y": (c,)}, lambda a, b, c: {"x": (a, b), "y": [c]}],
    "paths": [lambda a, b, c: {"x.a": a, "y": b}, lambda a, b, c: {"x": {"a": a}, "y": b}],
    "order": [lambda a, b, c: {"x": a, "y": b}, lambda a, b, c: {"y": b, "x": a}],
}


@pytest.mark.parametrize("what", sorted(NESTED))
def test_states_that_hold_the_same_tensors_otherwise_are_told_apart(what):
    """What lies in a tuple is one value, whose tensors are named in its own pickle alone."""
    import torch
    from phalanx.checkpoint.formats import plan, sharded

    forms = sharded.Forms()
    planned = assignment = file = None
    for make in NESTED[what]:
        local = sharded.Local(make(torch.arange(5.0), torch.arange(7.0), torch.ones(9)), plan.Describer())
        if planned is None or planned.structure() != local.structure():
            (assignment,) = sharded.arranged(local.planner, [sharded.Part(local, forms, 0)])
            planned, file = local, sharded.File(assignment, forms)
        written = file_of(file.image(local))
        assert written == file_of(sharded.File(assignment, forms).image(local))
        for index, at, length in assignment.items:
            item = torch.load(io.BytesIO(written[at : at + length]), weights_only=True)
            assert str(item) == str(local.state[index.fqn])


def node_of_two(job, index, directory, *arguments):
    arguments = [f"--dir={directory}", "--kind=fsdp2", *arguments]
    return job.node(index, "sharding.py", *arguments, nnodes="1:2", nproc=2)


@pytest.mark.slow
def test_a_world_that_grows_goes_on_from_the_memory_of_those_who_hold_it(job, tmp_path):
    """Two ranks of one node, then four of two: what a rank needs of files that are not on its node it reads there."""
    nodes = [node_of_two(job, 0, tmp_path / "run", "--steps=100000")]
    job.wait_events("saved", n=10, life=0)
    nodes.append(node_of_two(job, 1, tmp_path / "run", "--steps=100000"))
    loaded = [job.wait_events("loaded", life=1, rank=rank)[0] for rank in range(4)]
    assert {event["source"] for event in loaded} == {"memory"}, [event["why"] for event in loaded]
    (step,) = {event["n"] for event in loaded}
    before = next(event for event in job.found("before", n=step, life=0) if event["rank"] == 0)
    for event in loaded:
        assert event["whole"] == before["whole"]
        assert (event["note"], event["counted"]) == ("short", step)
        assert event["own"] == ([event["rank"], step] if event["rank"] < 2 else None)
    job.wait_events("saved", life=1, rank=3)
    assert all(event["committed"] for event in job.found("saved", life=1))
    for node in nodes:
        node.signal(signal.SIGTERM)
    assert [node.wait() for node in nodes] == [143, 143], job.story()


def test_items_of_more_than_4_gib_are_read(tmp_path):
    """The file is sparse: only what stands around the data is written."""
    import torch
    from phalanx.checkpoint.formats import plan, zipped

    size = (4 << 30) + 3
    pickled = plan.Describer().describe(torch.empty(size, dtype=torch.uint8)).pickle
    item = zipped.zipped(pickled, (size,))
    path = tmp_path / "item"
    with open(path, "wb") as file:
        file.write(item.frame[: item.records[0]])
        file.seek(item.records[0] + size)
        file.write(item.frame[item.records[0] :])
    tensor = torch.load(path, mmap=True, weights_only=True)
    assert (tensor.numel(), tensor[-1].item()) == (size, 0)
