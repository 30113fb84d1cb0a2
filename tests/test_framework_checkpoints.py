"""Lightning and accelerate through phalanx.checkpoint.adapters: killed, they come to the same losses and weights, and
read our files without us. Part of `./run test --callers`, elsewhere left out by conftest.py."""

import errno
import hashlib
import os
import shutil
import types

import pytest
import torch
from phalanx.checkpoint import StoreResult
from phalanx.checkpoint.adapters import awaited, published
from test_checkpoint_job import jobs_with_memory as jobs_with_memory
from test_checkpoint_job import make_job as make_job
from test_huggingface_checkpoint import losses, weights

pytestmark = pytest.mark.timeout(900)


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


@pytest.mark.parametrize("kind", ["huggingface", "lightning", "fabric", "accelerate"])
def test_the_first_save_finds_its_memory_ready(job, folder, kind):
    """Behind the first step, on both ranks, and so nothing is in the way of copying it beside the training."""
    node = job.standalone("first_saves.py", kind, str(folder))
    assert node.wait() == 0, job.story()
    for rank in (0, 1):
        events = [event for event in job.events if event["rank"] == rank and event["ev"] in ("prepared", "saved")]
        assert [event["ev"] for event in events] == ["prepared"] * (2 if rank == 0 else 1) + ["saved"], job.story()
        assert not any(event.get("waits") for event in events)
        assert (events[-1]["n"], events[-1]["why"]) == (4, None), job.story()


@pytest.mark.parametrize("kind", ["huggingface", "lightning"])
def test_no_memory_is_taken_where_no_save_comes(job, folder, kind):
    node = job.standalone("first_saves.py", kind, str(folder), "--no-saves")
    assert node.wait() == 0, job.story()
    assert not job.found("prepared") and not job.found("saved"), job.story()


@pytest.mark.parametrize("kind", ["fabric", "accelerate"])
def test_a_training_goes_on_behind_close(job, folder, kind):
    node = job.standalone("first_saves.py", kind, str(folder), "--closes")
    assert node.wait() == 0, job.story()
    assert len(job.found("done")) == 2 and not job.found("prepared"), job.story()


def test_a_hook_that_cannot_save_before_there_is_a_metric_ends_nothing(job, folder):
    """It is called once more than Lightning calls it, when memory is made ready; the save finds none then."""
    node = job.standalone("first_saves.py", "lightning", str(folder), "--needs-loss")
    assert node.wait() == 0, job.story()
    assert node.stderr.count("is not made ready before the first one: KeyError: 'loss'") == 2, job.story()
    assert [event["n"] for event in job.found("saved")] == [4, 4], job.story()


def test_lightning_goes_on_from_memory_with_the_same_losses(make_job, folder, tmp_path):
    script = "flash_lightning.py"
    stock = run(make_job, script, tmp_path / "stock", "--stock", launcher="torchrun")
    ours = run(make_job, script, folder, "--die-at=7")
    begun = [event["n"] for event in ours.found("begin", life=1)]
    assert begun in ([7, 7], [6, 6]), ours.story()  # the newest may be on its way when a rank dies
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


def test_a_module_among_lightnings_parameters_is_one_in_the_file(make_job, folder):
    """It does not stand for its state_dict(), as in what is saved without a framework. The job goes on from it."""
    job = run(make_job, "flash_lightning.py", folder, "--steps=8", "--parameters", "--die-at=6")
    assert all(event["n"] >= 4 for event in job.found("begin", life=1)), job.story()
    for path in folder.glob("*.ckpt"):
        assert isinstance(torch.load(path, weights_only=False)["hyper_parameters"]["head"], torch.nn.Linear), path


