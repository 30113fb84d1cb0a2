"""Checkpoints that are folders of named files, each rank's as many as it has: back from memory, on disk under their
names, and in worlds of other sizes."""

import json
import os
import signal
import zlib

import pytest
import safetensors.torch
import torch
from checkpoint_agent import CheckpointAgent
from phalanx.checkpoint import CannotSave, Storage, files
from phalanx.checkpoint.formats import named, several
from test_checkpoint_dcp import of_ranks
from test_checkpoint_job import directory as directory
from test_checkpoint_job import jobs_with_memory as jobs_with_memory
from test_checkpoint_job import kill_agent
from test_checkpoint_job import make_job as make_job

NAMES = ["config.json", "model.pt", "optimizer_0.pt", "optimizer_1.pt"]


def start(job, directory, *arguments, nproc=2, flags=()):
    return job.standalone("several_files.py", f"--dir={directory}", *arguments, nproc=nproc, flags=flags)


def loaded_whole(event, step, source, names=None):
    assert (event["n"], event["source"]) == (step, source), event
    assert event["names"] == (names or NAMES), event
    assert all(event["right"].values()) and len(event["right"]) >= 1, event
    assert json.loads(event["config"]) == {"step": step}


@pytest.mark.slow
def test_a_killed_rank_goes_on_from_the_files_in_memory(job, directory):
    """Each rank loads all files, the other one's too."""
    node = start(job, directory, "--pause-at=4", flags=["--max-restarts=1"])
    of_ranks(job, "pausing")
    assert [event["kept"] for event in of_ranks(job, "saved", n=4)] == [True, True], job.story()
    os.kill(job.pid(1, 0), signal.SIGKILL)
    assert node.wait() == 0, job.story()
    for event in of_ranks(job, "loaded", life=1):
        loaded_whole(event, 4, "memory")
    assert len(list(directory.glob("[0-9]*"))) == 1, "the newest, at the job's end"


@pytest.mark.slow
def test_on_disk_they_lie_under_their_names_for_anybody(make_job, directory):
    job = make_job()
    assert start(job, directory, "--steps=4", "--disk-every=2").wait() == 0, job.story()
    for step in ("2", "4"):
        assert sorted(path.name for path in (directory / step).iterdir()) == sorted([*NAMES, "manifest.json"])
    loaded = torch.load(directory / "4" / "optimizer_1.pt", weights_only=True)
    assert (loaded["step"], loaded["moments"][0].item()) == (4, 1004.0)
    assert json.loads((directory / "4" / "config.json").read_bytes()) == {"step": 4}
    manifest = json.loads((directory / "4" / "manifest.json").read_text().rpartition("crc32 ")[0])
    assert (manifest["kind"], manifest["layout"]) == ("files", "files")
    owners = {shard["file"]: (shard["rank"], shard["needed_by"]) for shard in manifest["shards"]}
    assert owners == {name: (1 if name == NAMES[3] else 0, "any-rank") for name in NAMES}
    # A smaller world loads what the larger one has saved.
    job = make_job()
    assert start(job, directory, "--steps=4", nproc=1).wait() == 0, job.story()
    loaded_whole(job.found("loaded")[0], 4, "disk")


@pytest.mark.slow
def test_ranks_of_other_nodes_read_them_from_memory(job, directory):
    """Two nodes of one rank: each has its own files and the model, and fetches the other's."""
    arguments = [f"--dir={directory}", "--pause-at=4", "--width=512"]
    flags = ["--max-restarts=1"]
    nodes = [job.node(index, "several_files.py", *arguments, nnodes="2", nproc=1, flags=flags) for index in (0, 1)]
    of_ranks(job, "pausing")
    os.kill(job.pid(1, 0), signal.SIGKILL)
    assert [node.wait() for node in nodes] == [0, 0], job.story()
    for event in of_ranks(job, "loaded", life=1):
        loaded_whole(event, 4, "memory")
    assert len(list(directory.glob("[0-9]*"))) == 1, "the newest, at the job's end"


