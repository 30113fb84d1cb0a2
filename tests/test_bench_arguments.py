"""Benchmarks: a flag's value that makes no sense ends each of them with a sentence and status 2, before it measures."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parent.parent / "bench"
# What no flag that is checked takes; a folder, a note and a file for numbers may have any name.
NONSENSE = {"--who": ["nonsense", "phalanx,", ""], "--shapes": ["abc", "2x", "0x4", "1x2:odd"]}
NUMBER = ["abc", "-1", "1e", "inf"]
ANYTHING = {"--json", "--dir", "--bin", "--note", "--run", "--render", "--no-cut"}


def flags(text):
    return dict.fromkeys(re.findall(r'add_argument\(\s*"(--[a-z-]+)"', text))


def found_cases():
    for path in sorted(BENCH.glob("*.py")):
        for flag in flags(path.read_text()):
            if flag not in ANYTHING:
                yield path.name, flag


CASES = list(found_cases())


def ends_with_a_sentence(name, *arguments):
    answer = subprocess.run([sys.executable, BENCH / name, *arguments], capture_output=True, text=True, timeout=60)
    last = answer.stderr.splitlines()[-1]
    assert answer.returncode == 2, answer.stderr
    assert "Traceback" not in answer.stderr
    assert re.match(rf"{re.escape(name)}: error: \S.*", last)
    assert not answer.stdout
    return last


def test_all_kinds_are_met():
    met = {flag for _, flag in CASES}
    assert {"--who", "--shapes", "--rounds", "--settle", "--kills", "--seed"} <= met
    assert len(CASES) > 40


@pytest.mark.parametrize(("name", "flag"), CASES)
def test_nonsense(name, flag):
    value = NONSENSE.get(flag, NUMBER)[0]
    said = ends_with_a_sentence(name, f"{flag}={value}")
    assert flag in said
    assert value in said


@pytest.mark.parametrize("name", ["checkpoint_save.py", "recovery.py"])
def test_other_nonsense(name):
    for flag, values in {**NONSENSE, "--limit": NUMBER, "--rounds": NUMBER}.items():
        for value in values[1:]:
            assert flag in ends_with_a_sentence(name, f"{flag}={value}")


def test_a_benchmark_that_is_not_there():
    assert "nonsense" in ends_with_a_sentence("report.py", "nonsense")