def test_lightnings_hook_is_called_for_each_save_and_once_behind_the_first_step(make_job, tmp_path):
    """Though no file comes of those to memory, and of that one."""
    arguments = ("--steps=6", "--save-steps=4", "--memory-steps=3")
    asked = {}
    for name, own, launcher in (("stock", ["--stock"], "torchrun"), ("ours", [], "phalanx-run")):
        job = run(make_job, "flash_lightning.py", tmp_path / name, *arguments, *own, launcher=launcher)
        asked[name] = [sorted(event["n"] for event in job.found("asked", rank=rank)) for rank in (0, 1)]
    first, in_memory = 1, 3
    assert asked["ours"] == [sorted([first, in_memory, *steps]) for steps in asked["stock"]]
    assert {*asked["stock"][0]} == {*asked["stock"][1]} == {4}


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
    steps = {path.name: torch.load(path, weights_only=False)["global_step"] for path in folder.glob("*.ckpt")}
    assert steps == {"epoch=7-step=8.ckpt": 8, "last.ckpt": 11}, job.story()


def test_two_model_checkpoints_of_a_step_have_each_its_own_state(make_job, folder, tmp_path):
    other = tmp_path / "other"
    run(make_job, "flash_lightning.py", folder, "--steps=8", f"--other={other}")
    for place in (folder, other):
        callbacks = torch.load(place / "epoch=7-step=8.ckpt", weights_only=False)["callbacks"].values()
        (own,) = (each for each in callbacks if each.get("dirpath") == str(place))
        assert own["best_model_path"] == str(place / "epoch=7-step=8.ckpt")
    last = torch.load(folder / "last.ckpt", weights_only=False)["callbacks"].values()
    assert str(folder / "last.ckpt") in {each.get("last_model_path") for each in last}


def test_two_model_checkpoints_of_one_folder_take_no_file_from_each_other(make_job, folder, tmp_path):
    """The second keeps its newest alone, and the first all. Both would have the same names, as Lightning finds out by
    looking at what is there."""
    found = {}
    for name, own, launcher in (("stock", ["--stock"], "torchrun"), ("ours", [], "phalanx-run")):
        place = tmp_path / name
        run(make_job, "flash_lightning.py", place, *own, f"--other={place}", launcher=launcher)
        paths = place.glob("*.ckpt")
        found[name] = {path.name: torch.load(path, weights_only=False)["global_step"] for path in paths}
    assert found["ours"] == found["stock"] and len(found["stock"]) == 5


def test_who_averages_weights_loses_no_file(make_job, folder):
    job = run(make_job, "flash_lightning.py", folder, "--averages", "--steps=8")
    assert {"epoch=3-step=4.ckpt", "epoch=7-step=8.ckpt"} <= {path.name for path in folder.glob("*.ckpt")}
    assert "is not stored" not in job.nodes[0].stderr and "copied" not in job.nodes[0].stderr, job.story()


def test_what_is_saved_at_the_end_of_a_fit_and_behind_it_is_there_at_once(make_job, folder):
    """ModelCheckpoint saves last.ckpt in its own on_train_end()."""
    arguments = ("--steps=3", "--save-steps=100", f"--save-behind={folder / 'final.ckpt'}")
    job = run(make_job, "flash_lightning.py", folder, *arguments)
    for event, names in (("done", {"last.ckpt"}), ("behind", {"last.ckpt", "final.ckpt"})):
        assert [names.issubset(each["files"]) for each in job.found(event)] == [True, True], job.story()
    assert torch.load(folder / "final.ckpt", weights_only=False)["global_step"] == 3


def test_a_given_file_counts_until_the_job_has_saved(make_job, folder, tmp_path):
    """Not what yesterday's job has left."""
    run(make_job, "flash_lightning.py", folder, "--steps=8")
    given = tmp_path / "pretrained.ckpt"
    shutil.copyfile(folder / "epoch=3-step=4.ckpt", given)
    arguments = (f"--load={given}", "--steps=10")
    job = run(make_job, "flash_lightning.py", folder, *arguments, "--die-at-start")
    assert [event["n"] for event in job.found("begin", life=1)] == [4, 4], job.story()
    job = run(make_job, "flash_lightning.py", folder, *arguments, "--die-at=6")
    assert [event["n"] for event in job.found("begin", life=1)] == [6, 6], job.story()


