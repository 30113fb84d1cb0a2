"""What is stored in a checkpoint directory: one step of it is loaded, all are listed, some are deleted."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from checkpoint_agent import write_manifest  # noqa: E402
from phalanx._bootstrap import memory  # noqa: E402
from phalanx.checkpoint import Checkpointer, Storage, StoredStep, ddp, stored  # noqa: E402
from share import free_port  # noqa: E402


@pytest.fixture
def folder(agent, make, tmp_path):
    """Of steps that were stored in this order, and a process without an agent: 10 and 20 of timeline 0, then, behind a
    load() of step 10, 15 and 20 once more."""
    checkpointer = make()
    places = (("10", 10, 0), ("20", 20, 0), ("15", 15, 1), ("20.4", 20, 1))
    for sequence, (name, step, timeline) in enumerate(places, 1):
        assert checkpointer.save(sequence, {"w": torch.full((9,), float(sequence))}).wait_committed()
        agent.store(tmp_path / "run", sequence, name)
        place(tmp_path / "run" / name, step=step, sequence=sequence, timeline=timeline, branch=timeline)
    checkpointer.close()
    memory.forget()
    return tmp_path / "run"


def manifest_of(folder):
    return json.loads((folder / "manifest.json").read_bytes().partition(b"\n")[0])


def place(folder, **fields):
    """Writes the manifest of a step once more, with other fields."""
    found = {**manifest_of(folder), "written_unix_ms": 1_700_000_000_500, **fields}
    write_manifest(folder, found.pop("step"), found.pop("epoch"), found.pop("shards"), **found)


def spoil(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def loaded(folder, **given):
    """(what was loaded, its step, where it lay)."""
    checkpointer = Checkpointer(folder)
    state, step = checkpointer.load(**given)
    assert checkpointer.source == "disk" and state["w"].unique().numel() == 1
    where = checkpointer.why.partition(f"{folder}/")[2].partition(",")[0]
    assert checkpointer.why.startswith(f"step {step} is restored from storage, {folder}/{where}, as asked for")
    return int(state["w"][0]), step, where


# --- load(step=..)


def test_a_step_is_loaded_by_its_number_and_its_timeline(folder):
    assert loaded(folder, step=10) == (1, 10, "10")
    assert loaded(folder, step=20) == (4, 20, "20.4"), "that which was stored last"
    assert loaded(folder, step=20, timeline=0) == (2, 20, "20")
    assert loaded(folder, timeline=0) == (2, 20, "20")
    assert loaded(folder, timeline=1) == (4, 20, "20.4")
    assert Checkpointer(folder).load()[1] == 20


def test_a_step_that_is_not_there_is_told_with_those_that_are(folder, tmp_path):
    there = "newest first, there are 20 (timeline 1), 15 (timeline 1), 20 (timeline 0), 10 (timeline 0)"
    for given, nothing in (
        ({"step": 30}, "no step 30"),
        ({"step": 15, "timeline": 0}, "no step 15 of timeline 0"),
        ({"timeline": 2}, "nothing of timeline 2"),
    ):
        with pytest.raises(LookupError) as raised:
            Checkpointer(folder).load(default="none", **given)
        assert str(raised.value) == f"phalanx.checkpoint: {folder} holds {nothing} that counts; {there}"
    with pytest.raises(LookupError, match="holds no step 1 that counts; no other step is there"):
        Checkpointer(tmp_path / "empty").load(step=1)


def test_of_many_steps_the_newest_are_named(folder):
    for step in range(100, 140):
        (folder / str(step)).mkdir()
        shard = manifest_of(folder / "10")["shards"][0]
        os.link(folder / "10" / shard["file"], folder / str(step) / shard["file"])
        write_manifest(folder / str(step), step, 1, [shard], sequence=step)
    with pytest.raises(LookupError, match=r"there are 139 \(timeline 0\), .*, 120 \(timeline 0\) and 24 more$"):
        Checkpointer(folder).load(step=1)


def test_what_is_damaged_is_not_replaced_by_another_step_of_that_number(folder):
    """It is of another past. Where a timeline is asked for its next older step is as good."""
    spoil(folder / "20.4" / "rank_0.pt")
    with pytest.raises(LookupError, match=r"step 20 cannot be restored: .*/20\.4: the checksum of rank_0\.pt is"):
        Checkpointer(folder).load(step=20)
    assert loaded(folder, step=20, timeline=0)[0] == 2
    assert loaded(folder, timeline=1) == (3, 15, "15")
    assert Checkpointer(folder).load()[1] == 15


def test_what_does_not_count_is_no_step(folder):
    (folder / "20.7").mkdir()
    assert loaded(folder, step=20) == (4, 20, "20.4")
    (folder / "10" / "manifest.json").unlink()
    with pytest.raises(
        LookupError, match=r"holds no step 10 that counts \(.*/10: no manifest: not committed\); newest first"
    ):
        Checkpointer(folder).load(step=10)


@pytest.mark.parametrize("name", ["step", "timeline"])
@pytest.mark.parametrize("wrong", [-1, "10", 2.0, True])
def test_what_is_no_number_of_a_step_is_refused(folder, name, wrong):
    with pytest.raises(ValueError, match=rf"phalanx.checkpoint: {name} is {wrong!r}; expected None or a whole number"):
        Checkpointer(folder).load(**{name: wrong})
    assert loaded(folder, step=torch.tensor(10))[1] == 10


RANK = """
import sys
import torch.distributed as dist
from phalanx.checkpoint import Checkpointer
directory, grouped = sys.argv[1:]
if grouped == "group":
    dist.init_process_group("gloo")
