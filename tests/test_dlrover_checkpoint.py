"""Checkpoints by the names of DLRover (compat/dlrover): the examples of its guide, call for call, with ranks killed in
the middle; and its storage and deletion strategies."""

import sys

import pytest
import torch
from dlrover_jobs import COMPAT, ROOT, with_compat
from harness import ckpt, kill_each
from test_checkpoint_dcp import of_ranks
from test_checkpoint_job import directory as directory
from test_checkpoint_job import jobs_with_memory as jobs_with_memory
from test_checkpoint_job import make_job as make_job

sys.path.insert(0, str(COMPAT))

from dlrover.python.common import storage
from dlrover.trainer.torch.flash_checkpoint import ddp, retention
from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType


def start(job, script, directory, *arguments, nproc=2, flags=("--max-restarts=1",)):
    words = (f"--dir={directory}", *arguments)
    return job.standalone(script, *words, nproc=nproc, flags=flags, env=with_compat())


def kill_all(job):
    of_ranks(job, "pausing")
    kill_each([job.pid(rank, 0) for rank in (0, 1)])


def losses(job, rank=0):
    return {event["n"]: event["loss"] for event in job.found("step") if event["rank"] == rank}


def steps_in(directory):
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdecimal())


# --- 3.1.4.1


@pytest.mark.slow
def test_the_example_of_ddp(make_job, directory, tmp_path):
    """All ranks die behind a save to memory: the next life goes on from it, and its losses are those of a run that
    nobody has stopped."""
    straight = make_job()
    assert start(straight, "dlrover_ddp.py", tmp_path / "straight").wait() == 0, straight.story()
    job = make_job()
    node = start(job, "dlrover_ddp.py", directory, "--pause-at=3")
    kill_all(job)
    assert node.wait() == 0, job.story()
    assert [event["n"] for event in of_ranks(job, "begins", life=1)] == [3, 3]
    assert losses(job) == losses(straight) and len(losses(job)) == 6
    assert all(event["there"] for event in job.found("stored"))
    for step in (2, 4, 6):
        state = torch.load(directory / f"checkpoint-{step}.pt")
        assert state["step"] == step and set(state) == {"model", "optimizer", "step"}
    assert not (directory / "checkpoint-3.pt").exists(), "what was in memory alone"
    assert steps_in(directory) == [4, 6], "older ones are their files alone"
    assert (directory / "dlrover_latest.txt").read_text() == "6"


@pytest.mark.slow
def test_a_file_gets_its_name_in_the_next_life(job, directory):
    """With --save-at-breakpoint the agent stores what is only in memory, when nobody is there to name its file."""
    flags = ["--max-restarts=1", "--save-at-breakpoint"]
    node = start(job, "dlrover_ddp.py", directory, "--pause-at=3", "--storage-every=100", "--steps=5", flags=flags)
    kill_all(job)
    assert node.wait() == 0, job.story()
    ddp.DdpCheckpointer(str(directory)).close()
    for step in (3, 5):  # of which 5 is stored as the job ends
        assert torch.load(directory / f"checkpoint-{step}.pt")["step"] == step


@pytest.mark.slow
def test_strategies_of_the_example(make_job, directory):
    assert start(make_job(), "dlrover_ddp.py", directory, "--keep=2").wait() == 0
    assert steps_in(directory) == [4, 6]
    assert (
        start(make_job(), "dlrover_ddp.py", directory, "--steps=9", "--storage-every=1", "--own-strategy").wait() == 0
    )
    assert steps_in(directory) == [4, 6, 8, 9], "9 is the newest, of which it was not asked"


@pytest.mark.slow
def test_the_lines_of_the_page_run_and_resume(job, tmp_path):
    text = (ROOT / "docs" / "dlrover.md").read_text()
    lines = text.split("**3. The checkpoints.**")[1].split("```")[1].replace("python\n", "", 1)
    told = "dist.destroy_process_group()"
    assert "/data/run7" in lines and ", 1000)" in lines and lines.rstrip().endswith(told)
    script = tmp_path / "script.py"
    for end in (100, 105):
        said = f"print(f'went {{loaded.get(\"step\", 0)}} {{step + 1}}')\n{told}"
        script.write_text(
            lines.replace("/data/run7", str(tmp_path / "run")).replace("1000", str(end)).replace(told, said)
        )
        node = job.standalone(script, flags=["--max-restarts=0"], env=with_compat())
        assert node.wait() == 0, job.story()
        assert torch.load(tmp_path / "run" / "checkpoint-100.pt")["step"] == 100, "it ends right behind that save"
        assert "is not stored" not in node.stderr, node.stderr
    assert node.stdout.count("went 100 105") == 2, node.stdout


