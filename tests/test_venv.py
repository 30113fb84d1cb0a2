"""tools/venv.py: environments from a cache, for several clones at once."""

import hashlib
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import venv as venv_tool  # noqa: E402

pytestmark = pytest.mark.slow


def make_wheel(folder, version, name="probe", needs=""):
    """A package with one module and one command."""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}.py", f"def main():\n    print('{name} {version}')\n")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/entry_points.txt", f"[console_scripts]\n{name} = {name}:main\n")
        file.writestr(f"{info}/RECORD", "")


# What stops pip before it writes the command.
HOOK = """\
import signal, sys

def stop(event, arguments):
    if event == "open" and str(arguments[0]).endswith("/bin/probe") and "w" in (arguments[1] or ""):
        open({begun!r}, "w").close()
        signal.pause()

sys.addaudithook(stop)
"""


class Place:
    """A cache, some wheels and clones that want the same requirements."""

    def __init__(self, folder):
        self.folder = folder
        self.cache = folder / "cache"
        self.requirements = folder / "requirements.txt"
        for version in ("1.0", "2.0"):
            make_wheel(folder, version)
        self.require("1.0")

    def require(self, version):
        self.requirements.write_text(f"# what a clone needs\nprobe=={version}  # why\n")

    def start(self, clone, offline=False, over=(), **more):
        venv = self.folder / clone / ".venv"
        links = self.folder / "nothing" if offline else self.folder
        environment = dict(os.environ, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(links), **more)
        command = [sys.executable, ROOT / "tools" / "venv.py", "--venv", venv, "--cache", self.cache]
        command += [part for venv in over for part in ("--over", venv)]
        return subprocess.Popen(
            [*command, "--requirements", self.requirements], env=environment, start_new_session=True
        )

    def prepare(self, clone, offline=False, over=()):
        assert self.start(clone, offline, over).wait() == 0
        return self.folder / clone / ".venv"

    def interrupt(self, clone):
        """Starts as `start` does, and interrupts pip between a package and its command, as Ctrl-C would."""
        os.mkfifo(self.folder / "begun")
        (self.folder / "hook").mkdir()
        (self.folder / "hook" / "sitecustomize.py").write_text(HOOK.format(begun=str(self.folder / "begun")))
        process = self.start(clone, PYTHONPATH=str(self.folder / "hook"))
        try:
            with open(self.folder / "begun") as begun:
                begun.read()
        finally:  # of this test's time, too: pip would wait for ever
            os.killpg(process.pid, signal.SIGINT)
        assert process.wait() != 0
        return self.folder / clone / ".venv"

    def entries(self):
        return [path for path in self.cache.iterdir() if path.is_dir() and not path.name.startswith(venv_tool.BARE)]


def said_by(venv):
    return subprocess.run([venv / "bin" / "probe"], capture_output=True, text=True, check=True).stdout.strip()