checkpointer = Checkpointer(directory)
for given in ({"step": 20}, {"step": 10}):
    try:
        print(int(checkpointer.load(**given)[0]["w"][0]))
    except LookupError as error:
        print(error)
"""


@pytest.mark.parametrize("group", ["group", "none"])
def test_ranks_without_an_agent_load_a_step_together_or_fail_together(folder, tmp_path, group):
    """Without a process group each for itself."""
    for name in ("20.4", "10"):
        shard = manifest_of(folder / name)["shards"][0]
        shutil.copy(folder / name / "rank_0.pt", folder / name / "rank_1.pt")
        place(folder / name, shards=[shard, {**shard, "rank": 1, "file": "rank_1.pt"}], world_size=2)
    spoil(folder / "20.4" / "rank_1.pt")
    env = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, "-c", RANK, folder, group]
    ranks = [
        subprocess.Popen(command, env={**env, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True) for rank in (0, 1)
    ]
    said = [rank.communicate(timeout=100)[0].splitlines() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert "/20.4: the checksum of rank_1.pt is" in said[1][0] and said[1][1] == "1"
    if group == "group":
        assert said[0][0].endswith("/20.4: another rank's part of it is not whole") and said[0][1] == "1"
    else:
        assert said[0] == ["4", "1"]


def test_ddp_loads_a_named_step_from_disk_under_an_agent(agent, make, tmp_path):
    """Though memory holds a newer one; what is saved behind it is of the next branch."""
    from checkpoint_agent import CheckpointAgent

    with CheckpointAgent() as agent.main:
        checkpointer = make(ddp.Checkpointer)
        for step in (1, 2):
            assert checkpointer.save(step, {"w": torch.full((9,), float(step))}).wait_committed()
        shards = []
        for rank, page, name in ((0, agent, "rank_0.pt"), (-1, agent.main, "main.pt")):
            slot = page.sealed()[1]
            (tmp_path / "run" / "1").mkdir(exist_ok=True)
            (tmp_path / "run" / "1" / name).write_bytes(open(page.slot_path(slot), "rb").read())
            fields = page.page.slot(slot)[0]
            shards.append(
                {
                    "rank": rank,
                    "file": name,
                    "bytes": fields[3],
                    "crc32": fields[7],
                    "needed_by": "every-rank" if rank < 0 else "nobody",
                }
            )
        write_manifest(tmp_path / "run" / "1", 1, 1, shards, kind="ddp")
        state, step = checkpointer.load(step=1)
        assert (int(state["w"][0]), step, checkpointer.source) == (1, 1, "disk")
        assert agent.packets("restore") == []
        assert checkpointer.save(2, {"w": torch.zeros(9)}, storage=Storage.MEMORY).wait_committed()
        assert [packet["branch"] for packet in agent.packets("sealed") if packet["page"] == "main"] == [0, 0, 1]
        checkpointer.close()


# --- steps()


def test_what_is_stored_is_listed(folder):
    """Newest first, by the order in which it was stored; without an agent, and without a process group."""
    listed = Checkpointer(folder).steps()
    assert [(each.step, each.timeline, each.sequence, each.path) for each in listed] == [
        (20, 1, 4, f"{folder}/20.4"),
        (15, 1, 3, f"{folder}/15"),
        (20, 0, 2, f"{folder}/20"),
        (10, 0, 1, f"{folder}/10"),
    ]
    shard = folder / "20.4" / "rank_0.pt"
    assert listed[0] == StoredStep(20, 1, 4, 1, 1, 1_700_000_000.5, shard.stat().st_size, f"{folder}/20.4", "full")
    assert Checkpointer(folder / "none").steps() == []


def test_what_does_not_count_is_not_listed(folder, agent, make):
    """Nor what a manifest of some other hand leaves out. A rank under an agent sees the same."""
    (folder / "30").mkdir()
    (folder / "15" / "manifest.json").write_bytes((folder / "15" / "manifest.json").read_bytes()[:-3])
    os.truncate(folder / "20" / "rank_0.pt", 100)
    place(folder / "10", written_unix_ms="long ago")
    agent.new_life()
    for checkpointer in (Checkpointer(folder), make()):
        assert [each.path for each in checkpointer.steps()] == [f"{folder}/20.4"]


# --- delete()

TRACKERS = ("latest", "dlrover_latest.txt", "latest_checkpointed_iteration.txt")


def paths(folder):
    return [Path(each.path).name for each in Checkpointer(folder).steps()]


def track(folder, name):
    for tracker in TRACKERS:
        (folder / tracker).write_text(name if tracker == "latest" else name.partition(".")[0])


def tracked(folder):
    return [(folder / tracker).read_text() if (folder / tracker).exists() else None for tracker in TRACKERS]


def test_a_step_is_deleted_in_one_timeline_or_in_all(folder):
    checkpointer = Checkpointer(folder)
    assert checkpointer.delete(20, timeline=0) is True
    assert paths(folder) == ["20.4", "15", "10"] and not (folder / "20").exists()
    assert checkpointer.delete(20, timeline=0) is False
    place(folder / "15", step=20)  # of another name, as by hand: it does not count, and stays
    assert checkpointer.delete(20) is True
    assert paths(folder) == ["10"] and (folder / "15" / "rank_0.pt").exists()
    assert checkpointer.delete(20) is checkpointer.delete(30) is False


def test_trackers_name_the_newest_step_that_is_left(folder):
    checkpointer = Checkpointer(folder)
    track(folder, "20.4")
    assert checkpointer.delete(10) and tracked(folder) == ["20.4", "20", "20"]
    assert checkpointer.delete(20, timeline=1) and tracked(folder) == ["15", "15", "15"]
    (folder / TRACKERS[1]).unlink()
    assert checkpointer.delete(15) and tracked(folder) == ["20", None, "20"], "none is made"
    assert checkpointer.delete(20) and tracked(folder) == [None, None, None]
    assert os.listdir(folder / ".writing") == []


def test_a_step_that_is_stored_meanwhile_is_what_trackers_name(folder, monkeypatch):
    """Whose writer has replaced `latest` between two looks at the directory."""
    from phalanx.checkpoint import stored

    track(folder, "20.4")
    replace = stored._replace

    def late(directory, tracker, newest):
        if not (folder / "40").exists():
            shutil.copytree(folder / "10", folder / "40")
            place(folder / "40", step=40, sequence=9)
            track(folder, "40")
        replace(directory, tracker, newest)

    monkeypatch.setattr(stored, "_replace", late)
    assert Checkpointer(folder).delete(20)
    assert tracked(folder) == ["40", "40", "40"]


def test_a_step_whose_deletion_ends_at_any_moment_is_whole_or_none(folder, monkeypatch, tmp_path):
    """And trackers name one that is whole."""
    track(folder, "20.4")
    shutil.copytree(folder, tmp_path / "template")
    calls = ("unlink", "rmdir", "rename", "fsync")

    def dies_at(count):
        left = iter(range(count, 0, -1))

        def dying(call):
            def wrapper(*arguments, **options):
                if next(left, 0) == 0:
                    raise KeyboardInterrupt
                return call(*arguments, **options)

            return wrapper

        with monkeypatch.context() as patched:
            for name in calls:
                patched.setattr(os, name, dying(getattr(os, name)))
            return Checkpointer(folder).delete(20, timeline=1)

    seen = set()
    for count in range(100):
        try:
            assert dies_at(count)
        except KeyboardInterrupt:
            there = "20.4" in paths(folder)
            seen.add(there)
            for each in Checkpointer(folder).steps():
                assert loaded(folder, step=each.step, timeline=each.timeline)[1] == each.step
            assert (folder / "latest").read_text() in paths(folder)
            # Who reads the manifest finds all that it names.
            assert (folder / "20.4" / "manifest.json").exists() == there
            shutil.rmtree(folder)
            shutil.copytree(tmp_path / "template", folder)
            continue
        break
    assert count > 8 and seen == {True, False}
    assert paths(folder) == ["15", "20", "10"]


def test_a_deletion_that_was_cut_off_is_gone_on_with(tmp_path):
    """It counts no more, whoever asks; the next call takes what is left, and nothing of others."""
    folder = tmp_path / "1"
    folder.mkdir()
    for name in ("model.pt", "optimizer_0.pt"):
        (folder / name).write_bytes(b"x" * 100)
    shards = [
        {"rank": 0, "file": name, "bytes": 100, "crc32": 0, "needed_by": "any-rank"}
        for name in ("model.pt", "optimizer_0.pt")
    ]
    write_manifest(folder, 1, 1, shards, kind="files", layout="files")
    (folder / "manifest.json").rename(folder / ".deleted.json")
    (folder / "notes.txt").write_text("of others")
    assert Checkpointer(tmp_path).steps() == []
    assert not stored.delete(str(tmp_path), 1)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_of_many_calls_at_once_one_deletes(folder):
    template = (folder / "10").rename(folder / "template")
    for step in range(100, 130):
        shutil.copytree(template, folder / str(step))
        place(folder / str(step), step=step, sequence=step)
    track(folder, "129")
    barrier, found = threading.Barrier(4), []

    def delete():
        checkpointer = Checkpointer(folder)
        for step in range(129, 99, -1):
            barrier.wait(60)
            found.append((step, checkpointer.delete(step)))

    threads = [threading.Thread(target=delete) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(step for step, deleted in found if deleted) == list(range(100, 130))
    assert paths(folder) == ["20.4", "15", "20"] and tracked(folder)[0] == "20.4"


def test_files_of_others_and_steps_on_their_way_stay(folder):
    (folder / "10" / "notes.txt").write_text("mine")
    (folder / "10.8").mkdir()
    (folder / "10.8" / "rank_0.pt").write_text("still being written")
    assert Checkpointer(folder).delete(10)
    assert os.listdir(folder / "10") == ["notes.txt"] and (folder / "10.8" / "rank_0.pt").exists()


def test_what_cannot_be_deleted_is_told(folder, monkeypatch):
    def refused(path, **unused):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "unlink", refused)
    with pytest.raises(RuntimeError, match=rf"step 10 of {folder} is not deleted: {folder}/10: Permission denied"):
        Checkpointer(folder).delete(10)
    for wrong in (None, -1, "10", True):
        with pytest.raises(ValueError, match=rf"phalanx.checkpoint: step is {wrong!r}; expected"):
            Checkpointer(folder).delete(wrong)


# --- the page for users


def snippets(heading):
    """The Python of a section of docs/checkpoint.md, block by block."""
    page = (Path(__file__).parent.parent / "docs" / "checkpoint.md").read_text()
    section = page.split(f"\n## {heading}\n")[1].partition("\n## ")[0]
    return [block.partition("\n```")[0] for block in section.split("```python\n")[1:]]


def test_the_line_of_the_documentation_about_devices_runs(folder):
    lines = snippets("Where tensors are loaded to")[0]
    names = {"ckpt": Checkpointer(folder)}
    exec(lines.replace('"cuda:0"', '"cpu"'), names)
    assert names["done"] == 20 and names["state"]["w"].device.type == "cpu" and "cuda:0" in lines


def test_the_lines_of_the_documentation_about_named_steps_run(folder):
    for step in (10, 20):
        place(folder / str(step), step=10 * step)
        (folder / str(step)).rename(folder / str(10 * step))
    names = {"ckpt": Checkpointer(folder)}
    newest, of_timeline = snippets("A step by its number")
    for lines in (newest, of_timeline):
        exec(lines, names)
        assert (names["done"], int(names["state"]["w"][0])) == (100, 1)


def test_the_lines_of_the_documentation_about_on_stored_run(agent, make, capsys):
    with make() as checkpointer:
        names = {"ckpt": checkpointer, "done": 6, "state": {"w": torch.ones(3)}, "Storage": Storage}
        exec(snippets("What became of a save on disk")[0], names)
    assert capsys.readouterr().out == "step 7: stored\n"


def test_the_lines_of_the_documentation_about_what_is_stored_run(folder, capsys):
    exec(snippets("What is stored")[0], {"ckpt": Checkpointer(folder), "time": time})
    first = capsys.readouterr().out.splitlines()[0]
    size = (folder / "20.4" / "rank_0.pt").stat().st_size
    assert first == f"20 1 {size} {time.ctime(1_700_000_000)} {folder}/20.4"


def test_the_lines_of_the_documentation_about_deleting_run(folder):
    (folder / "10").rename(folder / "1000")
    place(folder / "1000", step=1000)
    exec(snippets("Deleting a step")[0], {"ckpt": Checkpointer(folder)})
    assert paths(folder) == ["20.4", "1000"]
