"""Lightning Fabric through phalanx.checkpoint.adapters.fabric: killed, a loop comes to the same losses and weights, and
Fabric alone reads our files. Part of `./run test --callers`, elsewhere left out by conftest.py."""

import os
import types
from pathlib import Path

import pytest
import torch
from test_checkpoint_job import jobs_with_memory as jobs_with_memory
from test_checkpoint_job import make_job as make_job
from test_huggingface_checkpoint import losses, same, weights

pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "out"


def run(make_job, folder, *arguments, launcher="phalanx-run", script="flash_fabric.py"):
    job = make_job()
    job.launcher = launcher
    flags = ("--max-restarts=2",) if launcher == "phalanx-run" else ()
    node = job.standalone(script, str(folder), *arguments, flags=flags)
    assert node.wait() == 0, job.story()
    return job


def load(path):
    return torch.load(path, weights_only=True)


def names(folder):
    return sorted(path.name for path in folder.glob("*.ckpt"))


def begun(job, life):
    """[(step, where it was found)] of both ranks."""
    return [(event["n"], event["source"]) for event in job.found("begin", life=life)]


def test_a_killed_rank_goes_on_from_memory_with_the_same_losses(make_job, folder, tmp_path):
    theirs = tmp_path / "stock"
    stock = run(make_job, theirs, "--stock", launcher="torchrun")
    ours = run(make_job, folder, "--die-at=7")
    assert begun(ours, 1) == [(7, "memory")] * 2, ours.story()
    assert "goes on from step 7 in memory" in ours.nodes[0].stderr
    assert (losses(ours), weights(ours)) == (losses(stock), weights(stock))
    assert losses(ours, 1) == losses(stock, 1)
    assert names(folder) == names(theirs) == ["step-12.ckpt", "step-4.ckpt", "step-8.ckpt"], ours.story()
    for name in names(folder):
        assert same(load(folder / name), load(theirs / name)), name


def test_fabric_reads_our_file_and_we_read_its_own(make_job, folder, tmp_path):
    theirs = tmp_path / "stock"
    stock = run(make_job, theirs, "--stock", "--steps=8", launcher="torchrun")
    ours = run(make_job, folder, "--steps=8")
    assert weights(ours) == weights(stock)
    rest = ("--steps=8", f"--load={folder / 'step-8.ckpt'}")
    by_fabric = run(make_job, tmp_path / "other", "--stock", *rest, launcher="torchrun")
    rest = ("--steps=8", f"--load={theirs / 'step-8.ckpt'}")
    by_us = run(make_job, tmp_path / "another", *rest)
    for job, source in ((by_fabric, None), (by_us, "disk")):
        assert [(event["n"], event["source"]) for event in job.found("loaded")] == [(8, source)] * 2, job.story()
        assert weights(job) == weights(stock)
    later = run(make_job, folder, "--steps=9")  # another job, which asks nothing of Fabric's
    assert begun(later, 0) == [(8, "disk")] * 2, later.story()


def test_the_newest_save_of_a_path_is_read_from_memory(make_job, folder):
    """A script that has one path, and asks fabric.load() for it."""
    path = folder / "last.ckpt"
    arguments = (f"--load={path}", "--no-flash-load", f"--name={path.name}", "--save-steps=1", "--die-at=7")
    job = run(make_job, folder, *arguments)
    assert begun(job, 0) == [(0, None)] * 2
    assert begun(job, 1) == [(7, "memory")] * 2, job.story()
    assert load(path)["step"] == 12


def test_another_path_than_that_of_the_newest_save_is_read_from_its_file(make_job, folder):
    """Behind step 7, which is in memory alone; then flash.load() goes on from the newest."""
    job = run(make_job, folder, f"--load={folder / 'step-4.ckpt'}", "--die-at=7")
    assert [(event["n"], event["source"]) for event in job.found("loaded", life=1)] == [(4, "disk")] * 2, job.story()
    assert begun(job, 1) == [(7, "memory")] * 2, job.story()