# --- 3.1.4.2


@pytest.mark.slow
@pytest.mark.parametrize("how", [(), pytest.param(("--modules",), marks=pytest.mark.long)])
def test_the_example_of_fsdp(make_job, directory, tmp_path, how):
    straight = make_job()
    assert start(straight, "dlrover_fsdp.py", tmp_path / "straight", *how).wait() == 0, straight.story()
    job = make_job()
    node = start(job, "dlrover_fsdp.py", directory, "--pause-at=3", *how)
    kill_all(job)
    assert node.wait() == 0, job.story()
    begins = of_ranks(job, "begins", life=1)
    assert [(event["n"], event["source"]) for event in begins] == [(3, "memory")] * 2
    assert losses(job) == losses(straight) and len(losses(job)) == 4
    stored = [entry["step"] for entry in ckpt("ls", directory)["steps"]]
    assert stored in ([4, 2], [4, 3, 2]), "3 is stored behind the failure, unless 4 comes first"
    other = make_job()
    assert start(other, "dlrover_fsdp.py", directory, "--steps=5", *how, nproc=1).wait() == 0, other.story()
    assert [(event["n"], event["source"]) for event in other.found("begins")] == [(4, "disk")], "a world of one"


# --- without a job


def test_what_dlrover_itself_has_stored_is_loaded(tmp_path):
    (tmp_path / "7").mkdir()
    torch.save({"step": 7, "model": {"w": torch.ones(3)}}, tmp_path / "7" / "rank_0.pt")
    (tmp_path / "dlrover_latest.txt").write_text("7")
    assert ddp.DdpCheckpointer(str(tmp_path)).load_checkpoint()["step"] == 7
    torch.save({"step": 8}, tmp_path / "mine.pt")
    assert ddp.DdpCheckpointer(str(tmp_path)).load_checkpoint(str(tmp_path / "mine.pt"))["step"] == 8
    assert ddp.DdpCheckpointer(str(tmp_path / "other")).load_checkpoint() == {}


def test_a_save_without_an_agent(tmp_path):
    with_path = ddp.DdpCheckpointer(str(tmp_path / "c"), replica_count=2)
    with_path.save_checkpoint(1, {"w": torch.ones(3)}, str(tmp_path / "one.pt"), storage_type=StorageType.MEMORY)
    with_path.save_checkpoint(1, {"w": torch.ones(3)}, str(tmp_path / "one.pt"), storage_type=StorageType.DISK)
    with_path.wait_latest_checkpoint(timeout=60)
    assert torch.load(tmp_path / "one.pt")["w"].tolist() == [1.0] * 3
    with_path.close()
    assert ddp.DdpCheckpointer(str(tmp_path / "c")).load_checkpoint()["w"].tolist() == [1.0] * 3


def test_paths_by_the_default_name_of_dlrover(tmp_path):
    """<checkpoint_dir>/<step>/rank_N.pt, where a step has the part of a rank and no more."""
    checkpointer, names = ddp.DdpCheckpointer(str(tmp_path)), {2: "rank_0.pt", 3: "mine.pt", 4: "main.pt"}
    for step in range(1, 6):
        path = str(tmp_path / str(step) / names[step]) if step in names else ""
        checkpointer.save_checkpoint(step, {"step": step, "w": torch.ones(3)}, path)
        checkpointer.wait_latest_checkpoint()
    checkpointer.close()
    assert torch.load(tmp_path / "3" / "mine.pt")["step"] == 3, "its folder stays, in which it lies"
    for step in range(1, 6):
        for rank in (0, 7):
            loaded = ddp.DdpCheckpointer(str(tmp_path)).load_checkpoint(str(tmp_path / str(step) / f"rank_{rank}.pt"))
            assert loaded["step"] == step and loaded["w"].tolist() == [1.0] * 3
    for step in (5, 4, 3, 2, 1):
        assert ddp.DdpCheckpointer(str(tmp_path)).load_checkpoint()["step"] == step, "whole"
        assert checkpointer._checkpointer.delete(step)
    assert ddp.DdpCheckpointer(str(tmp_path)).load_checkpoint() == {}


