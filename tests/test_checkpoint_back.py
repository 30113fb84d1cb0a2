"""Going back: load() in the middle of a life, steps that are lower than those before, another run in a directory."""

import json

import pytest
from test_checkpoint_job import directory as directory
from test_checkpoint_job import jobs_with_memory as jobs_with_memory
from test_checkpoint_job import make_job as make_job


def node(job, directory, *plan, index=0, nproc=2, flags=()):
    """`plan`: what each life does, as tests/workloads/going_back.py has it."""
    return job.node(index, "going_back.py", directory, *plan, nnodes="1", nproc=nproc, flags=["--redirects=3", *flags])


def told(job, event, rank=0):
    return [(each["n"], each["value"]) for each in job.found(event, rank=rank)]


def stored(directory):
    """{folder: (sequence, timeline)} of the steps on disk."""
    found = {}
    for manifest in directory.glob("*/manifest.json"):
        text = json.loads(manifest.read_text().rpartition("crc32 ")[0])
        found[manifest.parent.name] = text["sequence"], text["timeline"]
    return found


def test_a_load_in_the_middle_of_a_life_is_of_that_moment(job, directory):
    """The first load() finds nothing; behind two saves one finds the newer."""
    assert node(job, directory, "load save:10 save:20 spoil load save:30 load").wait() == 0, job.story()
    for rank in (0, 1):
        assert told(job, "loaded", rank) == [(0, None), (20, 20), (30, 30)]


def test_saves_behind_going_back_are_newer_than_those_before(job, directory):
    """Also for the next life, and where the script goes back by itself."""
    plan = ["load save:10 save:30 load save:20 die", "load save:15 save:12 die", "load"]
    assert node(job, directory, *plan).wait() == 0, job.story()
    for rank in (0, 1):
        assert told(job, "loaded", rank) == [(0, None), (30, 30), (20, 20), (12, 12)]


def test_what_is_stored_behind_going_back_stays(make_job, directory):
    """It is the newest on disk, though its steps are lower, also for the next run; retention deletes what is oldest."""
    first, second = make_job(), make_job()
    assert node(first, directory, "load disk:100 disk:200 disk:300 load disk:10", "--keep-last=3").wait() == 0
    assert node(second, directory, "load disk:20 disk:30", "--keep-last=3").wait() == 0
    assert told(second, "loaded") == [(10, 10)]
    assert stored(directory) == {"10": (4, 1), "20": (5, 1), "30": (6, 1)}
    assert (directory / "latest").read_text() == "30"


@pytest.mark.parametrize("id_of_next", ["same", "another"])
def test_another_run_in_the_same_directory(make_job, directory, id_of_next):
    """It begins again at step 10 beside 100 and 200, without loading them: what it stores is the newest, and stays."""
    first = make_job()
    assert node(first, directory, "load disk:100 disk:200", "--keep-last=2").wait() == 0, first.story()
    second = make_job()
    if id_of_next == "same":
        second.id = first.id
    assert node(second, directory, "disk:10 save:20 die", "load", "--keep-last=2").wait() == 0, second.story()
    assert told(second, "loaded") == [(20, 20)], "what memory holds is newer than a higher step of another run"
    assert stored(directory) == {"10": (3, 1), "20": (4, 1)}


def test_a_run_that_loads_nothing_begins_a_timeline_whatever_its_steps(make_job, directory):
    """And one that goes on from it does not, nor does a life that goes on from memory."""
    for plan in (["load disk:10 disk:20"], ["disk:40 save:45 die", "load disk:50"], ["load disk:60"]):
        job = make_job()
        assert node(job, directory, *plan).wait() == 0, job.story()
    found = sorted(stored(directory).values())
    assert [timeline for _, timeline in found] == [0, 0, *(1 for _ in found[2:])], stored(directory)
    assert {name for name, (_, timeline) in stored(directory).items() if timeline == 1} >= {"40", "50", "60"}


@pytest.mark.parametrize("where", ["save", "disk"])
def test_a_doubted_save_is_passed_over_for_the_one_before(job, directory, where):
    """Two lives that went on from step 20 fail before a step."""
    plan = ["load disk:10 die", f"load {where}:20 die", "load fail", "load fail", "load save:11 die", "load"]
    assert node(job, directory, *plan, flags=["--max-restarts=9"]).wait() == 0, job.story()
    for rank in (0, 1):
        assert told(job, "loaded", rank) == [(0, None), (10, 10), (20, 20), (20, 20), (10, 10), (11, 11)]
    (why,) = {each["why"] for each in job.found("loaded", life=4)}
    at = "step 20 in memory" if where == "save" else f"{directory}/20"
    assert f"{at}: lives in a row that went on from it failed without a step" in why
    assert f"step 20 of {directory}: 2 lives in a row that went on from it failed without a step" in job.story()


@pytest.mark.parametrize("why", ["fail", "die"])
def test_a_save_is_not_doubted_where_that_is_asked_for_or_ranks_are_killed(job, directory, why):
    plan = ["load disk:10 save:20 die", f"load {why}", f"load {why}", "load"]
    flags = ["--max-restarts=9", *(["--older-save-after=0"] if why == "fail" else [])]
    assert node(job, directory, *plan, flags=flags).wait() == 0, job.story()
    assert told(job, "loaded") == [(0, None), (20, 20), (20, 20), (20, 20)]