def test_a_file_that_a_kill_keeps_from_appearing_appears_when_the_job_goes_on(make_job, folder):
    job = run(make_job, folder, "--die-publishing=step-8.ckpt", "--steps=9")
    (died,) = job.found("dies")
    assert "step-4.ckpt" in died["files"] and "step-8.ckpt" not in died["files"], job.story()
    assert begun(job, 1)[0][0] >= 8, job.story()
    assert ["step-8.ckpt" in event["files"] for event in job.found("begin", life=1)] == [True] * 2, job.story()
    assert load(folder / "step-8.ckpt")["step"] == 8


def test_what_is_no_whole_state_is_there_at_once_and_what_is_on_its_way_is_waited_for(make_job, folder):
    job = run(make_job, folder, "--also", "--steps=4")
    at_once = {"counted.ckpt", "filtered.ckpt", "other.ckpt", "weights.ckpt"}
    assert [at_once <= set(event["files"]) for event in job.found("at-once", rank=0)] == [True], job.story()
    read = [(event["is_same"], event["rest"], event["source"]) for event in job.found("read")]
    assert read == [(True, {"best": [0.5]}, "disk")] * 2, job.story()
    assert [{"again.ckpt", "next.ckpt"} <= set(event["files"]) for event in job.found("closed")] == [True] * 2
    assert set(load(folder / "weights.ckpt")) == {"model", "step"}
    assert set(load(folder / "filtered.ckpt")["model"]) == {"0.weight", "2.weight"}
    assert [load(folder / f"{name}.ckpt")["best"] for name in ("step-4", "other", "next")] == [[1.5], [0.5], [0.5]]
    assert os.stat(folder / "again.ckpt").st_ino == os.stat(folder / "next.ckpt").st_ino
    assert job.nodes[0].stderr.count("a state without a number of steps in 'step' is saved by Fabric itself") == 1


def test_a_script_that_just_ends_has_its_last_file(make_job, folder):
    run(make_job, folder, "--steps=4", "--just-ends")
    assert load(folder / "step-4.ckpt")["step"] == 4


def test_an_optimizer_that_shards_its_state_is_saved_whole(make_job, folder, tmp_path):
    stock = run(make_job, tmp_path / "stock", "--redundant", "--stock", launcher="torchrun")
    ours = run(make_job, folder, "--redundant", "--die-at=7")
    assert begun(ours, 1) == [(7, "memory")] * 2, ours.story()
    assert weights(ours) == weights(stock)
    assert same(load(folder / "step-12.ckpt"), load(tmp_path / "stock" / "step-12.ckpt"))


