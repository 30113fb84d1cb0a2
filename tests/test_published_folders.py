"""Folders of a framework beside the steps of a checkpoint directory, in one process: what is shown, and what goes."""

import os
import shutil

import pytest
from phalanx.checkpoint import Storage, files
from phalanx.checkpoint.adapters import captured, published, restored

MARK = "trainer_state.json"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def opened(out, **settings):
    (out / "_phalanx").mkdir(parents=True, exist_ok=True)
    return files.Checkpointer(out / "_phalanx", trackers=(), **settings)


def folders_of(checkpointer, out):
    return published.Folders(checkpointer, str(out), "checkpoint-", MARK)


def stored(checkpointer, *steps):
    for step in steps:
        content = {MARK: f"state {step}".encode(), "model.bin": f"weights {step}".encode()}
        handle = checkpointer.save(step, content, storage=Storage.DISK)
        assert handle.wait_stored(), handle.why


def names(folder):
    return sorted(name for name in os.listdir(folder) if not name.startswith(".") and not name.endswith(".json"))


def test_an_archive_keeps_what_goes_here(out, tmp_path):
    with opened(out, archive=str(tmp_path / "archive")) as checkpointer:
        folders = folders_of(checkpointer, out)
        for step in (8, 16, 24):
            stored(checkpointer, step)
            checkpointer.finish_telling(60)
            folders.publish(step)
            folders.rotate(1, None)
    assert names(out / "_phalanx") == ["24"]
    there = names(tmp_path / "archive")
    assert "8" in there and "16" in there, there
    folders.repair()
    assert names(out) == ["_phalanx", "checkpoint-24"]


def test_what_the_archive_is_to_have_stays_until_then(out, tmp_path):
    with opened(out) as checkpointer:
        stored(checkpointer, 8, 12, 16)
        folders_of(checkpointer, out).repair()
    owing = opened(out, archive=str(tmp_path / "archive"), archive_every=8)
    folders = published.Folders(owing, str(out), "checkpoint-", archive_every=8)
    folders.rotate(1, None)
    assert names(out / "_phalanx") == ["16", "8"]
    owing.close()


def test_a_folder_that_was_replaced_is_somebody_elses(out):
    with opened(out) as checkpointer:
        folders = folders_of(checkpointer, out)
        stored(checkpointer, 8, 16, 24)
        folders.repair()
        assert [folders.is_ours(step) for step in (8, 16, 24)] == [True] * 3
        replace(out / "checkpoint-24")
        with open(out / "checkpoint-16" / MARK, "w") as file:  # in place: of the step, too
            file.write("another state")
        (out / "_phalanx" / "32").mkdir()
        replace(out / "checkpoint-32")
        assert [folders.is_ours(step) for step in (8, 16, 24, 32)] == [True, False, False, False]
        folders.repair()
    assert not (out / "_phalanx" / "24").exists()
    assert (out / "checkpoint-24" / MARK).read_text() == "theirs"


def replace(folder):
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    for name in (MARK, "model.bin"):
        (folder / name).write_text("theirs")


def test_what_is_stored_late_is_published_with_the_next(out):
    with opened(out) as checkpointer:
        folders = folders_of(checkpointer, out)
        stored(checkpointer, 8)
        folders.repair()
        stored(checkpointer, 16)
        folders.tidy()
        stored(checkpointer, 24)
        folders.tidy()
        assert names(out / "_phalanx") == ["16", "24", "8"]
        folders.publish(24)
        assert folders.steps() == [8, 16, 24]
        shutil.rmtree(out / "checkpoint-16")
        folders.tidy()
        assert names(out / "_phalanx") == ["24", "8"]


def test_a_clock_that_was_set_back_changes_no_order(out):
    with opened(out) as checkpointer:
        folders = folders_of(checkpointer, out)
        stored(checkpointer, 8, 16, 24)
        folders.repair()
        tomorrow_s = (out / "checkpoint-8").stat().st_mtime + 86_400
        os.utime(out / "checkpoint-8", (tomorrow_s, tomorrow_s))
        replace(out / "checkpoint-4")
        assert folders.steps() == [4, 8, 16, 24]
        os.utime(out / "checkpoint-4", (tomorrow_s + 1, tomorrow_s + 1))
        assert folders.steps() == [8, 16, 24, 4]
        folders.rotate(3, 24)
    assert names(out) == ["_phalanx", "checkpoint-16", "checkpoint-24", "checkpoint-4"]


def test_numbers_that_begin_anew_are_of_other_steps(out):
    with opened(out) as checkpointer:
        stored(checkpointer, 8, 16)
        folders_of(checkpointer, out).repair()
    for folder in (out / "checkpoint-8", out / "checkpoint-16", out / "_phalanx" / "8", out / "_phalanx" / "16"):
        shutil.rmtree(folder)
    with opened(out) as checkpointer:
        stored(checkpointer, 8)
        assert [step.sequence for step in checkpointer.steps()] == [1]
        folders_of(checkpointer, out).repair()
    assert names(out) == ["_phalanx", "checkpoint-8"]
    shutil.rmtree(out / "checkpoint-8")
    folders_of(checkpointer, out).repair()
    assert names(out / "_phalanx") == []


def test_what_a_callback_has_written_there_stays(out):
    with opened(out) as checkpointer:
        folders = folders_of(checkpointer, out)
        stored(checkpointer, 8)
        (out / "checkpoint-8" / "adapter_model").mkdir(parents=True)
        (out / "checkpoint-8" / "adapter_model" / "adapter.bin").write_text("adapters")
        (out / "checkpoint-8" / "model.bin").write_text("a callback's")
        folders.publish(8)
        assert names(out / "checkpoint-8") == ["adapter_model", "model.bin"]
        assert (out / "checkpoint-8" / "adapter_model" / "adapter.bin").read_text() == "adapters"
        assert (out / "checkpoint-8" / "model.bin").read_text() == "weights 8"
        folders.repair()
    assert names(out / "_phalanx") == ["8"]


def test_what_a_dead_life_has_laid_out_goes_and_what_a_living_one_has_stays(out):
    with opened(out) as checkpointer:
        left = captured.scratch("test-resume", checkpointer.directory, 7)
        living = captured.scratch("test-resume", checkpointer.directory, 5)
        held = captured.lock(living)
        restored.Restorer(checkpointer, "test", "test")
        assert [os.path.exists(left), os.path.exists(living)] == [False, True]
        os.close(held)
        restored.Restorer(checkpointer, "test", "test")
        assert not os.path.exists(living)


def test_what_was_there_before_the_job_is_not_of_it(out):
    def is_of_it(step):
        return folders.is_of_this_job(step.step, step.sequence, round(step.written * 1000))

    with opened(out) as checkpointer:
        folders = folders_of(checkpointer, out)
        stored(checkpointer, 8)
        folders.begin()
        stored(checkpointer, 16)
        folders.repair()
        assert {step.step: is_of_it(step) for step in checkpointer.steps()} == {8: False, 16: True}
