"""Folders of a framework beside the steps of a checkpoint directory, in one process: what is shown, and what goes."""

import dataclasses
import errno
import glob
import os
import shutil
import struct
import subprocess
import sys
import time

import pytest
import safetensors.torch
import torch
from phalanx._bootstrap import board
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
        assert list(map(folders.ownership(), (8, 16, 24))) == [True] * 3
        replace(out / "checkpoint-24")
        with open(out / "checkpoint-16" / MARK, "w") as file:  # in place: of the step, too
            file.write("another state")
        (out / "_phalanx" / "32").mkdir()
        replace(out / "checkpoint-32")
        assert list(map(folders.ownership(), (8, 16, 24, 32))) == [True, False, False, False]
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


def test_a_clock_that_was_set_back_changes_no_order(out, monkeypatch):
    with opened(out) as checkpointer:
        folders = folders_of(checkpointer, out)
        stored(checkpointer, 8, 16, 24)
        folders.repair()
        *newer, first = folders.stored()
        tomorrow_s = first.written + 86_400
        there = [*newer, dataclasses.replace(first, written=tomorrow_s)]
        monkeypatch.setattr(folders, "stored", lambda: there)
        replace(out / "checkpoint-4")
        assert folders.steps() == [4, 8, 16, 24]
        date(out / "checkpoint-4", tomorrow_s + 1)
        assert folders.steps() == [8, 16, 24, 4]
        folders.rotate(3, 24)
    assert names(out) == ["_phalanx", "checkpoint-16", "checkpoint-24", "checkpoint-4"]


def date(folder, when_s):
    """Its files."""
    for path in folder.iterdir():
        os.utime(path, (when_s, when_s))


def test_folders_of_others_stand_by_their_numbers(out):
    """Files are copied and written to in any order."""
    with opened(out) as checkpointer:
        folders = folders_of(checkpointer, out)
        now_s = time.time()
        for step, when_s in ((4, now_s - 50), (12, now_s - 60), (20, now_s - 70)):
            replace(out / f"checkpoint-{step}")
            date(out / f"checkpoint-{step}", when_s)
        (out / "checkpoint-4" / "notes.txt").write_text("written later")
        assert folders.steps() == [4, 12, 20]
        stored(checkpointer, 16)
        folders.publish(16)
        (out / "checkpoint-20" / "notes.txt").write_text("written later")
        assert folders.steps() == [4, 12, 20, 16]


def test_what_was_just_stored_is_shown_whatever_the_clocks_say(out, capsys):
    with opened(out) as checkpointer:
        folders = folders_of(checkpointer, out)
        folders.repair()
        for step in (8, 24):
            replace(out / f"checkpoint-{step}")
            date(out / f"checkpoint-{step}", time.time() + 86_400)
        stored(checkpointer, 8)
        folders.publish(8)
        folders.rotate(1, 8)
        assert (out / "checkpoint-8" / MARK).read_text() == "state 8"
        assert (
            f"{out}/checkpoint-8 is dated later than what was just stored, and is replaced" in capsys.readouterr().err
        )
    assert names(out / "_phalanx") == ["8"]


def test_what_somebody_else_has_written_since_a_kill_stays_and_a_line_says_so(out, capsys):
    with opened(out) as checkpointer:
        folders = folders_of(checkpointer, out)
        folders.repair()
        stored(checkpointer, 8)
        replace(out / "checkpoint-8")
        date(out / "checkpoint-8", time.time() + 86_400)
        folders.repair()
    assert (out / "checkpoint-8" / MARK).read_text() == "theirs"
    assert names(out / "_phalanx") == []
    assert f"{out}/_phalanx/8 is removed: {out}/checkpoint-8 was written later" in capsys.readouterr().err


def copied(source, to):
    """As cp -r and programs that fetch from an object store do: other files, with other times."""
    shutil.copytree(source, to, copy_function=shutil.copyfile)
    for inner, _, files_there in os.walk(to):
        for name in files_there:
            when_s = 1000 if name == "manifest.json" else 2000 + len(inner)
            os.utime(os.path.join(inner, name), (when_s, when_s))


