"""tools/together.py: commands beside each other, what they say, and that none outlives the others' failure."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import together  # noqa: E402


@pytest.fixture
def clone(tmp_path):
    """A folder with tools/setup.sh, where the commands run."""
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "setup.sh", tmp_path / "tools")
    return tmp_path


class Run:
    """together.py with a pipe, `alive`, that ends when the last process of its commands has ended: each holds it."""

    def __init__(self, clone, *commands):
        os.mkfifo(clone / "alive")
        # Without waiting for a writer; the commands open it and so find a reader.
        reader = os.open(clone / "alive", os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(reader, True)
        self.alive = open(reader, "rb")
        held = [command.replace(": ", ": exec 8> alive; ", 1) for command in commands]
        command = [sys.executable, ROOT / "tools" / "together.py", *held]
        self.process = subprocess.Popen(command, cwd=clone, stderr=subprocess.PIPE, text=True)

    def end(self):
        said = self.process.communicate(timeout=60)[1]
        return self.process.returncode, said


def test_all_that_succeed(clone):
    # Each waits for the other: they do run at the same time.
    os.mkfifo(clone / "there")
    os.mkfifo(clone / "back")
    status, said = Run(clone, "one: echo > there; read -r < back; say hello", "two: read -r < there; echo > back").end()
    assert status == 0
    assert said == "== hello\n"


def test_what_fails_ends_the_others_and_says_why(clone):
    os.mkfifo(clone / "begun")
    run = Run(
        clone,
        # Its own child, too, must be gone: it would wait for ever.
        "slow: mkfifo never; (echo > begun; read -r <> never); true",
        "broken: read -r < begun; echo '[1/2] Building a.o'; echo 'FAILED: a.o'; echo 'a.cc:1: error'; exit 7",
    )
    status, said = run.end()
    assert run.alive.read() == b""
    assert status == 7
    assert said.splitlines() == [
        "FAILED: a.o",
        "a.cc:1: error",
        "run: broken failed; all it said is in build/broken.log",
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interruption_ends_them_all_and_lets_them_clean_up(clone, number):
    os.mkfifo(clone / "begun")
    code = (
        "import signal\n"
        "try:\n    open('begun', 'w').close()\n    signal.pause()\n"
        "except KeyboardInterrupt:\n    open('clean', 'w').close()"
    )
    run = Run(clone, f'tidy: {sys.executable} -c "{code}"')
    with open(clone / "begun") as begun:
        begun.read()
    run.process.send_signal(number)
    status, said = run.end()
    assert run.alive.read() == b""
    assert status == 128 + number
    assert "interrupted" in said
    assert (clone / "clean").exists()


@pytest.mark.slow
def test_what_ignores_the_interruption_is_killed(clone):
    os.mkfifo(clone / "begun")
    run = Run(clone, "deaf: trap '' INT; mkfifo never; echo > begun; read -r <> never")
    with open(clone / "begun") as begun:
        begun.read()
    run.process.send_signal(signal.SIGINT)
    assert run.end()[0] == 128 + signal.SIGINT
    assert run.alive.read() == b""


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("[42/184] Building CXX object src/cli/CMakeFiles/phalanx.dir/phalanx.cc.o", "42/184 Building phalanx.cc"),
        ("[146/146] Linking CXX executable bin/phalanx-run", "146/146 Linking phalanx-run"),
        ("Collecting torch==2.15.0 (from -r tools/locks/dev.lock (line 9))", "Collecting torch==2.15.0"),
        (
            "  Downloading torch-2.15.0-cp311-linux.whl (873.1 MB)",
            "Downloading torch-2.15.0 (873.1 MB)",
        ),
        ("Installing collected packages: " + "a, " * 90 + "b", "Installing 91 packages"),
        ("now: configuring", "configuring"),
        ("cc1plus: all warnings being treated as errors", None),
    ],
)
def test_what_a_line_tells(line, told):
    assert together.progress_in(line) == told


def test_a_line_every_few_seconds(clone, monkeypatch, capsys):
    monkeypatch.chdir(clone)
    (clone / "build").mkdir()
    lane = together.start("busy", "echo '[1/9] Building x/a.cc.o'; read -r < /dev/null || true", clone / "build")
    lane.process.wait()
    while lane.read():
        pass
    clock = together.Clock()
    clock.say([lane])
    assert capsys.readouterr().err == ""
    clock.began, clock.due = clock.began - 65, clock.due - 65
    clock.say([lane])
    assert re.fullmatch(r"== 1:05  busy: 1/9 Building a\.cc\n", capsys.readouterr().err)


def test_what_is_under_way_is_told_with_its_time(clone, monkeypatch):
    """A compiler, found by its arguments in the lane's session; what other sessions compile is theirs."""
    monkeypatch.chdir(clone)
    (clone / "build").mkdir()
    os.mkfifo(clone / "go")
    assert together.compiling(os.getpid()) is None
    (clone / "cc").write_text("#!/bin/sh\necho '[203/386] Building x/a.cc.o'\nread -r line < go\n")
    (clone / "cc").chmod(0o755)
    lane = together.start("busy", "./cc -c src/slow.cc -o slow.o", clone / "build")
    lane.read()
    assert re.fullmatch(r"203/386 done; now slow\.cc \(\d+ s\)", lane.where())
    (clone / "go").write_text("\n")
    lane.process.wait()
    assert lane.where() == "203/386 Building a.cc"


def test_an_interrupted_build_says_how_far_it_came(clone):
    os.mkfifo(clone / "begun")
    run = Run(clone, "compile: mkfifo never; echo '[203/386] Building x/a.cc.o'; echo > begun; read -r <> never")
    with open(clone / "begun") as begun:
        begun.read()
    run.process.send_signal(signal.SIGINT)
    status, said = run.end()
    assert status == 128 + signal.SIGINT
    assert "== interrupted after 203 of 386; nothing is left running. What is finished is kept" in said
