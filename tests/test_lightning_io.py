"""A CheckpointIO for Lightning, phalanx.checkpoint.adapters.lightning_io: the files are Lightning's own. Part of
`./run test --callers`, elsewhere left out by conftest.py."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading

import pytest
import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from phalanx.checkpoint.adapters.lightning_io import FlashCheckpointIO
from test_checkpoint_job import jobs_with_memory as jobs_with_memory
from test_checkpoint_job import make_job as make_job
from test_huggingface_checkpoint import losses, same, weights

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def io(tmp_path):
    made = FlashCheckpointIO()
    yield made
    made.teardown()


def run(make_job, script, folder, *arguments, launcher="phalanx-run"):
    job = make_job()
    job.launcher = launcher
    node = job.standalone(script, str(folder), *arguments)
    assert node.wait() == 0, job.story()
    return job


def load(path):
    return torch.load(path, weights_only=False)


def trained():
    """(state, what makes a step) of a model whose optimizer has made one."""
    model = torch.nn.Linear(512, 512)
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        model(torch.ones(1, 512)).sum().backward()
        optimizer.step()

    step()
    return lambda: {"state_dict": model.state_dict(), "optimizer_states": [optimizer.state_dict()]}, step


@pytest.mark.parametrize("launcher", ["phalanx-run", "torchrun"])
def test_files_are_those_of_lightning(make_job, tmp_path, launcher):
    script, theirs, ours = "flash_lightning.py", tmp_path / "stock", tmp_path / "ours"
    stock = run(make_job, script, theirs, "--stock", "--top=2", "--save-steps=3", launcher="torchrun")
    job = run(make_job, script, ours, "--io", "--top=2", "--save-steps=3", launcher=launcher)
    assert (losses(job), weights(job)) == (losses(stock), weights(stock))
    names = {path.name for path in ours.glob("*.ckpt")}
    assert names == {path.name for path in theirs.glob("*.ckpt")} and len(names) == 3, job.story()
    for name in names:
        parts = ("state_dict", "optimizer_states", "global_step", "epoch", "loops")
        assert all(same(load(ours / name)[part], load(theirs / name)[part]) for part in parts), name
    again = run(make_job, script, ours, "--stock", f"--load={ours / 'last.ckpt'}", "--steps=14", launcher="torchrun")
    assert {event["n"] for event in again.found("begin")} == {12}


def test_all_ranks_load_what_was_saved_last(make_job, tmp_path):
    """At once: rank 0 has not stored it yet."""
    job = run(make_job, "fabric_io.py", tmp_path)
    for rank in (0, 1):
        assert [event["step"] for event in job.found("loaded", rank=rank)] == [1, 2, 3, 4, 5], job.story()


def test_a_file_appears_whole_and_the_older_one_goes_behind_it(io, tmp_path):
    state, step = trained()
    kept = []
    for number in range(4):
        kept.append({name: value.clone() for name, value in state()["state_dict"].items()})
        io.save_checkpoint({**state(), "global_step": number}, tmp_path / f"{number}.ckpt")
        if number > 0:
            io.remove_checkpoint(tmp_path / f"{number - 1}.ckpt")
        step()
    found = io.load_checkpoint(tmp_path / "3.ckpt", map_location="meta", weights_only=True)
    assert {value.device.type for value in found["state_dict"].values()} == {"meta"}
    assert same(io.load_checkpoint(tmp_path / "3.ckpt")["state_dict"], kept[3])
    io.teardown()
    assert [path.name for path in tmp_path.glob("*.ckpt")] == ["3.ckpt"]


def test_what_is_in_a_state_is_in_its_file(io, tmp_path):
    """A module among the hyper-parameters is one when it is loaded."""
    state, _ = trained()
    given = {**state(), "hyper_parameters": {"net": torch.nn.Linear(2, 2), "optimizer": torch.optim.SGD}, "rng": True}
    io.save_checkpoint(given, tmp_path / "a.ckpt")
    io.finish()
    found = load(tmp_path / "a.ckpt")
    assert isinstance(found["hyper_parameters"]["net"], torch.nn.Linear) and found["rng"] is True
    assert found["hyper_parameters"]["optimizer"] is torch.optim.SGD


def test_what_is_saved_behind_a_training_is_there_at_once(io, tmp_path):
    for number in range(3):
        io.save_checkpoint({"number": number}, tmp_path / f"{number}.ckpt")
    io.teardown()
    io.save_checkpoint({"number": 3}, tmp_path / "final.ckpt")
    assert load(tmp_path / "final.ckpt") == {"number": 3}
    assert io._is_over
    trained()
    io.save_checkpoint({"number": 4}, tmp_path / "next.ckpt")
    assert not io._is_over, "another training has begun"


def test_what_slurm_waits_for_is_there_at_once(io, tmp_path):
    io.save_checkpoint({"number": 3}, tmp_path / "hpc_ckpt_1.ckpt")
    assert load(tmp_path / "hpc_ckpt_1.ckpt") == {"number": 3}


def test_files_of_many_folders_go_with_their_folders(tmp_path):
    """As of Fabric, where each step has its own."""
    io = FlashCheckpointIO(tmp_path / "kept")
    for number in range(5):
        io.save_checkpoint({"number": number}, tmp_path / f"step-{number}" / "state.ckpt")
        if number > 1:
            io.finish()
            shutil.rmtree(tmp_path / f"step-{number - 2}")
    io.teardown()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "step-3", "step-4"]
    assert load(tmp_path / "step-4" / "state.ckpt") == {"number": 4}


def test_processes_of_multiprocessing_save_as_ever(io, tmp_path):
    io.save_checkpoint({"number": 0}, tmp_path / "0.ckpt")
    for number, method in enumerate(("fork", "spawn"), 1):
        path = tmp_path / f"{number}.ckpt"
        process = multiprocessing.get_context(method).Process(
            target=io.save_checkpoint, args=({"number": number}, path)
        )
        process.start()
        process.join()
        assert process.exitcode == 0 and load(path) == {"number": number}
    io.teardown()
    assert load(tmp_path / "0.ckpt") == {"number": 0}


def test_a_state_that_raises_leaves_nothing_behind(io, tmp_path):
    """Files are removed as before."""
    for number in range(3):
        io.save_checkpoint({"w": torch.eye(3).to_sparse()}, tmp_path / f"{number}.ckpt")
        if number:
            io.remove_checkpoint(tmp_path / f"{number - 1}.ckpt")
    assert [path.name for path in tmp_path.glob("*.ckpt")] == ["2.ckpt"]
    with pytest.raises(TypeError, match="cannot pickle"):
        io.save_checkpoint({"lock": threading.Lock()}, tmp_path / "lock.ckpt")
    assert not io._awaited.names(str(tmp_path / "lock.ckpt"))


def test_a_path_has_what_was_saved_last_there(io, tmp_path):
    for number in range(5):
        io.save_checkpoint({"number": number, "global_step": 7}, tmp_path / "last.ckpt")
    io.teardown()
    assert load(tmp_path / "last.ckpt")["number"] == 4


def test_what_no_image_holds_is_written_by_lightning(io, tmp_path, capfd):
    io.save_checkpoint({"w": torch.ones(3)}, tmp_path / "s.ckpt")
    io.save_checkpoint({"w": torch.eye(3).to_sparse()}, tmp_path / "s.ckpt")
    assert torch.equal(load(tmp_path / "s.ckpt")["w"].to_dense(), torch.eye(3))
    assert "s.ckpt is written by Lightning itself, which takes its time: state['s.ckpt']" in capfd.readouterr().err
    io.teardown()
    assert torch.equal(load(tmp_path / "s.ckpt")["w"].to_dense(), torch.eye(3)), "not what was on its way there"
    with pytest.raises(TypeError, match="storage_options"):
        io.save_checkpoint({}, tmp_path / "s.ckpt", storage_options={"a": 1})
    with pytest.raises(ValueError, match="keep_last is given, which the paths of the files decide"):
        FlashCheckpointIO(keep_last=3)
    with pytest.raises(ValueError, match="slots is 5; expected 2 or 3"):
        FlashCheckpointIO(slots=5)


def test_what_was_written_while_it_was_copied_is_not_stored(io, tmp_path, capfd):
    """The file that was there stays, and a line says so. With overlap=False each is as it was when it was saved."""
    state, step = trained()
    written = torch.nn.Parameter(torch.zeros(64 << 20))
    written.grad = torch.zeros_like(written)
    optimizer = torch.optim.SGD([written], 0.0)
    for number in range(3):
        step()
        optimizer.step()  # from the second save on it is seen to be its alone
        io.save_checkpoint({**state(), "written": written.detach(), "number": number}, tmp_path / "w.ckpt")
        if number < 2:
            io.load_checkpoint(tmp_path / "w.ckpt")
    written.data.fill_(1)
    io.teardown()
    found = load(tmp_path / "w.ckpt")
    assert found["number"] == 1 and not found["written"].any()
    assert "w.ckpt is not stored: state" in capfd.readouterr().err


def test_without_overlap_all_is_as_it_was_when_it_was_saved(tmp_path):
    io, written = FlashCheckpointIO(overlap=False), torch.zeros(16 << 20)
    for number in range(1, 4):
        io.save_checkpoint({"written": written}, tmp_path / f"{number}.ckpt")
        written.fill_(number)
    io.teardown()
    assert [load(tmp_path / f"{number}.ckpt")["written"][0].item() for number in (1, 2, 3)] == [0, 1, 2]


_KILLED = """
import os, sys, torch
from phalanx.checkpoint.adapters.lightning_io import FlashCheckpointIO

io, path = FlashCheckpointIO(), os.path.join(sys.argv[1], "last.ckpt")
for number in range(1000):
    io.save_checkpoint({"w": torch.full((1 << 20,), float(number)), "n": number}, path)
    print(number, flush=True)
"""


def test_a_kill_leaves_a_whole_file(tmp_path):
    """The last one that appeared; the next run goes on over it."""
    for kills in range(3):
        process = subprocess.Popen([sys.executable, "-c", _KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(5 + 3 * kills):
            last = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        found = load(tmp_path / "last.ckpt")
        assert (found["w"] == found["n"]).all() and found["n"] <= last + 2


def test_what_is_stored_last_is_there_when_a_script_ends(tmp_path):
    script = (
        "import sys, torch\nfrom phalanx.checkpoint.adapters.lightning_io import FlashCheckpointIO\n"
        "FlashCheckpointIO().save_checkpoint({'w': torch.ones(1 << 22)}, sys.argv[1])\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "end.ckpt")], check=True, timeout=100)
    assert load(tmp_path / "end.ckpt")["w"].all()


def test_it_stands_for_lightnings_own():
    own = {name for name in dir(TorchCheckpointIO) if not name.startswith("_")}
    assert own <= set(dir(FlashCheckpointIO))
