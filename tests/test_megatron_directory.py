"""Megatron's directory beside ours, in one process without Megatron: names, the tracker, and whose an iteration is."""

import os
import shutil
from itertools import product

import pytest
from phalanx.checkpoint import Storage, files
from phalanx.checkpoint.adapters import megatron_folder, megatron_layout, published

MODEL = "mp_rank_00/model_optim_rng.pt"
TRACKER = megatron_layout.TRACKER


def layout(tensor, pipeline, expert=1, place=(0, 0, 0), places=None):
    """`places`: of all ranks; None: each that there is."""
    sizes = (tensor, pipeline, expert)
    found = megatron_layout.Layout(*place, sizes)
    found.parts = {megatron_layout.Layout(*each, sizes).part for each in places or product(*map(range, sizes))}
    return found


def names(*parts, name="model_optim_rng.pt"):
    return [f"{part}/{name}" for part in parts]


def test_parts_are_named_as_megatron_names_them():
    """megatron.training.checkpointing.get_checkpoint_name()."""
    assert layout(2, 1, place=(1, 0, 0)).part == "mp_rank_01"
    assert layout(2, 2, place=(1, 1, 0)).part == "mp_rank_01_001"
    assert layout(2, 1, 4, place=(1, 0, 3)).part == "mp_rank_01_003"
    assert layout(2, 2, 4, place=(1, 1, 3)).part == "mp_rank_01_001_003"
    assert megatron_layout.folder_of(1200) == "iter_0001200"
    assert megatron_layout.folder_of(12345678) == "iter_12345678"
    assert megatron_layout.folder_of("release") == "release"


@pytest.mark.parametrize(
    ("paths", "wanted", "is_distributed", "words"),
    [
        (names("mp_rank_00", "mp_rank_01"), layout(2, 1), False, None),
        (
            names("mp_rank_00", "mp_rank_01"),
            layout(2, 2),
            False,
            "it was saved as mp_rank_00, mp_rank_01, and this job",
        ),
        (names("mp_rank_00", "mp_rank_01"), layout(1, 1), False, "this job has 1 tensor x 1 pipeline parallel ranks"),
        (names("mp_rank_00"), layout(2, 1), False, "mp_rank_01/model_optim_rng.pt is missing"),
        (names("mp_rank_00", name="distrib_optim.pt"), layout(1, 1), True, "mp_rank_00/model_optim_rng.pt is missing"),
        (names("mp_rank_00"), layout(1, 1), True, "it has no distrib_optim.pt"),
        (["config.json"], layout(1, 1), False, "it has no mp_rank_*/model_optim_rng.pt"),
        (names("mp_rank_00_000", "mp_rank_01_001"), layout(2, 1, 2, places=[(0, 0, 0), (1, 0, 1)]), False, None),
        (
            names("mp_rank_00_000", "mp_rank_01_001"),
            layout(2, 1, 2),
            False,
            "mp_rank_00_001/model_optim_rng.pt is missing",
        ),
        (names(*(f"mp_rank_{i:02d}" for i in range(8))), layout(1, 1), False, "mp_rank_03 and 4 more, and this job"),
    ],
)
def test_what_does_not_fit_is_said_by_names_alone(paths, wanted, is_distributed, words):
    why = megatron_layout.why_not(paths, wanted, is_distributed)
    assert (why is None) if words is None else (words in why), why


@pytest.mark.parametrize("text", ["", "12a", "-1", "released", "1 2", "²"])
def test_a_tracker_that_says_nothing_is_refused(text):
    with pytest.raises(ValueError, match=r"latest_checkpointed_iteration\.txt says .*; expected the number"):
        megatron_layout.read_tracker(text)


def test_trackers_that_megatron_writes_are_read():
    assert [megatron_layout.read_tracker(text) for text in ("12\n", "release", "0")] == [12, "release", 0]


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


def opened(run):
    below = run / "_phalanx"
    below.mkdir(parents=True, exist_ok=True)
    checkpointer = files.Checkpointer(below, trackers=())
    return checkpointer, megatron_folder.Directory(str(run), checkpointer, MODEL, None, None)


def save(checkpointer, iteration, on_stored=None):
    content = {published.name_of(MODEL): f"state {iteration}".encode()}
    handle = checkpointer.save(iteration, content, storage=Storage.DISK, on_stored=on_stored)
    assert handle.wait_stored(), handle.why
    checkpointer.finish_telling(60)


def write_theirs(run, iteration, when):
    """As Megatron does, the tracker last."""
    place = run / megatron_layout.folder_of(iteration) / MODEL
    place.parent.mkdir(parents=True)
    place.write_bytes(b"theirs")
    (run / TRACKER).write_text(str(iteration))
    os.utime(run / TRACKER, (when, when))


def test_an_iteration_has_its_folder_before_the_tracker_names_it(run):
    checkpointer, directory = opened(run)
    with checkpointer:
        save(checkpointer, 10, directory.settle)
        assert (run / "iter_0000010" / MODEL).read_text() == "state 10"
        assert (run / TRACKER).read_text() == "10"
        assert (directory.named(), directory.theirs()) == (10, [])