@pytest.fixture
def fabric(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    from lightning.fabric import Fabric

    return Fabric(accelerator="cpu", devices=1)


def refused(fabric, directory, **settings):
    from phalanx.checkpoint.adapters.fabric import FlashCheckpoint

    with pytest.raises(ValueError, match=r"phalanx\.checkpoint\.adapters\.fabric: ") as caught:
        FlashCheckpoint(fabric, directory, **settings)
    return str(caught.value)


def test_strategies_that_write_by_themselves_are_refused_with_what_saves_them(tmp_path):
    from lightning.fabric.strategies import FSDPStrategy, ModelParallelStrategy

    for strategy in (FSDPStrategy(), ModelParallelStrategy(lambda model, mesh: model)):
        said = refused(types.SimpleNamespace(strategy=strategy), tmp_path)
        assert f"the strategy is {type(strategy).__name__}, which writes its shards itself" in said
        assert "save by phalanx.checkpoint.dcp. Expected one of SingleDeviceStrategy, DDPStrategy" in said
    engine = types.SimpleNamespace(strategy=type("DeepSpeedStrategy", (), {})())
    assert "save by phalanx.checkpoint.adapters.deepspeed" in refused(engine, tmp_path)
    assert "the strategy is XLAStrategy. Expected" in refused(
        types.SimpleNamespace(strategy=type("XLAStrategy", (), {})()), tmp_path
    )


def test_what_cannot_be_taken_over_is_refused_in_a_sentence(fabric, tmp_path, monkeypatch):
    from lightning.fabric.plugins import TorchCheckpointIO
    from phalanx.checkpoint.adapters.fabric import FlashCheckpoint

    assert "directory is 's3://bucket/run'" in refused(fabric, "s3://bucket/run")
    assert "keep_last is given, which the paths of fabric.save() decide" in refused(fabric, tmp_path, keep_last=3)
    fabric.strategy.checkpoint_io = type("Encrypting", (TorchCheckpointIO,), {})()
    assert "the CheckpointIO of this Fabric is Encrypting, which would not be asked" in refused(fabric, tmp_path)
    fabric.strategy.checkpoint_io = TorchCheckpointIO()
    flash = FlashCheckpoint(fabric, tmp_path)
    assert "this Fabric has a FlashCheckpoint already" in refused(fabric, tmp_path)
    with pytest.raises(ValueError, match=r"state\['step'\] is 'not there'; expected the number of steps"):
        flash.save({"model": torch.nn.Linear(1, 1)})
    flash.close()
    with pytest.raises(RuntimeError, match="this FlashCheckpoint is closed"):
        flash.save({"step": 1})
    fabric.save(tmp_path / "as-ever.ckpt", {"step": 1})
    assert fabric.load(tmp_path / "as-ever.ckpt") == {"step": 1}
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "this is rank 0 of 1 by Fabric, and 0 of 2 by its environment" in refused(fabric, tmp_path)


def test_a_file_that_was_written_otherwise_since_is_not_that_of_the_step(fabric, tmp_path):
    from phalanx.checkpoint.adapters.fabric import FlashCheckpoint

    flash, path = FlashCheckpoint(fabric, tmp_path), tmp_path / "last.ckpt"
    model = torch.nn.Linear(1, 1)
    state = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "step": 3}
    fabric.save(path, state)
    assert flash._is_file_of(3, str(path)), "it is on its way"
    flash.finish()
    assert path.exists() and flash._is_file_of(3, str(path))
    fabric.save(path, {"model": model, "step": 3})  # weights alone, by Fabric itself
    assert not flash._is_file_of(3, str(path))
    flash.close()


def test_a_directory_of_something_else_is_refused(fabric, tmp_path):
    from phalanx.checkpoint import Storage, files
    from phalanx.checkpoint.adapters.fabric import FlashCheckpoint

    with files.Checkpointer(tmp_path / "_phalanx") as other:
        assert other.save(7, {"model.pt": torch.ones(2)}, storage=Storage.DISK).wait_stored()
    with pytest.raises(RuntimeError, match=r"step 7 in .*_phalanx has no state.ckpt, so it is of something else"):
        FlashCheckpoint(fabric, tmp_path).load({"step": 0})


def test_the_lines_of_the_documentation_run_and_resume(make_job, tmp_path):
    text = (ROOT / "docs" / "frameworks" / "lightning.md").read_text().partition("# Fabric\n")[2]
    script, out = tmp_path / "train.py", tmp_path / "out"
    lines = text.split("```python\n")[1].split("```")[0].replace('"out', f'"{out}')
    for given, tried in (("devices=8", 'devices=2, accelerator="cpu"'), ("1000", "20"), ("% 100 ", "% 20 ")):
        assert given in lines
        lines = lines.replace(given, tried)
    script.write_text(lines)
    for said in ("from step 0", "from step 20"):
        job = make_job()
        node = job.run("--standalone", "--nproc-per-node=2", script)
        assert node.wait() == 0, job.story()
        assert node.stdout.splitlines() == [said], job.story()
    assert names(out) == ["step-20.ckpt"]
