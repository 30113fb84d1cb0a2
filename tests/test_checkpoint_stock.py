"""Stock dcp.save(), dcp.async_save() and dcp.load() through phalanx.checkpoint.dcp: into memory and to disk, back after
a kill, with planners, groups and partial states of the user's."""

import os
import pickle
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed.checkpoint as dcp
from phalanx.checkpoint import Storage
from phalanx.checkpoint.formats import sharded
from test_checkpoint_dcp import make_alone as make_alone
from test_checkpoint_dcp import of_ranks
from test_checkpoint_job import jobs_with_memory as jobs_with_memory
from test_checkpoint_job import make_job as make_job
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

WORLD = 2


def start(job, directory, *arguments, flags=()):
    return job.standalone("stock_saving.py", f"--dir={directory}", *arguments, nproc=WORLD, flags=flags)


def same(event, before):
    """What was loaded is what was saved; `wide` as the planner made it."""
    assert event["digest"][:2] == before["digest"][:2]
    assert event["digest"][2] == torch.tensor(1 / 3).half().float().item()


@pytest.mark.slow
def test_a_loop_as_torchtitans_goes_on_with_the_same_losses(make_job, tmp_path):
    """Of Stateful objects, in memory behind a death, and from disk in a later job."""

    def losses(job, **fields):
        return {(event["n"], event["rank"]): event["loss"] for event in job.found("step", **fields)}

    def run(directory, *arguments, flags=("--max-restarts=0",)):
        job = make_job()
        node = job.standalone("titan.py", f"--dir={directory}", *arguments, nproc=WORLD, flags=flags)
        assert node.wait() == 0, job.story()
        return job

    wanted = losses(run(tmp_path / "straight", "--steps=10"))
    job = run(tmp_path / "run", "--die-at=6", flags=["--max-restarts=1"])
    assert {(event["n"], event["source"]) for event in job.found("loaded", life=1)} == {(6, "memory")}
    again = run(tmp_path / "run", "--steps=10")
    assert {(event["n"], event["source"]) for event in again.found("loaded")} == {(8, "disk")}
    assert {**losses(job), **losses(again)} == wanted and len(losses(job, life=1)) == 2 * WORLD


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [False, True], ids=["save", "async"])
def test_a_killed_rank_goes_on_from_what_stock_dcp_has_saved_in_memory(job, tmp_path, asynchronous):
    how = ["--asynchronous"] if asynchronous else []
    node = start(job, tmp_path / "run", "--pause-at=6", "--steps=8", *how, flags=["--max-restarts=1"])
    of_ranks(job, "pausing")
    saved = of_ranks(job, "saved", n=6)
    assert [event["committed"] for event in saved] == [True] * WORLD, saved
    os.kill(job.pid(1, 0), signal.SIGKILL)
    assert node.wait() == 0, job.story()
    for event, before in zip(of_ranks(job, "loaded", life=1), of_ranks(job, "before", n=6, life=0)):
        assert (event["n"], event["source"]) == (6, "memory"), event
        same(event, before)
    assert [event["counted"] for event in of_ranks(job, "part", life=1)] == [6] * WORLD
    # Step 4 went to disk, where torch reads it alone.
    loaded = {"counted": None, "wide": torch.zeros(70_000)}
    dcp.load(loaded, checkpoint_id=tmp_path / "run" / "4", no_dist=True)
    assert loaded["counted"] == 4
    assert loaded["wide"].unique().tolist() == [torch.tensor(1 / 3).half().float().item()]


@pytest.mark.slow
def test_nodes_have_their_parts_of_what_stock_dcp_has_saved(job, tmp_path):
    """Two nodes: what is replicated lies on both, though torch's planner has it written once."""
    arguments = [f"--dir={tmp_path / 'run'}", "--pause-at=6", "--steps=6", "--disk-every=0"]
    nodes = [
        job.node(index, "stock_saving.py", *arguments, nnodes="2", nproc=1, flags=["--max-restarts=1"])
        for index in (0, 1)
    ]
    of_ranks(job, "pausing")
    os.kill(job.pid(1, 0), signal.SIGKILL)
    assert [node.wait() for node in nodes] == [0, 0], job.story()
    for event, before in zip(of_ranks(job, "loaded", life=1), of_ranks(job, "before", n=6, life=0)):
        assert (event["n"], event["source"]) == (6, "memory"), event
        same(event, before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "expected"),
    [("planner", "rank 1 cannot plan its part: no such data"), ("group", "1 of 2 ranks make this save; expected all")],
)
def test_a_save_that_cannot_be_is_refused_on_all_ranks_that_make_it(job, tmp_path, wrong, expected):
    assert start(job, tmp_path / "run", "--steps=4", f"--wrong={wrong}").wait() == 0, job.story()
    refused = job.wait_events("refused", WORLD if wrong == "planner" else 1, n=2)
    assert any(expected in event["why"] for event in refused), refused
    saved = of_ranks(job, "saved", n=4)
    assert all(event["committed"] for event in saved), saved
    assert sorted(path.name for path in (tmp_path / "run").iterdir() if path.name.isdigit()) == ["4"]


