"""Lightning and accelerate through phalanx.checkpoint.adapters: killed, they come to the same losses and weights, and
read our files without us. Part of `./run test --callers`, elsewhere left out by conftest.py."""

import hashlib

import pytest
import torch
from test_checkpoint_job import jobs_with_memory as jobs_with_memory
from test_checkpoint_job import make_job as make_job
from test_huggingface_checkpoint import losses, weights

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "out"


def run(make_job, script, folder, *arguments, launcher="phalanx-run"):
    job = make_job()
    job.launcher = launcher
    flags = ("--max-restarts=2",) if launcher == "phalanx-run" else ()
    node = job.standalone(script, str(folder), *arguments, flags=flags)
    assert node.wait() == 0, job.story()
    return job


def test_lightning_goes_on_from_memory_with_the_same_losses(make_job, folder, tmp_path):
    script = "flash_lightning.py"
    stock = run(make_job, script, tmp_path / "stock", "--stock", launcher="torchrun")
    ours = run(make_job, script, folder, "--die-at=7")
    assert [event["n"] for event in ours.found("begin", life=1)] == [7, 7], ours.story()
    assert (losses(ours), weights(ours)) == (losses(stock), weights(stock))
    assert losses(ours, 1) == losses(stock, 1)
    names = {path.name for path in folder.glob("*.ckpt")}
    assert names == {path.name for path in (tmp_path / "stock").glob("*.ckpt")} and len(names) == 4, ours.story()
    one, other = (
        torch.load(place / "epoch=7-step=8.ckpt", weights_only=False)["state_dict"]
        for place in (folder, tmp_path / "stock")
    )
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    again = run(make_job, script, folder, "--stock", f"--load={folder / 'epoch=7-step=8.ckpt'}", launcher="torchrun")
    assert {event["n"] for event in again.found("begin")} == {8}


def test_files_that_lightning_removes_stay_away(make_job, folder):
    run(make_job, "flash_lightning.py", folder, "--top=1", "--save-steps=2")
    assert {path.name for path in folder.glob("*.ckpt")} == {"epoch=11-step=12.ckpt", "last.ckpt"}


def test_what_lightning_tests_behind_a_fit_is_what_it_is_told_to(make_job, folder):
    arguments = ("--steps=11", "--die-at=7", "--test", "as-it-is", "best")
    job = run(make_job, "flash_lightning.py", folder, *arguments)
    best = hashlib.sha256()
    for name, value in sorted(torch.load(folder / "epoch=7-step=8.ckpt", weights_only=False)["state_dict"].items()):
        best.update(name.encode() + value.numpy().tobytes())
    tested = [event["weights"] for event in job.found("tested", life=1, rank=0)]
    assert tested == [weights(job), best.hexdigest()[:16]], job.story()


def test_a_file_that_a_kill_keeps_from_appearing_appears_when_lightning_goes_on(make_job, folder):
    arguments = ("--top=1", "--steps=11", "--die-publishing=epoch=7-step=8.ckpt")
    job = run(make_job, "flash_lightning.py", folder, *arguments)
    (died,) = job.found("dies")
    assert "epoch=3-step=4.ckpt" in died["files"], job.story()
    assert [event["n"] >= 8 for event in job.found("begin", life=1)] == [True, True], job.story()
    assert {path.name for path in folder.glob("*.ckpt")} == {"epoch=7-step=8.ckpt", "last.ckpt"}, job.story()
    assert {torch.load(path, weights_only=False)["global_step"] for path in folder.glob("*.ckpt")} == {8}


def test_two_model_checkpoints_of_a_step_have_each_its_own_state(make_job, folder, tmp_path):
    other = tmp_path / "other"
    run(make_job, "flash_lightning.py", folder, "--steps=8", f"--other={other}")
    for place in (folder, other):
        callbacks = torch.load(place / "epoch=7-step=8.ckpt", weights_only=False)["callbacks"].values()
        (own,) = (each for each in callbacks if each.get("dirpath") == str(place))
        assert own["best_model_path"] == str(place / "epoch=7-step=8.ckpt")
    last = torch.load(folder / "last.ckpt", weights_only=False)["callbacks"].values()
    assert str(folder / "last.ckpt") in {each.get("last_model_path") for each in last}


def test_accelerate_goes_on_from_memory_with_the_same_losses(make_job, folder, tmp_path):
    script = "flash_accelerate.py"
    whole = run(make_job, script, tmp_path / "whole")
    killed = run(make_job, script, folder, "--die-at=7")
    assert [(event["n"], event["source"]) for event in killed.found("begin", life=1)] == [(7, "memory")] * 2
    assert (losses(killed), weights(killed)) == (losses(whole), weights(whole))
    assert losses(killed, 1) == losses(whole, 1)
    assert {path.name for path in folder.glob("checkpoint*")} == {"checkpoint_8", "checkpoint_12"}
    stock = run(make_job, script, folder, f"--stock-load={folder / 'checkpoint_12'}", launcher="torchrun")
    assert {event["weights"] for event in stock.found("loaded")} == {weights(whole)}
