"""A directory with an archive behind it: what is copied there, what is restored from there, and whom it holds up."""

import os
import shutil
import signal

import pytest

torch = pytest.importorskip("torch")

from phalanx.checkpoint import Checkpointer, Storage, dcp, ddp, files  # noqa: E402
from test_checkpoint_job import (  # noqa: E402
    check_restores,
    kill_agent,
    losses,
    manifest,
    restored,
    start,
    stored_steps,
)
from test_checkpoint_job import directory as directory  # noqa: E402
from test_checkpoint_job import jobs_with_memory as jobs_with_memory  # noqa: E402
from test_checkpoint_job import make_job as make_job  # noqa: E402

DISK = ("--disk-every=3", "--memory-every=0", "--wait=stored")


@pytest.fixture
def archive(tmp_path):
    (tmp_path / "mounted").mkdir()
    return tmp_path / "mounted" / "archive"


# --- in jobs ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_job_goes_on_from_the_archive_where_the_directory_is_lost(make_job, directory, archive):
    """To the last bit, and what it stores then is behind what the archive has."""
    whole, first, second = make_job(), make_job(), make_job()
    reference = start(whole, directory / "whole", "--steps=14", "--memory-every=0")
    node = start(first, directory / "run", "--steps=8", *DISK, f"--archive={archive}")
    assert reference.wait() == 0 and node.wait() == 0, first.story()
    assert stored_steps(archive)[-1] == 6, "the job's end waits for what is due"
    assert manifest(archive, 6) == manifest(directory / "run", 6)
    assert (archive / "latest").read_text() == "6"
    shutil.rmtree(directory / "run")
    node = start(second, directory / "run", "--steps=14", *DISK, f"--archive={archive}")
    assert node.wait() == 0, second.story()
    begun = restored(second, 0)
    assert (begun["n"], begun["source"]) == (6, "disk")
    assert f"{archive}/6" in begun["why"], "people are told where it lies"
    for rank in (0, 1):
        assert losses(whole, rank) == {**losses(whole, rank), **losses(second, rank)}
    assert manifest(directory / "run", 9)["sequence"] > manifest(archive, 6)["sequence"]
    assert stored_steps(archive)[-1] == 12
    check_restores(second, 2)


@pytest.mark.slow
def test_each_that_was_asked_for_is_in_the_archive_whatever_else_is_kept(job, directory, archive):
    arguments = [*DISK, "--keep-last=1", f"--archive={archive}", "--archive-every=6"]
    node = start(job, directory, "--steps=20", *arguments)
    assert node.wait() == 0, job.story()
    assert stored_steps(archive) == [6, 12, 18]
    assert stored_steps(directory) == [18]


@pytest.mark.slow
def test_an_archive_that_hangs_holds_up_no_save_and_no_restore(hanging_disk, job, directory):
    """What hangs in the kernel cannot be killed: the process ends when the disk goes on. Its archive has it then."""
    far = hanging_disk.path / "far"
    arguments = [directory, *DISK, "--step-ms=20", f"--archive={far}"]
    node = start(job, *arguments, nproc=1, flags=["--stop-timeout=2"])
    node.wait_line(rf"step \d+ of .* is copied to {far}")
    with hanging_disk.hanging():
        stored = job.found("stored")[-1]["n"]
        job.wait(lambda _: job.found("stored")[-1]["n"] >= stored + 9, "three more steps on disk")
        os.kill(job.pid(0, 0), signal.SIGKILL)
        assert restored(job, 1)["n"] >= stored + 9
        job.wait_events("stored", life=1, count=2)
        node.signal(signal.SIGTERM)
        # The stream to a master that has told the job's end may break a moment before the time is over.
        node.wait_line("checkpoint: (storage has not taken|whether storage takes) .*, to be copied to")
    assert node.wait() == 143, job.story()
    check_restores(job, 1)


def put_a_file_there(archive):
    """Which the agent makes anew whenever it is not there."""
    for number in range(1000):
        try:
            archive.write_text("no directory")
            return
        except IsADirectoryError:
            archive.rename(archive.parent / f"made{number}")
    raise AssertionError(f"{archive} is there each time")


@pytest.mark.slow
def test_what_an_agent_has_left_undone_is_done_by_the_next(job, directory, archive):
    """It is killed while its archive cannot be written to, and the next stores nothing by itself."""
    arguments = [directory, "--memory-every=0", f"--archive={archive}", "--step-ms=20"]
    node = start(job, *arguments, *DISK)
    node.wait_line(f"is copied to {archive}")
    archive.rename(archive.parent / "away")
    put_a_file_there(archive)
    node.wait_line(f"checkpoint: {directory} is not copied to {archive}: .*Not a directory; it is tried again")
    kill_agent(job, node)
    archive.unlink()
    (archive.parent / "away").rename(archive)
    assert stored_steps(archive)[-1] < stored_steps(directory)[-1]
    node = start(job, *arguments)
    node.wait_line(f"is copied to {archive}")
    job.stop()
    assert node.wait() == 0, job.story()
    assert stored_steps(archive)[-1] == stored_steps(directory)[-1]


# --- without an agent ------------------------------------------------------------------------------------------------


def state_of(step):
    return {"model": torch.full((3000,), float(step)), "step": step}


def save(tmp_path, *steps, kind=Checkpointer, **settings):
    with kind(tmp_path / "run", archive=tmp_path / "far", **settings) as checkpointer:
        for step in steps:
            assert checkpointer.save(step, state_of(step), storage=Storage.DISK).wait_stored()


def load(tmp_path, kind=Checkpointer, **asked):
    checkpointer = kind(tmp_path / "run", archive=tmp_path / "far")
    state, step = checkpointer.load(**asked)
    assert state["step"] == step and state["model"].unique().tolist() == [step]
    return step, checkpointer.why