@pytest.mark.slow
def test_without_an_agent_it_goes_to_disk(job, tmp_path):
    job.launcher = "torchrun"
    for steps in (4, 6):
        node = start(job, tmp_path / "run", f"--steps={steps}")
        assert node.wait() == 0, job.story()
    for event in of_ranks(job, "loaded"):
        assert (event["n"], event["source"]) == (4, "disk"), event
    assert "without phalanx-run no memory outlives this process" in node.stderr


@pytest.mark.slow
def test_the_lines_of_the_documentation_run_and_resume(job, tmp_path):
    text = (Path(__file__).parent.parent / "docs" / "checkpoint.md").read_text()
    blocks = [text.split(f"## {title}")[1].split("```")[1] for title in ("FSDP in ten lines", "Stock dcp.save, async")]
    made, saved = (block.removeprefix("python\n") for block in blocks)
    script = tmp_path / "train.py"
    lines = made.partition("state = ")[0].replace("/data/run7", str(tmp_path / "run")) + saved
    script.write_text(lines + 'print("went", done, ckpt.source, flush=True)\nckpt.close()\n')
    for expected in ("went 0 None", "went 1 disk"):
        node = job.standalone(script, nproc=WORLD)
        assert node.wait() == 0, job.story()
        assert node.stdout.count(expected) == WORLD, node.stdout


# --- one rank, in this process


def test_what_was_saved_is_loaded_whole_or_in_part(make_alone, tmp_path):
    make, in_memory = make_alone
    checkpointer = make()
    state = {
        "large": torch.arange(50_000.0),
        "view": torch.arange(10.0)[::2],
        "none": torch.empty(0),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "nested": {"words": ("one", 2, {"three": 3}), "tensor": torch.tensor(7)},
        "text": "",
    }
    for step in (1, 2):
        state["text"] += "x" * 500_000 * step  # what is no tensor grows
        writer = checkpointer.get_storage_writer(step, Storage.MEMORY)
        metadata = dcp.save(state, storage_writer=writer)
        assert writer.handle.is_sealed
        assert {index.fqn for index in metadata.storage_data} == set(metadata.state_dict_metadata)
        in_memory(step)
        found = {
            "large": torch.zeros(50_000),
            "view": torch.zeros(5),
            "none": torch.empty(0),
            "half": torch.zeros(3, dtype=torch.bfloat16),
            "nested": {"words": None, "tensor": torch.tensor(0)},
            "text": None,
        }
        dcp.load(found, storage_reader=checkpointer.get_storage_reader())
        assert str(found) == str(state)
        some = {"view": torch.zeros(5)}
        dcp.load(some, storage_reader=checkpointer.get_storage_reader())
        assert some["view"].tolist() == state["view"].tolist()


def test_a_reader_of_memory_is_refused_behind_the_next_save(make_alone):
    make, in_memory = make_alone
    checkpointer = make()
    dcp.save({"a": torch.ones(3)}, storage_writer=checkpointer.get_storage_writer(1, Storage.MEMORY))
    in_memory(1)
    reader = checkpointer.get_storage_reader()
    dcp.load({"a": torch.zeros(3)}, storage_reader=reader)
    dcp.save({"a": torch.ones(3)}, storage_writer=checkpointer.get_storage_writer(2, Storage.MEMORY))
    with pytest.raises(CheckpointException, match="before a save of this rank: ask get_storage_reader"):
        dcp.load({"a": torch.zeros(3)}, storage_reader=reader)


def test_a_writer_is_for_one_save(make_alone):
    make, _ = make_alone
    checkpointer = make()
    writer = checkpointer.get_storage_writer(1, Storage.MEMORY)
    dcp.save({"a": torch.ones(3)}, storage_writer=writer)
    with pytest.raises(dcp.api.CheckpointException, match="this writer was for step 1: each save takes one of its own"):
        dcp.save({"a": torch.ones(3)}, storage_writer=writer)
    with pytest.raises(ValueError, match="checkpoint_id is '/elsewhere'; expected none: step 2 goes to "):
        dcp.save({}, storage_writer=checkpointer.get_storage_writer(2), checkpoint_id="/elsewhere")
    with pytest.raises(ValueError, match="use_collectives is False; expected True"):
        dcp.save({}, storage_writer=checkpointer.get_storage_writer(2), use_collectives=False)
    for wrong in (None, -1, "3", True):
        with pytest.raises(ValueError, match="step is "):
            checkpointer.get_storage_writer(wrong)
    checkpointer.close()
    with pytest.raises(RuntimeError, match="is closed"):
        checkpointer.get_storage_writer(3)


def test_what_the_agent_cannot_take_is_raised_by_dcp_save(make_alone, agent):
    make, _ = make_alone
    checkpointer = make()
    agent.refuses["prepare"] = "/dev/shm has 3 MB left"
    with pytest.raises(dcp.api.CheckpointException, match="step 1 is not saved: /dev/shm has 3 MB left"):
        dcp.save({"a": torch.ones(3)}, storage_writer=checkpointer.get_storage_writer(1, Storage.MEMORY))
    with pytest.raises(dcp.api.CheckpointException, match="a: sparse tensors are not supported"):
        dcp.save({"a": torch.ones(3).to_sparse()}, storage_writer=checkpointer.get_storage_writer(2, Storage.MEMORY))