@pytest.mark.parametrize("is_below_alone", [False, True])
@pytest.mark.parametrize("has_record", [True, False])
def test_a_copy_loses_no_step(out, tmp_path, is_below_alone, has_record):
    with opened(out) as checkpointer:
        stored(checkpointer, 8, 16, 24)
        folders_of(checkpointer, out).repair()
    copy = tmp_path / "big"
    copied(out / "_phalanx" if is_below_alone else out, copy / "_phalanx" if is_below_alone else copy)
    if not has_record:
        (copy / "_phalanx" / "published.json").unlink()
    with opened(copy) as checkpointer:
        folders = folders_of(checkpointer, copy)
        for _ in range(2):
            folders.repair()
            assert names(copy / "_phalanx") == ["16", "24", "8"]
            assert names(copy) == ["_phalanx", "checkpoint-16", "checkpoint-24", "checkpoint-8"]
            assert list(map(folders.ownership(), (8, 16, 24))) == [True] * 3
        assert checkpointer.load()[1] == 24
        shutil.rmtree(copy / "checkpoint-8")
        folders.repair()
    assert names(copy / "_phalanx") == ["16", "24"]


@pytest.mark.parametrize("theirs", ["cut off", "weights of another", "another 24"])
def test_a_copy_keeps_steps_beside_folders_with_other_files(out, tmp_path, theirs):
    """One that was copied in part, say."""
    with opened(out) as checkpointer:
        stored(checkpointer, 8, 16, 24)
        folders_of(checkpointer, out).repair()
    copy = tmp_path / "big"
    copied(out, copy)
    (copy / "checkpoint-24" / "model.bin").write_text(theirs)
    with opened(copy) as checkpointer:
        folders = folders_of(checkpointer, copy)
        for _ in range(2):
            folders.repair()
            assert names(copy / "_phalanx") == ["16", "24", "8"]
            assert list(map(folders.ownership(), (8, 16, 24))) == [True, True, False]
        assert (copy / "checkpoint-24" / "model.bin").read_text() == theirs
        stored(checkpointer, 32)
        folders.publish(32)
        folders.rotate(1, 32)
    assert (names(copy), names(copy / "_phalanx")) == (["_phalanx", "checkpoint-32"], ["32"])


def test_a_publication_looks_at_all_steps_twice(out, monkeypatch):
    """Each look is a process that reads all manifests."""
    looks, look = [], published.directories.steps
    with opened(out) as checkpointer:
        folders = folders_of(checkpointer, out)
        stored(checkpointer, 8, 16, 24)
        monkeypatch.setattr(published.directories, "steps", lambda places: looks.append(places) or look(places))
        folders.publish(24)
        folders.rotate(3, 24)
        assert len(looks) <= 2
        looks.clear()
        folders.repair()
        assert len(looks) <= 1
        looks.clear()
        assert list(map(folders.ownership(), (8, 16, 24))) == [True] * 3
        assert len(looks) <= 1


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


class Killed(BaseException):
    pass


@pytest.mark.parametrize("is_killed", [True, False])
@pytest.mark.parametrize("renames", range(5))
def test_what_a_callback_has_written_there_outlives_a_death(out, monkeypatch, renames, is_killed):
    rename, done = os.rename, []

    def fail(source, target):
        if len(done) == renames:
            raise Killed if is_killed else OSError("no more renames")
        done.append(target)
        rename(source, target)

    with opened(out) as checkpointer:
        folders = folders_of(checkpointer, out)
        folders.repair()
        stored(checkpointer, 8)
        (out / "checkpoint-8").mkdir()
        for name in ("adapter.bin", "model.bin", "notes.bin"):
            (out / "checkpoint-8" / name).write_text("a callback's")
        with monkeypatch.context() as patched:
            patched.setattr(os, "rename", fail)
            with pytest.raises(Killed if is_killed else OSError):
                folders.publish(8)
        if is_killed:
            folders_of(checkpointer, out).repair()
        else:
            (out / "checkpoint-8").mkdir(exist_ok=True)  # the callback goes on
            (out / "checkpoint-8" / "later.bin").write_text("a callback's")
            folders.publish(8)
            folders.repair()
            assert (out / "checkpoint-8" / "later.bin").exists()
        found = {path.name: path.read_text() for path in (out / "checkpoint-8").iterdir() if path.name != "later.bin"}
        callbacks = dict.fromkeys(("adapter.bin", "notes.bin"), "a callback's")
        assert found == {MARK: "state 8", "model.bin": "weights 8", **callbacks}
        left = [name for name in os.listdir(out / "_phalanx") if name.startswith((".publishing", ".re"))]
        assert left == []