@pytest.mark.slow
def test_a_node_that_joins_reads_them_from_memory(job, directory):
    """The second node has nothing: it reads the index and each file that it wants from the first."""
    arguments = [f"--dir={directory}", "--steps=0"]
    nodes = [job.node(0, "several_files.py", *arguments, nnodes="1:2", nproc=1)]
    job.wait_events("saved", n=5)
    nodes.append(job.node(1, "several_files.py", *arguments, nnodes="1:2", nproc=1))
    first, second = of_ranks(job, "loaded", world=2)
    assert first["n"] == second["n"] >= 5, job.story()
    for event in (first, second):
        loaded_whole(event, first["n"], "memory", NAMES[:3])
    job.wait_events("saved", 2, n=first["n"] + 1)
    job.stop()
    assert [node.wait() for node in nodes] == [0, 0], job.story()


@pytest.mark.slow
def test_a_node_that_is_lost_takes_its_own_files_with_it(job, directory):
    """What is on storage is gone on from, by as many nodes as are left: the other rank's file is there, too."""
    arguments = [f"--dir={directory}", "--disk-every=2", "--pause-at=5", "--steps=6"]
    flags = ["--max-restarts=2", "--rdzv-conf=last_call_timeout=60"]
    nodes = [job.node(index, "several_files.py", *arguments, nnodes="1:2", nproc=1, flags=flags) for index in (0, 1)]
    of_ranks(job, "pausing")
    kill_agent(job, nodes[1])
    (event,) = job.wait_events("loaded", 1, world=1)
    loaded_whole(event, 4, "disk")
    assert "is not in the memory of this round's nodes" in event["why"], event
    assert nodes[0].wait() == 0, job.story()


@pytest.mark.slow
def test_a_rank_may_save_none(job, directory):
    assert start(job, directory, "--steps=2", "--disk-every=2", "--idle").wait() == 0, job.story()
    assert [event["kept"] for event in of_ranks(job, "saved", n=2)] == [True, True]
    assert sorted(path.name for path in (directory / "2").iterdir()) == sorted([*NAMES[:3], "manifest.json"])


@pytest.mark.slow
def test_a_step_of_files_is_not_taken_for_another_state(make_job, directory, tmp_path):
    """Nor the other way round: under an agent, too, which has found it."""
    assert start(make_job(), directory, "--steps=2", "--disk-every=2", nproc=1).wait() == 0
    script = tmp_path / "script.py"

    def run(kind, line):
        checkpointer = f"from phalanx.checkpoint{kind} import Checkpointer\nckpt = Checkpointer({str(directory)!r})\n"
        script.write_text(f"from phalanx.checkpoint import Storage\n{checkpointer}{line}\n")
        job = make_job()
        node = job.standalone(script, nproc=1, flags=["--max-restarts=0"])
        return node.wait(), node.stderr

    code, said = run("", "ckpt.load()")
    assert code == 1
    wanted = f"step 2 of {directory}: its layout is files: load it through phalanx.checkpoint.files.Checkpointer"
    assert wanted in said, said
    code, said = run("", "assert ckpt.save(5, {}, storage=Storage.DISK).wait_stored()")
    assert code == 0, said
    code, said = run(".files", "ckpt.load()")
    assert code == 1
    assert f"step 5 of {directory}: its layout is torch-zip: load it through phalanx.checkpoint.Checkpointer" in said, (
        said
    )


@pytest.mark.slow
def test_a_save_of_files_in_memory_is_not_taken_for_another_state(job, directory, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os\n"
        "from phalanx.checkpoint import Checkpointer\n"
        "from phalanx.checkpoint.files import Checkpointer as Files\n"
        "is_first = os.environ['TORCHELASTIC_RESTART_COUNT'] == '0'\n"
        f"ckpt = (Files if is_first else Checkpointer)({str(directory)!r})\n"
        "assert ckpt.load()[1] == 0\n"
        "assert ckpt.save(1, {'a': b'x'}).wait_committed()\n"
        "os._exit(7)\n"
    )
    node = job.standalone(script, nproc=1, flags=["--max-restarts=1"])
    assert node.wait() == 1, job.story()
    assert "in memory it is of kind files, and this Checkpointer is of kind full" in node.stderr, job.story()