def test_what_was_stored_when_the_process_died_is_named_by_the_next(run):
    checkpointer, directory = opened(run)
    with checkpointer:
        save(checkpointer, 10, directory.settle)
        save(checkpointer, 20)  # nobody is told
        directory.repair()
        assert (run / "iter_0000020" / MODEL).read_text() == "state 20"
        assert (run / TRACKER).read_text() == "20"
        (run / TRACKER).write_text("10")  # died between the folder and the tracker
        directory.repair()
        assert (run / TRACKER).read_text() == "20"
        (run / TRACKER).write_text("")
        directory.repair()
        assert (run / TRACKER).read_text() == "20"


def test_what_megatron_has_written_since_stays_named(run):
    checkpointer, directory = opened(run)
    with checkpointer:
        save(checkpointer, 10, directory.settle)
        later = checkpointer.steps()[0].written + 60
        write_theirs(run, 15, later)
        directory.repair()
        assert (directory.named(), directory.theirs()) == (15, [15])
        write_theirs(run, 12, later - 3600)  # the tracker is as old
        directory.repair()
        assert (directory.named(), directory.theirs()) == (10, [])


def test_a_copy_is_gone_on_from_as_the_run_is(run, tmp_path):
    checkpointer, directory = opened(run)
    with checkpointer:
        save(checkpointer, 10, directory.settle)
        save(checkpointer, 20, directory.settle)
    copy = tmp_path / "copy"
    shutil.copytree(run, copy, copy_function=shutil.copyfile)
    checkpointer, directory = opened(copy)
    with checkpointer:
        for _ in range(2):
            directory.repair()
            assert [step.step for step in checkpointer.steps()] == [20, 10]
            assert (directory.named(), directory.theirs()) == (20, [])


def write_files(folder, paths, when=None):
    for path in paths:
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"others")
        os.utime(place, when and (when, when))


OTHER_FORMATS = [
    ["metadata.json", "common.pt", ".metadata", "__0_0.distcp"],
    [".metadata", "__0_0.distcp"],
    names("mp_rank_00_000", "mp_rank_00_001"),
    names("mp_rank_01", name="distrib_optim.pt"),
]


@pytest.mark.parametrize("others", OTHER_FORMATS)
def test_a_checkpoint_in_another_format_is_replaced_whole(run, others):
    checkpointer, directory = opened(run)
    write_files(run / "iter_0000010", [*others, "notes.txt"])
    with checkpointer:
        save(checkpointer, 10, directory.settle)
        assert megatron_folder.paths_below(run / "iter_0000010") == [MODEL]
        assert (directory.named(), directory.theirs()) == (10, [])


def test_what_is_no_checkpoint_stays_beside_one(run):
    """Megatron puts states of data loaders there before the checkpoint."""
    checkpointer, directory = opened(run)
    others = ["mp_rank_00/train_dataloader_dprank000.pt", "notes.txt"]
    write_files(run / "iter_0000010", others)
    with checkpointer:
        save(checkpointer, 10, directory.settle)
        assert megatron_folder.paths_below(run / "iter_0000010") == [MODEL, *others]


def test_a_checkpoint_in_another_format_that_was_written_later_stays(run):
    checkpointer, directory = opened(run)
    with checkpointer:
        save(checkpointer, 5, directory.settle)
        save(checkpointer, 10)  # nobody is told
        write_files(run / "iter_0000010", OTHER_FORMATS[0], checkpointer.steps()[0].written + 60)
        directory.repair()
        assert megatron_folder.paths_below(run / "iter_0000010") == sorted(OTHER_FORMATS[0])
        assert [step.step for step in checkpointer.steps()] == [5]


def test_all_steps_are_looked_at_no_oftener_where_there_are_more(run, monkeypatch):
    """Each look is a process that reads all manifests."""
    looks, look = [], published.directories.steps
    checkpointer, directory = opened(run)
    with checkpointer:
        for iteration in (10, 20, 30):
            save(checkpointer, iteration, directory.settle)
        write_theirs(run, 15, checkpointer.steps()[0].written + 60)
        monkeypatch.setattr(published.directories, "steps", lambda places: looks.append(places) or look(places))
        directory.repair()
        assert directory.theirs() == [15]
    assert len(looks) <= 3


def test_a_state_that_is_cut_off_is_known(run):
    write_theirs(run, 10, 1)
    place = run / "iter_0000010" / MODEL
    assert megatron_folder.why_damaged(str(run / "iter_0000010"), [MODEL]) is None  # of an old torch, perhaps
    place.write_bytes(b"PK\x03\x04 and no more")
    assert megatron_folder.why_damaged(str(run / "iter_0000010"), [MODEL]) == f"{MODEL} is cut off"
    place.write_bytes(b"")
    assert megatron_folder.why_damaged(str(run / "iter_0000010"), [MODEL]) == f"{MODEL} is cut off"