def module_of(venv):
    return next(venv.glob("lib/python3*/site-packages/probe.py"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """The cache's entry of a Python with pip alone."""
    folder = tmp_path_factory.mktemp("bare")
    with venv_tool.unfinished(folder / "venv"):
        venv_tool.make_bare(folder / "venv", folder / "cache")
    return next(path for path in (folder / "cache").iterdir() if path.is_dir())


@pytest.fixture
def place(tmp_path, bare):
    (tmp_path / "cache").mkdir()
    venv_tool.copy_tree(bare, tmp_path / "cache" / bare.name)
    return Place(tmp_path)


def test_pip_itself_is_made_once(tmp_path):
    place = Place(tmp_path)  # with an empty cache
    pips = []
    for clone, version in (("one", "1.0"), ("two", "2.0")):
        place.require(version)
        venv = place.prepare(clone)
        assert said_by(venv) == f"probe {version}"
        assert not (venv / venv_tool.UNFINISHED).exists()
        pips.append(next(venv.glob("lib/python3*/site-packages/pip/__init__.py")))
    assert pips[0].samefile(pips[1])


def test_second_clone_gets_its_own_by_links(place):
    first = place.prepare("one")
    assert said_by(first) == "probe 1.0"
    site = module_of(first).parent
    (site / "phalanx").symlink_to("../../../../python/phalanx")  # what ./run adds later
    second = place.prepare("two", offline=True)
    assert said_by(second) == "probe 1.0"
    assert (second / "bin" / "probe").read_text().startswith(f"#!{second}/bin/python")
    assert module_of(second).samefile(module_of(first))
    subprocess.run([second / "bin" / "python", "-m", "pip", "--version"], check=True, capture_output=True)


@pytest.mark.parametrize(("first", "second"), [("one", "the second"), ("the first", "two"), ("x" * 120, "the second")])
def test_commands_start_wherever_a_clone_lies(place, first, second):
    """Made by pip in one place, taken from the cache in another."""
    assert said_by(place.prepare(first)) == "probe 1.0"
    assert said_by(place.prepare(second, offline=True)) == "probe 1.0"


def test_present_environment_is_left_alone(place):
    venv = place.prepare("one")
    before = module_of(venv).stat()
    place.prepare("one", offline=True)
    assert module_of(venv).stat() == before


def test_environment_made_by_hand_is_adopted_without_the_clones_own(place):
    venv = place.folder / "one" / ".venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    pip = [venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-index"]
    subprocess.run([*pip, place.folder / "probe-1.0-py3-none-any.whl"], check=True)
    (next(venv.glob("lib/python3*/site-packages")) / "phalanx").symlink_to("../../../../python/phalanx")
    (venv / "bin" / "phalanx-run").write_text("#!/bin/sh\n")
    place.prepare("one", offline=True)
    second = place.prepare("two", offline=True)
    assert said_by(second) == "probe 1.0"
    assert not (second / "bin" / "phalanx-run").exists()
    assert not (module_of(second).parent / "phalanx").is_symlink()


def test_changed_requirements_do_not_touch_other_clones(place):
    first, second = place.prepare("one"), place.prepare("two")
    place.require("2.0")
    place.prepare("one")
    assert (said_by(first), said_by(second)) == ("probe 2.0", "probe 1.0")
    assert len(place.entries()) == 2


def test_an_interrupted_environment_is_made_anew(place):
    """Its Python starts and pip takes the package for installed, but the command is missing."""
    venv = place.interrupt("one")
    assert module_of(venv).exists()
    assert place.entries() == []
    assert said_by(place.prepare("one")) == "probe 1.0"
    assert said_by(place.prepare("two", offline=True)) == "probe 1.0"


def test_an_interrupted_update_is_not_taken_for_the_old_environment(place):
    place.prepare("one")
    place.require("2.0")
    place.interrupt("one")
    place.require("1.0")
    assert said_by(place.prepare("one", offline=True)) == "probe 1.0"


def test_a_present_environment_of_other_requirements_gives_way_to_the_cache(place):
    first = place.prepare("one")
    place.require("2.0")
    place.prepare("two")
    place.prepare("one", offline=True)
    assert said_by(first) == "probe 2.0"


def test_no_other_clone_gets_what_older_requirements_left(place):
    make_wheel(place.folder, "1.0", "upper")
    place.requirements.write_text("probe==1.0\nupper==1.0\n")
    first = place.prepare("one")
    place.require("2.0")
    place.prepare("one")
    assert said_by(first) == "probe 2.0"
    assert said_by(place.prepare("two")) == "probe 2.0"
    assert not (module_of(place.folder / "two" / ".venv").parent / "upper.py").exists()
    assert len(place.entries()) == 2


def test_an_environment_over_another_has_only_what_that_has_not(place):
    make_wheel(place.folder, "1.0", "upper", needs="Requires-Dist: probe\n")
    below = place.prepare("below")
    place.requirements.write_text("upper==1.0\n")
    code = "import probe, upper; probe.main(); upper.main()"
    for clone in ("one", "two"):
        venv = place.prepare(clone, offline=clone == "two", over=[below])
        said = subprocess.run([venv / "bin" / "python", "-c", code], capture_output=True, text=True, check=True).stdout
        assert said.split("\n")[:2] == ["probe 1.0", "upper 1.0"]
        assert not list(venv.glob("lib/python3*/site-packages/probe*"))


def lock_text(wheel, digest=None):
    digest = digest or hashlib.sha256(wheel.read_bytes()).hexdigest()
    return f"probe==1.0 \\\n    --hash=sha256:{digest}\n"


def test_a_lock_is_held_to_its_hashes(place):
    wheel = place.folder / "probe-1.0-py3-none-any.whl"
    place.requirements.write_text(lock_text(wheel))
    assert said_by(place.prepare("one")) == "probe 1.0"
    place.requirements.write_text(lock_text(wheel, "0" * 64))
    assert place.start("two").wait() != 0
    assert not (place.folder / "two" / ".venv" / venv_tool.STAMP).exists()
    assert len(place.entries()) == 1


def test_a_lock_names_everything(place):
    """What it leaves out is not taken as it comes."""
    make_wheel(place.folder, "1.0", "upper", needs="Requires-Dist: probe\n")
    text = lock_text(place.folder / "upper-1.0-py3-none-any.whl")
    place.requirements.write_text(text.replace("probe==", "upper=="))
    assert place.start("one").wait() != 0


def test_a_lock_over_another_environment_leaves_out_what_that_has(place):
    make_wheel(place.folder, "1.0", "upper", needs="Requires-Dist: probe\n")
    below = place.prepare("below")
    text = lock_text(place.folder / "upper-1.0-py3-none-any.whl")
    place.requirements.write_text(text.replace("probe==", "upper=="))
    venv = place.prepare("one", over=[below])
    subprocess.run([venv / "bin" / "python", "-c", "import probe, upper"], check=True)


def test_what_lies_below_decides_too(tmp_path):
    keys = []
    for below in ("one", "another"):
        (tmp_path / below).mkdir()
        (tmp_path / below / venv_tool.STAMP).write_text(f"{below} {tmp_path / below}\n")
        keys.append(venv_tool.environment_key(Path(__file__), tmp_path / below))
    assert len({venv_tool.environment_key(Path(__file__)), *keys}) == 3


def test_what_a_killed_run_left_is_cleared_away(place):
    venv = place.prepare("one")
    key = place.entries()[0].name
    (place.cache / f".tmp-{key}-left").mkdir()
    (venv / ".phalanx-environment").unlink()
    (venv / "bin" / "python").unlink()
    assert said_by(place.prepare("one", offline=True)) == "probe 1.0"
    assert [path.name for path in place.entries()] == [key]


def stale_entry(cache, name):
    entry = cache / name
    (entry / "lib").mkdir(parents=True)
    os.utime(str(entry), (0, 0))
    return entry


def test_an_entry_that_no_clone_took_for_a_month_goes(tmp_path):
    mine, old, left = (stale_entry(tmp_path, name) for name in ("mine", "old", ".tmp-gone-x1"))
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    venv_tool.drop_stale(tmp_path, "mine")
    assert (mine.exists(), old.exists(), left.exists(), fresh.exists()) == (True, False, False, True)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".tmp-")] == []