@pytest.mark.slow
def test_without_an_agent_they_go_to_disk(make_job, directory):
    for steps in (2, 4):
        job = make_job()
        job.launcher = "torchrun"
        assert start(job, directory, f"--steps={steps}", "--disk-every=2", "--more=100").wait() == 0, job.story()
    more = [f"more_{number}" for number in range(100)]  # than ranks tell each other at once
    for event in of_ranks(job, "loaded"):
        loaded_whole(event, 2, "disk", sorted([*NAMES, *more]))
    assert sorted(path.name for path in (directory / "4").iterdir()) == sorted([*NAMES, *more, "manifest.json"])


# --- one rank, in this process


@pytest.fixture
def one(agent, make):
    """A Checkpointer of the only rank, and what has the agent find what memory holds of a step."""
    with CheckpointAgent() as agent.main:

        def in_memory(step):
            paths = {"main": agent.main.slot_path(agent.main.sealed()[step])}
            paths["ranks"] = {"0": agent.slot_path(agent.sealed()[step])}
            agent.restores = {"step": step, "source": "memory", "files": paths, "world_size": 1, "why": ""}

        yield make(files.Checkpointer), in_memory


def image_of(agent, step):
    return agent.slot_path(agent.sealed()[step])


def test_a_file_is_what_torch_load_reads_or_the_bytes_that_were_given(one, agent):
    checkpointer, in_memory = one
    weight = torch.nn.Parameter(torch.arange(100_000.0).reshape(100, 1000))
    half = torch.ones(70_000, dtype=torch.bfloat16)
    state = {"model.pt": {"weight": weight, "view": weight[::2], "half": half, "count": 3}, "notes": b"as they are"}
    state["empty.pt"] = {}
    assert checkpointer.save(1, state, storage=Storage.MEMORY).wait_committed()
    in_memory(1)
    found, step = checkpointer.load()
    assert (step, list(found), len(found)) == (1, ["empty.pt", "model.pt", "notes"], 3)
    loaded = found["model.pt"]
    assert torch.equal(loaded["weight"], weight) and torch.equal(loaded["view"], weight[::2])
    assert torch.equal(loaded["half"], half) and loaded["count"] == 3
    assert loaded["view"].untyped_storage().data_ptr() == loaded["weight"].untyped_storage().data_ptr()
    assert found.read("notes") == b"as they are"
    assert found["empty.pt"] == {}
    assert "notes" in found and "other.pt" not in found and found.get("other.pt", 7) == 7
    with pytest.raises(KeyError, match=r"other\.pt"):
        found["other.pt"]
    with pytest.raises(RuntimeError, match=r"no zip file of torch\.save: read\(\) gives its bytes"):
        found["notes"]


def test_what_stands_as_it_is_is_pickled_object_for_object(agent, make):
    """Elsewhere a module stands for its state_dict()."""
    state = {"net": torch.nn.Linear(3, 2), "rng": True}
    with CheckpointAgent() as agent.main:
        checkpointer = make(files.Checkpointer, weights_only=False)
        given = {"as_is.pt": files.AsIs(state), "other.pt": dict(state)}
        assert checkpointer.save(1, given, storage=Storage.MEMORY).wait_committed()
        paths = {"main": agent.main.slot_path(agent.main.sealed()[1]), "ranks": {"0": image_of(agent, 1)}}
        agent.restores = {"step": 1, "source": "memory", "files": paths, "world_size": 1, "why": ""}
        found, _ = checkpointer.load()
        assert found["as_is.pt"]["rng"] is True and isinstance(found["as_is.pt"]["net"], torch.nn.Linear)
        assert list(found["other.pt"]["net"]) == ["weight", "bias"]
        assert torch.equal(found["as_is.pt"]["net"].weight, state["net"].weight)


def test_a_file_of_safetensors_is_that_of_the_package_itself(one, agent, tmp_path):
    """Byte for byte: all types in one, shapes without elements and without dimensions, names that JSON escapes, memory
    that two share, and what is not contiguous."""
    checkpointer, in_memory = one
    tensors = {f"t\u00e9\n{dtype}": torch.ones(3).to(dtype) for dtype in named.NAMES if dtype.itemsize}
    weight = torch.nn.Parameter(torch.rand(300, 400))
    tensors |= {"weight": weight, "none": torch.zeros(0, 3), "scalar": torch.tensor(2.0)}
    turned = {**tensors, "turned": weight.t(), "again": weight}
    state = {"model.safetensors": files.Safetensors(turned, {"format": "pt"}), "bare": files.Safetensors({})}
    assert checkpointer.save(1, state).wait_committed()
    in_memory(1)
    found, _ = checkpointer.load()

    def stock():
        own = {"turned": weight.t().contiguous(), "again": weight.clone()}  # of memory, which the package wants
        return safetensors.torch.save({**tensors, **own}, {"format": "pt"})

    assert found.read("model.safetensors") == stock()
    assert found.read("bare") == safetensors.torch.save({})
    found.copy("model.safetensors", tmp_path / "copied")
    assert (tmp_path / "copied").read_bytes() == found.read("model.safetensors")
    weight.data += 1
    assert checkpointer.save(2, state).wait_committed()
    in_memory(2)
    found, _ = checkpointer.load()
    assert found.read("model.safetensors") == stock()