@pytest.mark.parametrize("kind", [Checkpointer, ddp.Checkpointer])
def test_without_an_agent_it_is_the_same(tmp_path, kind):
    save(tmp_path, 1, 2, 3, kind=kind)
    assert stored_steps(tmp_path / "far")[-1] == 3, "close() has waited for it"
    assert load(tmp_path, kind) == (3, f"step 3 is restored from storage, {tmp_path}/run/3")
    shutil.rmtree(tmp_path / "run")
    assert load(tmp_path, kind) == (3, f"step 3 is restored from storage, {tmp_path}/far/3")
    save(tmp_path, 3, kind=kind)
    found = kind(tmp_path / "run", archive=tmp_path / "far").steps()
    assert [(each.step, each.sequence, each.timeline) for each in found[:2]] == [(3, 4, 1), (3, 3, 0)]
    assert found[0].path == f"{tmp_path}/run/3" and found[1].path == f"{tmp_path}/far/3"


def flip(path):
    with open(path, "r+b") as file:
        file.seek(-5000, os.SEEK_END)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def test_where_a_step_is_damaged_its_copy_is_taken_and_no_older_one(tmp_path):
    save(tmp_path, 1, 2)
    flip(next((tmp_path / "run" / "2").glob("*.pt")))
    step, why = load(tmp_path)
    assert step == 2 and f"{tmp_path}/far/2 (passed over: {tmp_path}/run/2: the checksum" in why
    flip(next((tmp_path / "far" / "2").glob("*.pt")))
    assert load(tmp_path)[0] == 1


def test_a_step_of_the_archive_is_loaded_by_its_number_and_deleted_with_the_other(tmp_path):
    save(tmp_path, 10, 20, 30, keep_last=1, archive_every=10)
    assert stored_steps(tmp_path / "run") == [30] and stored_steps(tmp_path / "far") == [10, 20, 30]
    assert load(tmp_path, step=20)[0] == 20
    checkpointer = Checkpointer(tmp_path / "run", archive=tmp_path / "far")
    assert [each.step for each in checkpointer.steps()] == [30, 20, 10]
    flip(next((tmp_path / "run" / "30").glob("*.pt")))
    step, why = load(tmp_path, step=30)
    assert step == 30 and f"{tmp_path}/far/30, as asked for (passed over: {tmp_path}/run/30: the checksum" in why
    assert load(tmp_path, timeline=0)[0] == 30
    assert checkpointer.delete(30) and checkpointer.delete(20) and not checkpointer.delete(20)
    assert stored_steps(tmp_path / "run") == [] and stored_steps(tmp_path / "far") == [10]
    with pytest.raises(LookupError, match="newest first, there are 10"):
        checkpointer.load(step=20)
    assert load(tmp_path)[0] == 10


def test_an_archive_that_is_away_is_missed_by_those_alone_who_need_it(tmp_path):
    save(tmp_path, 1)
    shutil.rmtree(tmp_path / "far")
    (tmp_path / "far").write_text("no directory")
    assert load(tmp_path)[0] == 1
    assert load(tmp_path, step=1)[0] == 1
    with Checkpointer(tmp_path / "run", archive=tmp_path / "far") as checkpointer:
        assert checkpointer.save(2, state_of(2), storage=Storage.DISK).wait_stored()
        with pytest.warns(RuntimeWarning, match="what it alone has is left out"):
            assert [each.step for each in checkpointer.steps()] == [2, 1]
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(RuntimeError, match=r"far: .*Not a directory"):
        load(tmp_path)  # a job does not begin anew where it is not known whether there is a step


def test_a_newest_step_that_is_cut_off_is_taken_from_its_copy(tmp_path):
    save(tmp_path, 1, 2)
    os.truncate(next((tmp_path / "run" / "2").glob("*.pt")), 100)
    assert load(tmp_path)[0] == 2


def test_what_the_archive_has_of_another_run_is_not_what_is_newest(tmp_path):
    """The directory was lost, and a life did not know of the archive: it counts anew."""
    save(tmp_path, 1, 2, 3, 4, archive_every=1)
    shutil.rmtree(tmp_path / "run")
    with Checkpointer(tmp_path / "run") as checkpointer:
        for step in (1, 2):
            assert checkpointer.save(step, state_of(step), storage=Storage.DISK).wait_stored()
    checkpointer = Checkpointer(tmp_path / "run", archive=tmp_path / "far")
    found = checkpointer.steps()
    assert found[0].path == f"{tmp_path}/run/2"
    for stored in found[1:]:
        checkpointer.delete(stored.step, timeline=stored.timeline)
    assert load(tmp_path)[0] == 2


def test_what_is_no_archive_is_refused_at_the_door(tmp_path):
    for wrong, why in (
        ({"archive": tmp_path}, "archive is .*; expected a directory that is not .*, nor in it or around it"),
        ({"archive": tmp_path / "run"}, "nor in it or around it"),
        ({"archive": tmp_path / "run" / "far"}, "nor in it or around it"),
        ({"archive": "s3://bucket/run"}, "archive is 's3://bucket/run'; expected a path"),
        ({"archive_every": 5}, "archive_every is 5; expected None where no archive is given"),
        ({"archive": tmp_path / "far", "archive_every": 0}, "archive_every is 0; expected None or a number above 0"),
    ):
        with pytest.raises(ValueError, match=why):
            Checkpointer(tmp_path / "run", **wrong)
    for kind in (ddp.Checkpointer, dcp.Checkpointer, files.Checkpointer):
        assert kind(tmp_path / "run", archive=tmp_path / "far", archive_every=5).archive == str(tmp_path / "far")