@pytest.mark.parametrize("name", ["old", ".tmp-old-x1"])
def test_an_entry_that_somebody_works_with_stays(tmp_path, name):
    """A clone that takes it holds the lock of its key; half of it would be gone."""
    entry = stale_entry(tmp_path, name)
    with venv_tool.locked(tmp_path / "old.lock"):
        venv_tool.drop_stale(tmp_path, "mine")
        assert (entry / "lib").exists()
    venv_tool.drop_stale(tmp_path, "mine")
    assert not entry.exists()


def test_an_entry_goes_in_one_step(tmp_path, monkeypatch):
    """Where its removal is interrupted, no clone takes what is left for an environment."""
    entry = stale_entry(tmp_path, "old")
    monkeypatch.setattr(venv_tool.shutil, "rmtree", lambda *_, **__: None)
    venv_tool.drop_stale(tmp_path, "mine")
    assert not entry.exists()


def test_clones_at_the_same_time_make_one_entry(place):
    running = [place.start(f"clone{number}") for number in range(3)]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert {said_by(place.folder / f"clone{number}" / ".venv") for number in range(3)} == {"probe 1.0"}
    inodes = {module_of(place.folder / f"clone{number}" / ".venv").stat().st_ino for number in range(3)}
    assert len(inodes) == 1
    assert len(place.entries()) == 1
