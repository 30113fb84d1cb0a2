"""tools/torches.py: which rows run, and that none is passed over in silence."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import callers, torches  # noqa: E402
from tools.suite.report import Result  # noqa: E402

OURS = "{}.{}".format(*sys.version_info[:2])


def test_interpreters_are_asked_who_they_are(tmp_path):
    """A name on PATH may be a script for a Python that is not there. One given by hand goes first."""
    (tmp_path / "python3.8").write_text("#!/bin/sh\nexit 127\n")
    (tmp_path / "given").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for name in ("python3.8", "given"):
        (tmp_path / name).chmod(0o755)
    found = torches.interpreters([tmp_path / "given", tmp_path / "none"], ["3.8", OURS], str(tmp_path))
    assert list(found) == [OURS]
    assert os.path.samefile(found[OURS], sys.executable)


@pytest.mark.parametrize("row", torches.ROWS, ids=lambda row: row.name)
def test_rows_are_pinned(row):
    """An environment is kept by what its requirements say: they must say all that makes a difference."""
    assert all(line.count("==") == 1 for line in row.requirements.splitlines())


@pytest.fixture
def run(tmp_path):
    """Runs tools/torches.py of a copy: in this clone the tests run already."""
    shutil.copytree(ROOT / "tools", tmp_path / "tools", ignore=shutil.ignore_patterns("__pycache__"))

    def run(*words):
        command = [sys.executable, tmp_path / "tools/torches.py", *words]
        return subprocess.run(command, env={"PATH": "/nowhere", "HOME": "/"}, capture_output=True, text=True)

    return run


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--only", "nonsense"], "--only nonsense: no row has that; there are python3.8-torch2.2.2, "),
        (["--python", "/nowhere"], "--python /nowhere is no Python that can make virtual environments"),
    ],
)
def test_what_is_no_row_and_no_python_is_refused(run, words, says):
    done = run(*words)
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr


def test_one_run_at_a_time(run, tmp_path):
    (tmp_path / "build").mkdir()
    with open(tmp_path / "build" / ".test.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = run("--only", "python3.8-")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("test: another ./run test works in this clone")


def test_left_out_rows_are_named_and_nothing_run_is_no_success(run):
    done = run("--only", "python3.8-")
    assert done.returncode == 1
    rows = [line for line in done.stdout.splitlines() if line.startswith("3.8 ")]
    assert len(rows) == sum(row.python == "3.8" for row in torches.ROWS)
    assert all("left out: no python3.8 on PATH" in row for row in rows)
    assert done.stdout.endswith("\n0 passed, 0 failed, 0 skipped\n")


def test_every_test_of_the_bootstrap_meets_other_pythons():
    there = {f"tests/{path.name}" for path in (ROOT / "tests").glob("test_bootstrap_*.py")}
    assert there and there <= set(torches.TESTS)
    assert all((ROOT / name.partition("::")[0]).is_file() for name in torches.TESTS)


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ([], ["tests/a.py", "tests/b.py::test_c"]),
        (["-k", "warm"], ["tests/a.py", "tests/b.py::test_c", "-k", "warm"]),
        (["--ignore=tests/a.py"], ["tests/a.py", "tests/b.py::test_c", "--ignore=tests/a.py"]),
        (["-x", "tests/d.py"], ["-x", "tests/d.py"]),
        (["tests/d.py::test_e[f]"], ["tests/d.py::test_e[f]"]),
    ],
)
def test_arguments_choose_among_these_tests_unless_they_name_others(arguments, given):
    """`-k warm` alone would have pytest collect all of tests/, under a Python that they are not written for."""
    assert torches.with_tests(arguments, ("tests/a.py", "tests/b.py::test_c")) == given


@pytest.mark.parametrize("tool", [torches, callers], ids=lambda tool: tool.__name__)
def test_both_tools_keep_their_tests_beside_other_arguments(tool, monkeypatch, tmp_path):
    ran = []
    monkeypatch.setattr(tool, "prepare", lambda *_: tmp_path)
    monkeypatch.setattr(torches, "run_pytest", lambda name, venv, report, arguments: ran.append(arguments) or Result())
    if tool is torches:
        torches.run_row(torches.ROWS[0], "python", tmp_path, ["-k", "warm"])
    else:
        callers.run(["-k", "warm"], tmp_path)
    assert ran == [[*tool.TESTS, "-k", "warm"]]