def test_files_in_memory_are_asked_for_before_the_next_save(one, agent):
    checkpointer, in_memory = one
    assert checkpointer.save(1, {"a": b"one"}, storage=Storage.MEMORY).wait_committed()
    in_memory(1)
    both = [checkpointer.load()[0] for _ in range(2)]
    assert [found.read("a") for found in both] == [b"one", b"one"]
    assert checkpointer.save(2, {"a": b"two"}, storage=Storage.MEMORY).wait_committed()
    for found in both:
        assert list(found) == ["a"]
        with pytest.raises(RuntimeError, match="'a' of step 1 was asked for behind a save of this rank"):
            found.read("a")


def test_names_that_are_gone_are_forgotten(one, agent):
    checkpointer, _ = one
    for step in range(1, 9):
        checkpointer.save(step, {f"step_{step}.pt": {"x": torch.ones(9)}}, storage=Storage.MEMORY).wait_committed()
    assert list(checkpointer._describer._describers) == list(checkpointer._describer._zips) == ["step_8.pt"]


def test_each_file_in_an_image_has_its_checksum(one, agent):
    checkpointer, _ = one
    state = {f"part_{number}.pt": {"x": torch.rand(50_000), "small": torch.rand(3)} for number in range(3)}
    checkpointer.save(1, {**state, "text": b"t" * 5000}, storage=Storage.MEMORY).wait_committed()
    path = image_of(agent, 1)
    image = open(path, "rb").read()
    table = several.table(path)
    assert sorted(table) == [*sorted(state), "text"]
    at = 32
    for name, (place, length) in table.items():
        assert place % 4096 == 0
        entry = image[at : at + 32]
        assert int.from_bytes(entry[16:20], "little") == zlib.crc32(image[place : place + length]), name
        at += 32 + -(-len(name) // 8) * 8
    assert int.from_bytes(image[24:28], "little") == zlib.crc32(image[32:at])


def test_what_grows_or_changes_its_names_is_saved_all_the_same(one, agent):
    checkpointer, in_memory = one
    for step in range(1, 8):
        state = {"a.pt": {"x": torch.full((30_000,), float(step)), "note": "n" * 3000 * step}}
        if step % 3 == 0:
            state[f"only_{step}"] = b"x" * 200_000
        assert checkpointer.save(step, state, storage=Storage.MEMORY).wait_committed()
        in_memory(step)
        found, _ = checkpointer.load()
        assert sorted(found) == sorted(state)
        assert found["a.pt"]["x"][0].item() == step and len(found["a.pt"]["note"]) == 3000 * step


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ([1], "a list; expected a dict of file names"),
        ({"a/b": b"x"}, "'a/b' is no plain file name"),
        ({"": b"x"}, "a name of 0 bytes; expected 1 to 200"),
        ({"x" * 201: b"x"}, "a name of 201 bytes"),
        ({"\udcff": b"x"}, "is no Unicode"),
        ({"a\n": b"x"}, "no plain file name"),
        ({".metadata": b"x"}, "begin with a dot"),
        ({"manifest.json": b"x"}, "manifest.json, are taken"),
        ({3: b"x"}, "3 is no text"),
        ({"a": b""}, r"state['a'] is empty"),
        ({"a": memoryview(torch.zeros(3, 0).numpy())}, r"state['a'] is empty"),
        ({"a.pt": {"x": torch.empty(3, device="meta")}}, "state['a.pt']"),
        ({"a.pt": {"x": object()}}, "state['a.pt']: "),
        ({"a.pt": {"x": lambda: 1}}, "state['a.pt']: "),
        ({"rng": True}, "state['rng'] is True: a file holds bytes as they are"),
        ({"m": files.Safetensors({"x": torch.empty(3, device="meta")})}, "state['m']['x']: "),
        ({"m": files.Safetensors({3: torch.ones(1)})}, "state['m'][3]: tensors in a safetensors file are named by"),
        ({"m": files.Safetensors({"x": torch.ones(1).to(torch.complex128)})}, "files have no torch.complex128"),
        ({"a.txt": "text"}, "state['a.txt'] is 'text': a file holds bytes as they are (of a text its encode())"),
        ({str(number): b"x" for number in range(4097)}, "4097 files of one rank; expected at most 4096"),
    ],
)
def test_what_cannot_be_a_file_is_refused_at_the_door(one, agent, state, said):
    checkpointer, _ = one
    with pytest.raises(CannotSave) as error:
        checkpointer.save(1, state, storage=Storage.MEMORY)
    assert said in str(error.value)
    assert checkpointer.save(2, {"a.pt": {}}, storage=Storage.MEMORY).wait_committed()


