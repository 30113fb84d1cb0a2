"""Files that the kernel watches for spares: each way to change one is noticed, and what changes nothing is not."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import clean_environment, command_path
from phalanx._bootstrap.watching import reads, standing
from test_bootstrap_changes import place as place  # the fixture
from zygote_agent import Agent

PYTHON = Path(__file__).parent.parent / "python"
OLD_NS = 1_600_000_000_000_000_000


@pytest.fixture
def folder(tmp_path):
    """A folder of a library with two files, one of which has another name elsewhere, as uv and conda make them."""
    package = tmp_path / "packages" / "library"
    package.mkdir(parents=True)
    (tmp_path / "cache").mkdir()
    for name in ("first.py", "second.py"):
        (package / name).write_text("number = 1\n")
    os.link(package / "second.py", tmp_path / "cache" / "second.py")
    return package


def seen_in(folder):
    return {(str(path), "file"): reads.look(str(path), "file") for path in sorted(folder.iterdir())}


@pytest.fixture
def watched(folder):
    files = seen_in(folder)
    made = standing.Standing(files)
    assert made.may_differ() == {}, "this machine's kernel watches none"
    yield made
    made.close()


def _append(path):
    with open(path, "ab") as file:
        file.write(b"#")


def _replace(path):
    path.with_suffix(".new").write_text("number = 2\n")
    path.with_suffix(".new").rename(path)


def _move_away(folder):
    """And puts files there that are as large and as old: the names still lead to some."""
    moved = folder.with_name("moved")
    folder.rename(moved)
    shutil.copytree(moved, folder)


def _link_elsewhere(folder):
    _move_away(folder)
    shutil.rmtree(folder)
    folder.symlink_to(shutil.copytree(folder.with_name("moved"), folder.with_name("other")))


CHANGES = {
    "written": lambda folder: _append(folder / "first.py"),
    "cut": lambda folder: os.truncate(folder / "first.py", 0),
    "replaced": lambda folder: _replace(folder / "first.py"),
    "removed": lambda folder: (folder / "first.py").unlink(),
    "moved": lambda folder: (folder / "first.py").rename(folder / "third.py"),
    "dated": lambda folder: os.utime(folder / "first.py", ns=(OLD_NS, OLD_NS)),
    "written by another name": lambda folder: _append(folder.parent.parent / "cache" / "second.py"),
    "written by a new name": lambda folder: (
        os.link(folder / "first.py", folder.parent / "new.py"),
        _append(folder.parent / "new.py"),
    ),
    "in a folder that was exchanged": _move_away,
    "in a folder that leads elsewhere": _link_elsewhere,
    "below a folder that was exchanged": lambda folder: _move_away(folder.parent),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_is_told(folder, watched, change):
    CHANGES[change](folder)
    assert len(watched.may_differ()) == 2
    assert len(watched.may_differ()) == 2, "who asks takes it away from others"


@pytest.mark.parametrize("what", ["link", "packages"])
def test_a_link_above_that_leads_elsewhere_is_told(folder, tmp_path, what):
    """Or the folder above the one that it leads to is another now. In those that were looked at nothing has changed."""
    packages = tmp_path / "above" / "packages"
    packages.parent.mkdir()
    folder.parent.rename(packages)
    shutil.copytree(packages.parent, tmp_path / "other")
    (tmp_path / "link").symlink_to(packages)
    made = standing.Standing(seen_in(tmp_path / "link" / folder.name))
    assert made.may_differ() == {}
    if what == "link":
        (tmp_path / "link").unlink()
        (tmp_path / "link").symlink_to(tmp_path / "other" / "packages")
    else:
        _move_away(packages.parent)
    assert len(made.may_differ()) == 2
    made.close()


MOUNTED_OVER = """
import subprocess, sys
from phalanx._bootstrap.watching import reads, standing
files = {(path, "file"): reads.look(path, "file") for path in sys.argv[2:]}
made = standing.Standing(files)
assert made.may_differ() == {}
subprocess.run(["mount", "-t", "tmpfs", "none", sys.argv[2].rpartition("/")[0] + "/none"], check=True)
assert made.may_differ() == {}, "of what is mounted elsewhere"
subprocess.run(["mount", "--bind", sys.argv[1], sys.argv[2].rpartition("/")[0]], check=True)
assert made.may_differ() == files
"""


def test_a_folder_that_is_mounted_over_is_told(folder, tmp_path):
    files = [path for path, _ in seen_in(folder)]
    (folder / "none").mkdir()
    other = shutil.copytree(folder, tmp_path / "other")
    run = ["unshare", "--mount", sys.executable, "-c", MOUNTED_OVER, str(other), *files]
    subprocess.run(run, env={**clean_environment(), "PYTHONPATH": str(PYTHON)}, check=True)


def test_what_changes_no_file_is_not(folder, watched):
    (folder / "third.py").write_text("")
    (folder / "__pycache__").mkdir()
    (folder / "first.py").read_bytes()
    os.stat(folder / "first.py")
    assert watched.may_differ() == {}


def test_what_had_changed_before_it_was_watched(folder):
    files = seen_in(folder)
    _append(folder / "first.py")
    made = standing.Standing(files)
    assert list(made.may_differ()) == [(str(folder / "first.py"), "file")]
    made.close()


def test_what_is_not_watched_is_to_be_looked_at(folder):
    """A link to a file, a file that is not there, and folders."""
    (folder / "link.py").symlink_to(folder / "first.py")
    others = {(str(folder / "link.py"), "file"), (str(folder / "none"), "file"), (str(folder), "names")}
    made = standing.Standing({**seen_in(folder), **{key: reads.look(*key) for key in others}})
    assert made.may_differ().keys() == others
    made.close()


def test_it_watches_anew_from_when_it_is_renewed(folder, watched):
    assert watched.renewed() is watched
    os.utime(folder / "first.py", ns=(OLD_NS, OLD_NS))
    info = os.stat(folder / "first.py")
    files = {(str(folder / "first.py"), "file"): (info.st_size, info.st_mtime_ns)}
    made = standing.Standing(files)
    os.chmod(folder / "first.py", 0o600)
    assert made.may_differ() == files
    new = made.renewed()
    assert new is not made and new.may_differ() == {}
    assert made.may_differ() == files, "one that was closed watches nothing"
    new.close()


def test_where_a_user_may_have_few_watches_none_is_taken(folder, monkeypatch):
    monkeypatch.setattr(standing, "_SHARE", 1 << 60)
    files = seen_in(folder)
    assert standing.Standing(files).may_differ() == files


def test_an_edit_between_two_forks_makes_both_afresh(place):
    """The zygote watches anew before the second: the first must be told all the same."""
    place.library(library="number = 1\n")
    place.start("import library\nprint(library.number)\n")
    first = place.agent.fork(ahead=True)
    (place.packages / "library.py").write_text("number = 22\n")
    second = place.agent.fork(ahead=True)
    for worker in (first, second):
        worker.run(place.script, cwd=place.folder, base=place.agent.env)
        cold = worker.messages()[0].get("cold")
        assert cold == f"{place.packages}/library.py has changed since it was imported"
        assert worker.result() == (0, "22\n", "")


def test_a_touch_that_changes_nothing_leaves_spares_warm(place):
    place.library(library="number = 1\n")
    place.start("import library, os\nprint(library.number, len(os.listdir('/proc/self/fd')))\n")
    first, lives = place.agent.fork(), []  # nothing was watched when that one was forked
    for _ in range(2):
        worker = place.agent.fork(ahead=True)
        os.chmod(place.packages / "library.py", 0o644)
        worker.run(place.script, cwd=place.folder, base=place.agent.env)
        lives.append((worker.messages()[0].get("cold"), worker.result()))
    first.run(place.script, cwd=place.folder, base=place.agent.env)
    assert lives == [(first.messages()[0].get("cold"), first.result())] * 2, "a rank keeps no descriptor of it"
    assert lives[0][0] is None


WATCHED = """
import os, phalanx, select, time
def watched():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
            links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue
        if parent == os.getppid() and "anon_inode:inotify" in links:
            return True
phalanx.step(1)
until = time.monotonic() + 60
while not watched() and time.monotonic() < until:
    select.select([], [], [], 0.05)
print("a spare is watched:", watched())
"""


def test_phalanx_run_has_spares_of_later_lives_watched(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(WATCHED)
    command = [command_path("phalanx-run"), "--standalone", "--nproc-per-node=1", script]
    done = subprocess.run(command, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout.split()[-1]) == (0, "True"), done


def test_torch_is_watched_whole(tmp_path):
    """All but a few of its files: the rest is what a rank looks at one by one."""
    script = tmp_path / "script.py"
    script.write_text("import torch\n")
    with Agent() as agent:
        assert agent.start_zygote(script)["type"] == "ready"
        spare = agent.fork(ahead=True)
        with open(f"/proc/{spare.pid}/fdinfo/{_inotify_of(spare.pid)}") as file:
            watches = sum(line.startswith("inotify ") for line in file)
    assert watches > 1_000


def _inotify_of(pid):
    fds = os.listdir(f"/proc/{pid}/fd")
    return next(fd for fd in fds if os.readlink(f"/proc/{pid}/fd/{fd}") == "anon_inode:inotify")