ANOTHER = """
import os, sys
from phalanx.checkpoint.adapters import captured
folder = captured.scratch("test-resume", sys.argv[1], 5)
open(os.path.join(folder, "laid out"), "w").close()
print(folder, flush=True)
sys.stdin.read()
os._exit(0)
"""


def begin_another(directory):
    """(A process with a scratch folder, which it leaves behind when its stdin is closed; that folder)."""
    command = [sys.executable, "-c", ANOTHER, directory]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


def test_what_a_dead_life_has_laid_out_goes_and_what_a_living_one_has_stays(out):
    with opened(out) as checkpointer:
        process, folder = begin_another(checkpointer.directory)
        with process:
            restored.Restorer(checkpointer, "test", "test")
            mine = captured.scratch("test-resume", checkpointer.directory, 5)
            assert mine != folder and os.listdir(mine) == [] and os.listdir(folder) == ["laid out"]
        restored.Restorer(checkpointer, "test", "test")
        assert [os.path.exists(folder), os.path.exists(mine)] == [False, True]
        captured.release(mine)


class InMemory(dict):
    """What was found there: a file's bytes, or what a copy of it raises in a folder that begins so."""

    source, step = "memory", 8

    def __init__(self, content, full=""):
        super().__init__(content)
        self.full = full

    def copy(self, name, path):
        with open(path, "wb") as file:
            file.write(self[name][:3])
            if self.full and path.startswith(self.full):
                raise OSError(errno.ENOSPC, "No space left on device", path)
            file.write(self[name][3:])


def test_what_has_no_room_in_memory_is_laid_out_on_disk(out, capsys):
    with opened(out) as checkpointer:
        stored(checkpointer, 4)
        restorer = restored.Restorer(checkpointer, "test", "test")
        beginning = captured._beginning("test-resume", checkpointer.directory)
        found = InMemory({MARK: b"state 8"}, beginning)
        folder = restorer.folder_of(found, "checkpoint-8")
        with open(os.path.join(folder, MARK)) as file:
            assert file.read() == "state 8"
        assert os.path.basename(folder) == "checkpoint-8" and folder.startswith(str(out))
        assert not glob.glob(f"{beginning}*")
        assert "step 8 is laid out in" in capsys.readouterr().err
        folders_of(checkpointer, out).repair()
        assert [each.step for each in checkpointer.steps()] == [4]
        restorer.let_go()
        assert not os.path.exists(os.path.dirname(folder))
        with pytest.raises(RuntimeError, match=r"step 8 in memory cannot be laid out in files: .*No space left"):
            restorer.folder_of(InMemory(found, "/"), "checkpoint-8")
        assert not [name for name in os.listdir(out / "_phalanx") if name.startswith(".resuming")]


def test_what_a_killed_life_has_laid_out_on_disk_goes(out):
    with opened(out) as checkpointer:
        left = out / "_phalanx" / ".resuming-0-abc" / "checkpoint-8"
        left.mkdir(parents=True)
        (left / MARK).write_text("half of")
        restored.Restorer(checkpointer, "test", "test")
        assert not left.parent.exists()


@pytest.mark.parametrize("source", ["memory", "disk"])
def test_files_in_folders_are_laid_out_in_folders(out, source):
    content = {"state.json": b"state 8", published.name_of("other/adapter.bin"): b"adapters"}
    with opened(out) as checkpointer:
        restorer = restored.Restorer(checkpointer, "test", "test", is_nested=True)
        assert checkpointer.save(8, content, storage=Storage.DISK).wait_stored()
        found = InMemory(content) if source == "memory" else checkpointer.load()[0]
        folder = restorer.folder_of(found, "checkpoint-8")
        assert contents_below(folder) == {"state.json": b"state 8", "other/adapter.bin": b"adapters"}
        restorer.let_go()
        assert not os.path.exists(folder)
        assert checkpointer.load()[0].read("other%2Fadapter.bin") == b"adapters"