# --- to a step that is named


def test_a_named_step_is_loaded_from_disk_and_saves_behind_it_are_newer(job, directory):
    """Also than those in memory, of this life and of one that was killed, whose steps are higher."""
    plan = [
        "load disk:10 disk:20 save:30 load:10 save:15 die",
        "load load:20 die",
        "load load:10 save:12 die",
        "load",
    ]
    assert node(job, directory, *plan).wait() == 0, job.story()
    for rank in (0, 1):
        told_by_life = [told_in(job, life, rank) for life in range(4)]
        assert told_by_life == [
            [(0, None, None), (10, 10, "disk")],
            [(15, 15, "memory"), (20, 20, "disk")],
            [(15, 15, "memory"), (10, 10, "disk")],  # nothing was saved behind step 20
            [(12, 12, "memory")],
        ]


def told_in(job, life, rank):
    return [(each["n"], each["value"], each["source"]) for each in job.found("loaded", life=life, rank=rank)]


def test_what_is_stored_behind_a_named_step_is_the_newest(make_job, directory):
    """Of another timeline, in which its steps may stand once more; each is found by its timeline."""
    first, second = make_job(), make_job()
    plan = "load disk:10 disk:20 disk:30 load:10 disk:20 disk:25"
    assert node(first, directory, plan).wait() == 0, first.story()
    plan = "load load:20 load:20@0 load:@0 load:20@1 load:30 load:30@1"
    assert node(second, directory, plan).wait() == 0, second.story()
    folder = next(name for name, place in stored(directory).items() if place == (4, 1))
    assert stored(directory) == {"10": (1, 0), "20": (2, 0), "30": (3, 0), folder: (4, 1), "25": (5, 1)}
    for rank in (0, 1):
        assert [step for step, _ in told(second, "loaded", rank)] == [25, 20, 20, 30, 20, 30]
        whys = [each["why"] for each in second.found("loaded", rank=rank)]
        assert [f"{directory}/{name}," in why for name, why in zip((folder, "20", "30", folder), whys[1:])] == [
            True
        ] * 4
        (refused,) = second.found("refused", rank=rank)
        assert refused["why"] == (
            f"phalanx.checkpoint: {directory} holds no step 30 of timeline 1 that counts; newest first, there are "
            "25 (timeline 1), 20 (timeline 1), 30 (timeline 0), 20 (timeline 0), 10 (timeline 0)"
        )


def test_all_ranks_fail_together_where_one_finds_its_part_damaged(job, directory):
    """And go on together from another."""
    assert node(job, directory, "load disk:10 disk:20").wait() == 0, job.story()
    shard = directory / "20" / "rank_1.pt"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    assert node(job, directory, "load:20 load:10 save:11 load load:@0").wait() == 0, job.story()
    for rank in (0, 1):
        (refused,) = job.found("refused", rank=rank)
        reason = "the checksum of rank_1.pt is" if rank == 1 else "another rank's part of it is not whole"
        assert (
            refused["why"].startswith("phalanx.checkpoint: step 20 cannot be restored: ") and reason in refused["why"]
        )
        assert [step for step, _ in told(job, "loaded", rank)] == [0, 10, 11, 10]


def test_all_ranks_delete_a_step_at_once(job, directory):
    """One of them has done it. The agent goes on behind what is left, and memory keeps what it holds."""
    plan = [
        "load disk:10 disk:20 disk:30 delete:30 delete:10 load disk:40 delete:40 save:41 die",
        "load load:20 delete:20",
    ]
    assert node(job, directory, *plan, "--keep-last=5").wait() == 0, job.story()
    deleted = sorted((each["n"], each["own"]) for each in job.found("deleted"))
    assert deleted == [(step, own) for step in (10, 20, 30, 40) for own in (False, True)]
    assert told(job, "loaded") == [(0, None), (30, 30), (41, 41), (20, 20)]
    assert [each["why"] for each in job.found("loaded", life=1, rank=0)][1].startswith(
        "step 20 is restored from storage"
    )
    assert stored(directory) == {"41": (1, 0)}, "what was in memory alone when the job ended"
    assert (directory / "latest").read_text() == "41"


# --- what becomes of saves on disk


@pytest.mark.parametrize("broken", [False, True])
def test_each_rank_is_told_once_what_became_of_a_save_on_disk(job, directory, broken):
    """Before its Checkpointer is closed: stored, or why not."""
    if broken:
        directory.mkdir()
        (directory / ".writing").write_text("where files of steps are made")
    plan = "load tell:10 tell:20 load tell:5"
    assert node(job, directory, plan).wait() == 0, job.story()
    for rank in (0, 1):
        heard = job.found("told", rank=rank)
        assert [each["n"] for each in heard] == [10, 20, 5], job.story()
        for each in heard:
            # Storage may have been behind: a newer save was stored instead, or has taken its place in memory before.
            assert each["stored"] or each["why"], each
            assert not broken or (not each["stored"] and "Not a directory" in each["why"]), each
        assert heard[-1]["stored"] is not broken
    assert ("5" in stored(directory)) is not broken