def test_ranks_of_nodes_that_count_restarts_apart_go_on_together(make_job, folder, tmp_path):
    run(make_job, "flash_lightning.py", folder, "--steps=4", launcher="torchrun")
    arguments = (f"--load={folder / 'epoch=3-step=4.ckpt'}", "--restarts-of-rank-1=1", "--steps=6")
    job = run(make_job, "flash_lightning.py", tmp_path / "other", *arguments, launcher="torchrun")
    assert [event["n"] for event in job.found("begin")] == [4, 4], job.story()


class Below:
    """Stands for a Checkpointer of out/_phalanx, with what is stored there."""

    def __init__(self, out):
        self.directory = str(out / "_phalanx")
        os.makedirs(self.directory)
        self.there = []

    def steps(self):
        return self.there[::-1]

    def finish_telling(self, timeout_s):
        """Each of these tests tells what it has stored."""

    def store(self, step, name, text):
        folder = os.path.join(self.directory, str(step))
        os.makedirs(folder)
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)
        sequence = len(self.there) + 1
        self.there.append(types.SimpleNamespace(step=step, sequence=sequence, path=folder))


@pytest.fixture
def below(folder):
    return Below(folder)


@pytest.fixture
def lightning():
    from phalanx.checkpoint.adapters import lightning

    return lightning


def is_awaited(below):
    with open(os.path.join(below.directory, "awaited.json")) as file:
        return file.read() != "{}"


def test_what_is_stored_when_its_process_is_over_appears_in_the_next_life(below, folder, capsys):
    file, older = folder / "100.ckpt", folder / "50.ckpt"
    older.write_text("50")
    waiting = awaited.Awaited(below, os.unlink)
    waiting.add(100, str(file))
    waiting.remove(str(older))
    waiting.on_stored(StoreResult(100, False, "the Checkpointer was closed", may_come=True))
    assert "100.ckpt is not there yet: the Checkpointer was closed" in capsys.readouterr().err
    next_life = awaited.Awaited(below, os.unlink)
    next_life.publish()
    next_life.finish()
    assert is_awaited(below) and older.exists()
    below.store(100, file.name, "100")
    awaited.Awaited(below, os.unlink).publish()
    assert file.read_text() == "100" and not older.exists() and not is_awaited(below)


def test_what_was_given_up_or_overtaken_is_not_awaited_any_more(below, folder, capsys):
    waiting = awaited.Awaited(below, os.unlink)
    waiting.add(50, str(folder / "50.ckpt"))
    waiting.add(100, str(folder / "100.ckpt"))
    waiting.on_stored(StoreResult(50, False, "rank 1 has skipped it"))
    assert "50.ckpt is not stored: rank 1 has skipped it" in capsys.readouterr().err
    next_life = awaited.Awaited(below, os.unlink)
    next_life.add(150, str(folder / "150.ckpt"))
    below.store(150, "150.ckpt", "150")
    next_life.on_stored(StoreResult(150, True, None))
    assert "100.ckpt is not stored: the process that saved it was ended before" in capsys.readouterr().err
    assert (folder / "150.ckpt").read_text() == "150" and not is_awaited(below)


def test_a_file_that_the_disk_refuses_is_tried_again(below, folder, monkeypatch, capsys):
    publish = published.publish_file

    def fails(source, target):
        if os.path.basename(target) == "100.ckpt":
            raise OSError(errno.EIO, os.strerror(errno.EIO), target)
        publish(source, target)

    waiting = awaited.Awaited(below, os.unlink)
    for step in (100, 200):
        waiting.add(step, str(folder / f"{step}.ckpt"))
        waiting.add_path(step, str(folder / f"last-{step}.ckpt"))
        below.store(step, f"{step}.ckpt", str(step))
    monkeypatch.setattr(published, "publish_file", fails)
    waiting.on_stored(StoreResult(100, True, None))
    assert "100.ckpt is not there yet: [Errno 5]" in capsys.readouterr().err
    assert (folder / "last-100.ckpt").exists() and not (folder / "100.ckpt").exists()
    monkeypatch.undo()
    waiting.on_stored(StoreResult(200, True, None))
    assert {path.name for path in folder.glob("*.ckpt")} == {
        f"{kind}{step}.ckpt" for step in (100, 200) for kind in ("", "last-")
    }
    assert not is_awaited(below)