def test_a_planner_that_remembers_plans_saves_all_of_it_each_time(make_alone):
    make, in_memory = make_alone
    checkpointer = make()
    try:
        planners = [dcp.DefaultSavePlanner(enable_plan_caching=True) for _ in range(3)]
    except TypeError:
        return  # this torch has none that remember
    for step, planner in enumerate(planners, 1):
        state = {"a": torch.full((40_000,), float(step)), "step": step}
        dcp.save(state, storage_writer=checkpointer.get_storage_writer(step, Storage.MEMORY), planner=planner)
        in_memory(step)
        found = {"a": torch.zeros(40_000), "step": 0}
        dcp.load(found, storage_reader=checkpointer.get_storage_reader())
        assert str(found) == str(state)


class OnceRefusing(dcp.DefaultSavePlanner):
    has_refused = False

    def resolve_data(self, write_item):
        if not OnceRefusing.has_refused:
            OnceRefusing.has_refused = True
            raise ArithmeticError("not yet")
        return super().resolve_data(write_item)


@pytest.mark.parametrize("caching", [False, True])
def test_a_save_that_failed_is_made_again_under_its_step(make_alone, agent, caching):
    make, in_memory = make_alone
    checkpointer = make()
    state = {"a": torch.full((40_000,), 3.0)}
    OnceRefusing.has_refused = False
    for expected in ("not yet", "/dev/shm has 3 MB left", None):
        try:
            planner = OnceRefusing(enable_plan_caching=True) if caching else OnceRefusing()
        except TypeError:
            return  # this torch has none that remember
        if expected == "/dev/shm has 3 MB left":
            agent.refuses["prepare"] = expected
        writer = checkpointer.get_storage_writer(7, Storage.MEMORY)
        if expected is None:
            del agent.refuses["prepare"]
            dcp.save(state, storage_writer=writer, planner=planner)
        else:
            with pytest.raises(dcp.api.CheckpointException, match=expected):
                dcp.save(state, storage_writer=writer, planner=planner)
    assert writer.handle.wait_committed() and writer.handle.branch == 2
    in_memory(7)
    found = {"a": torch.zeros(40_000)}
    dcp.load(found, storage_reader=checkpointer.get_storage_reader())
    assert found["a"].unique().tolist() == [3.0]


def test_what_cannot_be_saved_is_named(make_alone):
    from torch.testing._internal.two_tensor import TwoTensor

    make, _ = make_alone
    checkpointer = make()
    two = TwoTensor(torch.ones(3), torch.ones(3))
    with pytest.raises(dcp.api.CheckpointException, match=r"inner\.two: tensors of TwoTensor, which hold others"):
        dcp.save({"inner": {"two": two}}, storage_writer=checkpointer.get_storage_writer(1, Storage.MEMORY))
    with pytest.raises(TypeError, match="a StorageWriter stays in its rank"):
        pickle.dumps(checkpointer.get_storage_writer(2))


def choice(node, final, kinds, metadata=None):
    """As a rank tells it: `kinds` of all that it has by name, of which the planner has it write `final`."""
    forms = sharded.Forms()
    indices = {name: MetadataIndex(name, torch.Size([0])) for name in kinds}
    resolved = SimpleNamespace(
        final={indices[name] for name in final},
        kinds={indices[name]: kind for name, kind in kinds.items()},
        lengths={indices[name]: forms.tensor(*kind).length for name, kind in kinds.items()},
    )
    return sharded.Choice(1, node, resolved, metadata)


def test_each_node_has_what_its_ranks_hold_and_storage_what_the_planner_chose():
    """Of two nodes of two ranks: x is of another size on rank 1 than on rank 0, which the planner has write it."""
    small, large = ((10,), torch.float32), ((100,), torch.float32)
    parts = [
        choice(0, ["x"], {"x": small, "y": large}, Metadata({})),
        choice(0, [], {"x": large, "y": large}),
        choice(2, ["y"], {"x": small, "y": large, "left out": small}),
        choice(2, [], {"x": small, "y": large}),
    ]
    assignments = sharded.arranged_as_planned(parts)
    written = [{index.fqn for index, _, _ in each.items} for each in assignments]
    assert written[0] | written[1] == {"x", "y"} and written[2] | written[3] == {"x", "y"}
    assert "x" not in written[1] and "y" in written[2]
    on_storage = pickle.loads(assignments[0].metadata).storage_data
    assert {index.fqn: info.relative_path for index, info in on_storage.items()}["x"] == "__0_0.distcp"
    of_node = pickle.loads(assignments[2].metadata).storage_data
    assert {sharded.rank_of(info.relative_path) for info in of_node.values()} <= {2, 3}
    assert assignments[1].metadata is None and assignments[3].metadata is None