def contents_below(folder):
    found = {}
    for parent, _, names_there in os.walk(folder):
        for name in names_there:
            with open(os.path.join(parent, name), "rb") as file:
                found[os.path.relpath(file.name, folder)] = file.read()
    return found


def test_what_is_written_into_folders_is_captured_by_its_path(tmp_path):
    tensors = {"weight": torch.ones(2)}

    def write(folder):
        for name in ("one", "two", "empty"):
            os.mkdir(os.path.join(folder, name))
        with open(os.path.join(folder, "one", "config.json"), "w") as file:
            file.write("{}")
        safetensors.torch.save_file(tensors, os.path.join(folder, "two", "model.safetensors"))
        safetensors.torch.save_file(tensors, os.path.join(folder, "model.safetensors"))
        safetensors.torch.save_file(tensors, str(tmp_path / "elsewhere.safetensors"))

    (tmp_path / "scratch").mkdir()
    weights, others = captured.capture(write, str(tmp_path / "scratch"))
    assert sorted(weights) == ["model.safetensors", "two%2Fmodel.safetensors"]
    assert others == {"one%2Fconfig.json": b"{}"}
    assert os.listdir(tmp_path / "scratch") == [] and (tmp_path / "elsewhere.safetensors").stat().st_size > 0
    with pytest.raises(captured.NotCaptured, match="here/there is no file, and a checkpoint holds files only"):
        captured.capture(write_link, str(tmp_path / "scratch"))


def write_link(folder):
    os.mkdir(os.path.join(folder, "here"))
    os.symlink("/", os.path.join(folder, "here", "there"))


def test_two_of_a_process_have_a_folder_each(out):
    older, newer = (captured.scratch("test", str(out), 0) for _ in range(2))
    with open(os.path.join(newer, "state"), "w"):
        shutil.rmtree(older)  # as where its object is collected as garbage
    captured.release(older)
    assert os.listdir(newer) == ["state"] and older not in captured._held
    captured.release(newer)
    assert not os.path.exists(newer) and not captured._held


def test_what_was_there_before_the_job_is_not_of_it(out, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    with opened(out) as checkpointer:
        folders = folders_of(checkpointer, out)
        stored(checkpointer, 8)
        folders.begin()
        stored(checkpointer, 16)
        folders.repair()
        is_of_it = {step.step: folders.is_of_this_job(step.path) for step in checkpointer.steps()}
        assert is_of_it == {8: False, 16: True}
        monkeypatch.setenv("SLURM_JOB_ID", "18")
        assert not folders.is_of_this_job(checkpointer.steps()[0].path)


def test_a_life_that_any_node_counts_is_a_later_one(out, monkeypatch):
    with opened(out) as checkpointer:
        restorer = restored.Restorer(checkpointer, "test", "test")
        monkeypatch.setattr(restorer, "of_all", lambda value: [value, "0", ""])
        for life, is_later in (("0", False), ("", False), ("1", True)):
            monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", life)
            assert restorer.is_later_life() is is_later
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
        monkeypatch.setattr(restorer, "of_all", lambda value: [value, "2"])
        assert restorer.is_later_life() is True


@pytest.mark.parametrize(("earlier", "has_stepped"), [(-1, False), (0, True), (500, True)])
def test_a_board_says_whether_an_earlier_life_has_made_a_step(out, tmp_path, monkeypatch, earlier, has_stepped):
    """Where none has, nobody has saved, and what is there is of an earlier job."""
    header = struct.pack("<8sIIIIQqq16s", board.MAGIC, board.VERSION, board.SLOT_BYTES, 1, 0, 5, earlier, 0, b"")
    (tmp_path / "board").write_bytes(header + bytes(board.SLOT_BYTES))
    with opened(out) as checkpointer:
        restorer = restored.Restorer(checkpointer, "test", "test")
        assert restorer.has_stepped_before() is True  # without a board nobody knows
        board.attach(str(tmp_path / "board"), 0)
        try:
            assert restorer.has_stepped_before() is has_stepped
            board.set_step(1000)
            assert restorer.has_stepped_before() is has_stepped
            monkeypatch.setattr(restorer, "of_all", lambda value: [value, 7])
            assert restorer.has_stepped_before() is True  # another node knows
        finally:
            board.let_go()