def test_a_file_that_appears_while_lightning_looks_for_it_is_taken(below, folder, lightning):
    """Another ModelCheckpoint would else have its own file under that name, and remove it."""
    file = folder / "4.ckpt"
    flash = lightning.FlashCheckpoint(folder)
    flash._place, flash._awaited = types.SimpleNamespace(rank=0), awaited.Awaited(below, os.unlink)
    flash._awaited.add(4, str(file))

    def stock(path, trainer):
        found = os.path.exists(path)
        if not found:
            below.store(4, file.name, "4")
            flash._awaited.on_stored(StoreResult(4, True, None))
        return found

    trainer = types.SimpleNamespace(strategy=types.SimpleNamespace(broadcast=lambda value: value))
    assert flash._file_exists(stock, str(file), trainer)


def test_lightnings_own_save_writes_into_no_file_of_a_step(folder, lightning, below):
    stored, shown, own, link = (folder / name for name in ("stored", "shown", "own", "link"))
    for path in (stored, own):
        path.write_text("as it was")
    os.link(stored, shown)
    link.symlink_to(shown.name)
    flash = lightning.FlashCheckpoint(folder)
    flash._place = types.SimpleNamespace(rank=0)
    flash._awaited = awaited.Awaited(below, os.unlink)
    flash._trains, trainer = True, types.SimpleNamespace(global_step=1)

    def stock(checkpoint, path, storage_options):
        """As Lightning does where temporary files lie on another file system."""
        with open(path, "w") as file:
            file.write(checkpoint["state_dict"])

    for path in (link, shown, own):
        flash._save_checkpoint(trainer, stock, {"state_dict": "weights"}, str(path))
    flash.on_exception(trainer, None, KeyboardInterrupt())
    flash._save_checkpoint(trainer, stock, {"state_dict": "all", "optimizer_states": []}, str(folder / "new"))
    found = [path.read_text() for path in (stored, link, shown, own, folder / "new")]
    assert found == ["as it was", "weights", "weights", "weights", "all"]


def test_accelerate_goes_on_from_memory_with_the_same_losses(make_job, folder, tmp_path):
    script = "flash_accelerate.py"
    whole = run(make_job, script, tmp_path / "whole")
    killed = run(make_job, script, folder, "--die-at=7")
    begun = [(event["n"], event["source"]) for event in killed.found("begin", life=1)]
    assert begun in ([(7, "memory")] * 2, [(6, "memory")] * 2), killed.story()  # as above
    assert (losses(killed), weights(killed)) == (losses(whole), weights(whole))
    assert losses(killed, 1) == losses(whole, 1)
    assert {path.name for path in folder.glob("checkpoint*")} == {"checkpoint_8", "checkpoint_12"}
    stock = run(make_job, script, folder, f"--stock-load={folder / 'checkpoint_12'}", launcher="torchrun")
    assert {event["weights"] for event in stock.found("loaded")} == {weights(whole)}


def test_what_accelerate_has_stored_is_loaded_from_a_copy(make_job, folder, tmp_path):
    script, copy = "flash_accelerate.py", tmp_path / "copy"
    first = run(make_job, script, folder, "--steps=8")
    shutil.copytree(folder, copy, copy_function=shutil.copyfile)
    again = run(make_job, script, copy, "--steps=8")
    assert [(event["n"], event["source"]) for event in again.found("begin")] == [(8, "disk")] * 2, again.story()
    assert weights(again) == weights(first)
    shutil.rmtree(copy / "_phalanx")
    alone = run(make_job, script, copy, "--steps=1")
    assert {event["n"] for event in alone.found("begin")} == {0}
    assert f"accelerator.load_state('{copy}/checkpoint_8')" in alone.story()


def test_what_accelerate_has_just_stored_stays_where_another_folder_is_dated_later(make_job, folder):
    for step in (1, 2):
        (folder / f"checkpoint_{step}").mkdir(parents=True)
        os.utime(folder / f"checkpoint_{step}", (2**32, 2**32))
    run(make_job, "flash_accelerate.py", folder, "--steps=4")
    assert (folder / "checkpoint_4").exists() and not (folder / "checkpoint_1").exists()