def test_a_step_without_any_file_is_not_saved(one):
    checkpointer, _ = one
    handle = checkpointer.save(1, {}, storage=Storage.MEMORY)
    assert not handle.wait_committed() and "no rank has a file to save" in handle.why


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([f"{number}" for number in range(8193)], "8193 files whose names take 350 KiB; expected at most 8192 files"),
        ([f"{number:0200}" for number in range(4000)], "4000 files whose names take 937 KiB; expected at most 8192"),
    ],
    ids=["files", "names"],
)
def test_more_than_a_node_can_tell_of_is_refused_before_anything_is_copied(names, said):
    half = len(names) // 2
    parts = [files._Names(names[:half], 4), files._Names(names[half:], 4)]
    with pytest.raises(ValueError, match="the node of rank 4 has " + said):
        files._agreed(parts)
    assert files._agreed([files._Names(names[:half], 4), files._Names(names[half:], 5)])


def test_what_several_ranks_give_lies_once_on_each_node():
    parts = [files._Names(names, node) for names, node in ((["m", "o0"], 0), (["m", "o1"], 0), (["m", "o2"], 2))]
    agreed = files._agreed(parts)
    assert [each.written for each in agreed] == [["m", "o0"], ["o1"], ["m", "o2"]]
    assert [each.copied for each in agreed] == [set(), set(), {"m"}]
    assert agreed[0].ranks_of == {"m": [0, 2], "o0": [0], "o1": [1], "o2": [2]}


@pytest.mark.parametrize("cut", [0, 20, 40, 5000])
def test_an_image_that_is_cut_off_or_changed_is_refused(one, agent, tmp_path, cut):
    checkpointer, _ = one
    checkpointer.save(1, {"a.pt": {"x": torch.rand(9000)}}, storage=Storage.MEMORY).wait_committed()
    image = open(image_of(agent, 1), "rb").read()
    (tmp_path / "cut").write_bytes(image[:cut])
    with pytest.raises(ValueError, match=r"no table of files|wrong CRC|behind its end"):
        several.table(tmp_path / "cut")
    changed = bytearray(image)
    changed[33] ^= 1
    (tmp_path / "changed").write_bytes(changed)
    with pytest.raises(ValueError, match="wrong CRC"):
        several.table(tmp_path / "changed")


@pytest.mark.slow
def test_the_lines_of_the_documentation_run_and_resume(job, tmp_path):
    from pathlib import Path

    text = (Path(__file__).parent.parent / "docs" / "checkpoint.md").read_text()
    lines = text.split("## Named files")[1].split("```")[1].removeprefix("python\n")
    script = tmp_path / "train.py"
    script.write_text(lines.replace("/data/run7", str(tmp_path / "run")).replace("1000", "20"))
    for expected in ("from step 0", "from step 20"):
        node = job.standalone(script, nproc=2)
        assert node.wait() == 0, job.story()
        assert node.stdout.count(expected) == 2, node.stdout
    assert sorted(path.name for path in (tmp_path / "run" / "20").iterdir()) == [
        "config.json",
        "manifest.json",
        "model.pt",
        "optimizer_0.pt",
        "optimizer_1.pt",
    ]
