"""./run sim's program: what it says, and how it ends."""

import re
import subprocess

import pytest
from harness import ROOT

BIN = ROOT / "build" / "release" / "bin"


def sim(*flags, program="phalanx-sim"):
    return subprocess.run([BIN / program, *flags], capture_output=True, text=True, timeout=60, check=False)


def test_many_seeds_end_with_a_summary():
    answer = sim("--seeds", "600", "--from", "100")
    assert answer.returncode == 0, answer.stdout
    assert re.search(r"^600 seeds from 100, \d+ events in [\d.]+ s \(\d+ events/s\), 0 failed", answer.stdout, re.M)
    assert "500 of 600 seeds" in answer.stderr


def test_a_story_has_one_line_an_event():
    lines = sim("--seed", "42", "--explain").stdout.splitlines()
    assert len(lines) > 20
    times = [float(line.split()[0]) for line in lines[:-2]]
    assert times == sorted(times)
    assert any(" tells node" in line and ": " in line for line in lines)
    assert lines[-1].startswith("seed 42: ok")


def test_a_planted_bug_is_listed_with_its_command_shrunk_and_told():
    plant = ["--plant", "change-is-charged"]
    many = sim("--seeds", "50", *plant, program="phalanx-sim-planted")
    assert many.returncode == 1
    seed = re.search(r"\(\./run sim --seed (\d+) --shrink --plant change-is-charged\)", many.stdout).group(1)
    story = sim("--seed", seed, "--shrink", *plant, program="phalanx-sim-planted")
    assert story.returncode == 1
    assert "VIOLATED  membership-is-free" in story.stdout
    assert re.search(r"^shrunk from \d+ faults to \d+:$", story.stdout, re.M)
    assert sim("--seed", seed).returncode == 0, "the same seed without the bug"


def test_plants_are_listed():
    names = {line.split()[0] for line in sim("--list-plants", program="phalanx-sim-planted").stdout.splitlines()}
    assert len(names) >= 10
    assert "missing-epoch-check" in names


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--seeds", "0"], "--seeds: '0' is no number from 1 to 1000000000000"),
        (["--from", "-1"], "--from: '-1' is no number from 0 to"),
        (["--seed", "x"], "--seed: 'x' is no number from 0 to"),
        (["--explain"], "--explain requires --seed"),
        (["--seed", "1", "--seeds", "2"], "--seeds excludes --seed"),
        (["--plant", "lost-reply"], "--plant=lost-reply: there is none of that name"),
        (["--bogus"], "--bogus"),
    ],
)
def test_wrong_flags_are_named(flags, said):
    answer = sim(*flags)
    assert answer.returncode == 2
    assert answer.stderr.startswith("phalanx-sim: ")
    assert said in answer.stderr