def test_saves_to_memory_do_not_end_the_wait_for_disk(tmp_path):
    """The state takes its time on the way to disk."""
    checkpointer, state = ddp.DdpCheckpointer(str(tmp_path / "c")), {"w": torch.ones(32 << 20, dtype=torch.uint8)}
    checkpointer.save_checkpoint(1, state, str(tmp_path / "one.pt"))
    checkpointer.save_checkpoint(2, state, str(tmp_path / "two.pt"), storage_type=StorageType.MEMORY)
    checkpointer.wait_latest_checkpoint(timeout=60)
    assert (tmp_path / "one.pt").exists() and not (tmp_path / "two.pt").exists()
    checkpointer.close()


def test_shards_of_one_state_are_refused(tmp_path):
    with pytest.raises(TypeError, match="expected 1: a state that all ranks share"):
        ddp.DdpCheckpointer(str(tmp_path), local_shard_num=2)
    with pytest.raises(TypeError, match="deletion_strategy is 3"):
        ddp.DdpCheckpointer(str(tmp_path), deletion_strategy=3)


def test_strategies_are_those_of_the_checkpointer(tmp_path):
    assert retention.settings(storage.KeepLatestStepStrategy(3, str(tmp_path))) == {"keep_last": 3}
    assert retention.settings(storage.KeepStepIntervalStrategy(100, str(tmp_path))) == {"keep_every": 100}
    assert retention.settings(None) == {}
    with pytest.raises(ValueError, match="max_to_keep is 0; expected a whole number above 0"):
        storage.KeepLatestStepStrategy(0, str(tmp_path))


def test_strategies_by_themselves(tmp_path):
    """For scripts that call clean_up() with a function of their own."""
    deleted = []
    interval = storage.KeepStepIntervalStrategy(10, "/c")
    latest = storage.KeepLatestStepStrategy(3, "/c")
    for step in (5, 10, 15, 20):
        interval.clean_up(step, deleted.append)
    assert deleted == ["/c/5", "/c/15"]
    deleted.clear()
    for step in (1, 2, 3, 4):
        latest.clean_up(step, deleted.append)
    assert deleted == ["/c/1", "/c/2"], "two, and the newest beside them"


def test_files_of_a_storage(tmp_path):
    disk = storage.get_checkpoint_storage()
    assert type(disk) is storage.PosixDiskStorage
    disk.safe_makedirs(tmp_path / "a")
    disk.write("text", tmp_path / "a" / "t")
    disk.write(b"\xff", tmp_path / "a" / "b")
    disk.write_state_dict({"w": torch.ones(2)}, tmp_path / "a" / "s.pt")
    assert sorted(disk.listdir(tmp_path / "a")) == ["b", "s.pt", "t"], "no drafts"
    assert disk.read(tmp_path / "a" / "t") == "text" and disk.read(tmp_path / "a" / "b", "rb") == b"\xff"
    assert disk.read_state_dict(tmp_path / "a" / "s.pt")["w"].tolist() == [1.0, 1.0]
    assert disk.read_state_dict(tmp_path / "none") == {}

    def fails(state, path):
        with open(path, "w") as file:
            file.write("half")
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        disk.write_state_dict({}, tmp_path / "a" / "s.pt", fails)
    assert disk.read_state_dict(tmp_path / "a" / "s.pt")["w"].tolist() == [1.0, 1.0], "the one before"
    disk.safe_move(tmp_path / "a" / "t", tmp_path / "a" / "u")
    disk.safe_remove(tmp_path / "a" / "u")
    disk.safe_remove(tmp_path / "a" / "u")
    disk.safe_rmtree(tmp_path / "a")
    disk.safe_rmtree(tmp_path / "a")
    assert not disk.exists(tmp_path / "a")
    strategy = storage.KeepLatestStepStrategy(2, str(tmp_path))
    assert storage.get_checkpoint_storage(strategy).deletion_strategy is strategy
