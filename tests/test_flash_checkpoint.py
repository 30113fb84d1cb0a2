"""phalanx.checkpoint.adapters.flash, by the names of DLRover that compat/dlrover has: folders that a trainer writes
file by file are there whole, or not yet."""

import os
from pathlib import Path

import pytest
import torch
from harness import kill_each
from test_checkpoint_dcp import of_ranks
from test_checkpoint_job import directory as directory
from test_checkpoint_job import jobs_with_memory as jobs_with_memory
from test_checkpoint_job import make_job as make_job

pytestmark = pytest.mark.slow
COMPAT = Path(__file__).resolve().parent.parent / "compat" / "dlrover"
NAMES = ["global_step/mp_rank_00.pt", "optimizer.pt", "rng_state_0.pth", "rng_state_1.pth", "training_args.bin"]


def start(job, directory, *arguments, flags=("--max-restarts=0",)):
    env = {"PYTHONPATH": os.pathsep.join(filter(None, [str(COMPAT), os.environ.get("PYTHONPATH")]))}
    return job.standalone("flash_saving.py", f"--dir={directory}", *arguments, flags=flags, env=env)


def loads(folder, step):
    paths = sorted(path for path in folder.rglob("*") if not path.is_dir())
    assert [str(path.relative_to(folder)) for path in paths] == NAMES
    for rank in (0, 1):
        assert torch.load(folder / f"rng_state_{rank}.pth")["numbers"].tolist() == [step * 10 + rank] * 9
    assert (torch.load(folder / "optimizer.pt")["moments"] == step).all()
    assert (torch.load(folder / "global_step" / "mp_rank_00.pt")["weights"] == step).all()
    assert b"Arguments" in (folder / "training_args.bin").read_bytes()
    return paths


def steps_in(directory):
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdecimal())


def leave_unfinished(directory, step):
    """A folder as a writer of storage leaves it that has died."""
    (directory / str(step)).mkdir(parents=True)
    (directory / str(step) / ".unfinished").touch()
    (directory / str(step) / "optimizer.pt").write_bytes(b"half of it")


def test_folders_hold_their_files_when_they_are_waited_for(job, directory):
    assert start(job, directory).wait() == 0, job.story()
    assert all(event["made"] for event in job.found("saved")) and len(job.found("saved")) == 6
    assert [event["newest"] for event in of_ranks(job, "saved", n=3)] == [3, 3], "the last one is waited for"
    assert [event["newest"] for event in of_ranks(job, "waited")] == [3, 3]
    for step in (1, 2, 3):
        paths = loads(directory / f"checkpoint-{step}", step)
        assert not any(path.is_symlink() for path in paths), "whoever copies the folder has all of it"
    assert steps_in(directory) == [3], "what older folders have for themselves is not kept twice"


def test_a_folder_that_was_never_finished_is_not_what_links_lead_to(job, directory):
    for step in (1, 2):
        leave_unfinished(directory, step)
    assert start(job, directory).wait() == 0, job.story()
    for step in (1, 2, 3):
        assert not any(path.is_symlink() for path in loads(directory / f"checkpoint-{step}", step))
    assert [event["linked"] for event in job.found("copied")] == [True] * 3, "before the save begins"


def test_links_of_a_life_before_lead_to_where_the_step_was_stored(make_job, directory):
    assert start(make_job(), directory).wait() == 0
    folder = directory / "checkpoint-3"
    (directory / "3").rename(directory / "3.7")
    for path in loads(folder, 3):
        path.unlink()
        up = "../" * len(path.relative_to(folder).parts)
        path.symlink_to(f"{up}3/{path.relative_to(folder).as_posix().replace('/', '%2F')}")
    assert start(make_job(), directory).wait() == 0
    loads(folder, 3)


def test_what_is_not_saved_leaves_no_links(job, directory):
    assert start(job, directory, "--refused-at=2").wait() == 0, job.story()
    refused = of_ranks(job, "refused", n=2)
    assert [event["links"] for event in refused] == [[], []] and all("lock" in event["why"] for event in refused)
    assert len(of_ranks(job, "waited")) == 2, "nobody waits for it"
    loads(directory / "checkpoint-3", 3)


@pytest.mark.parametrize("is_taken", [False, True])
def test_what_was_saved_when_all_ranks_died_is_stored_and_gone_on_from(job, directory, is_taken):
    if is_taken:
        leave_unfinished(directory, 2)
    node = start(job, directory, "--pause-at=2", "--width=20000", "--steps=4", flags=["--max-restarts=1", "--no-warm"])
    of_ranks(job, "pausing")
    kill_each([job.pid(rank, 0) for rank in (0, 1)])
    assert node.wait() == 0, job.story()
    begins = of_ranks(job, "begins", life=1)
    assert [(event["n"], event["whole"]) for event in begins] == [(2, True)] * 2
    for step in (1, 2, 3, 4):
        loads(directory / f"checkpoint-{step}", step)


def test_a_folder_is_taken_from_its_latest_past(make_job, directory):
    """A run that begins anew in the same directory."""
    assert start(make_job(), directory).wait() == 0
    (directory / "dlrover_latest.txt").unlink()
    job = make_job()
    assert start(job, directory, "--steps=4").wait() == 0, job.story()
    assert [event["n"] for event in of_ranks(job, "begins")] == [0, 0]
    for step in (1, 2, 3, 4):
        loads(directory / f"checkpoint-{step}", step)


def test_what_is_in_no_folder_is_refused(job, directory):
    assert start(job, directory, "--elsewhere").wait() == 1
    said = f"phalanx.checkpoint: {directory}/other/x.pt is to be saved with {directory}/checkpoint-1; expected a file"
    assert said in job.nodes[0].stderr, job.story()
