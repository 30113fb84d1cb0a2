"""tools/torches.py and tools/callers.py: which rows and environments run, and that none is passed over in silence."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import callers, deepspeeds, lock, torches  # noqa: E402
from tools.suite import skips  # noqa: E402
from tools.suite.programs import NOTHING_COLLECTED  # noqa: E402
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


@pytest.fixture
def ran(monkeypatch, tmp_path):
    """[(name, arguments)] of each pytest that a tool would run in an environment."""
    found = []

    def run_pytest(name, venv, report, arguments, may_be_none=False):
        found.append((name, arguments))
        return Result(passed=1)

    for tool in (torches, callers):
        monkeypatch.setattr(tool, "prepare", lambda *_: tmp_path)
    monkeypatch.setattr(torches, "run_pytest", run_pytest)
    return found


def test_a_row_keeps_its_tests_beside_other_arguments(ran, tmp_path):
    torches.run_row(torches.ROWS[0], "python", tmp_path, ["-k", "warm"])
    assert ran == [(torches.ROWS[0].name, [*torches.TESTS, "-k", "warm"])]


OF_SWIFT, OTHER = "tests/test_ms_swift.py", "tests/test_fabric_checkpoint.py"
OF_FOUR, ALL_OF_FOUR = "tests/test_huggingface_checkpoint.py", [*callers.FOUR.tests]


@pytest.mark.parametrize(
    ("given", "newest", "guide", "four"),
    [
        ([], [*callers.TESTS], [OF_SWIFT], ALL_OF_FOUR),
        (["--seed=7"], [*callers.TESTS, "--seed=7"], [OF_SWIFT, "--seed=7"], [*ALL_OF_FOUR, "--seed=7"]),
        (["-k", "warm"], [*callers.TESTS, "-k", "warm"], [OF_SWIFT, "-k", "warm"], [*ALL_OF_FOUR, "-k", "warm"]),
        ([f"{OF_SWIFT}::test_a", "-x"], [f"{OF_SWIFT}::test_a", "-x"], [f"{OF_SWIFT}::test_a", "-x"], None),
        ([OTHER, OF_SWIFT, "-n", "2"], [OTHER, OF_SWIFT, "-n", "2"], [OF_SWIFT, "-n", "2"], None),
        ([OTHER, OF_FOUR], [OTHER, OF_FOUR], None, [OF_FOUR]),
        ([OTHER], [OTHER], None, None),
    ],
)
def test_tests_run_in_each_environment_that_has_them(ran, monkeypatch, tmp_path, given, newest, guide, four):
    monkeypatch.setattr(callers.sys, "version_info", (3, 11, 2))
    result = callers.run(given, tmp_path)
    older = [("callers-ms-swift", guide), ("callers-transformers-4", four)]
    wanted = [("callers", newest), *((name, words) for name, words in older if words)]
    assert ran == wanted and result.passed == len(wanted)


def test_a_python_without_the_torch_of_the_guide_is_told(ran, monkeypatch, tmp_path):
    monkeypatch.setattr(callers.sys, "version_info", (3, 14, 0))
    result = skips.check(callers.run([], tmp_path), skips.read())
    assert [name for name, _ in ran] == ["callers"] and not result.failed
    assert result.skipped == [
        (name, "torch 2.6.0 is not made for this Python") for name in ("callers-ms-swift", "callers-transformers-4")
    ]


@pytest.mark.parametrize(("words", "failed"), [(["-k", "lightning"], 0), ([], 1)])
def test_no_test_in_an_older_environment_fails_where_nobody_chose(monkeypatch, tmp_path, words, failed):
    """A pattern may fit tests of the newest one alone."""
    monkeypatch.setattr(callers, "prepare", lambda *_: tmp_path)
    monkeypatch.setattr(torches, "run", lambda *_, **__: NOTHING_COLLECTED)
    for older in (callers.GUIDE, callers.FOUR):
        assert len(callers.run_in(older, words, tmp_path).failed) == failed
    assert len(callers.run_in(callers.NEWEST, words, tmp_path).failed) == 1


def told_versions(page):
    """{package: [version in each column]} of a table in a page."""
    text = (ROOT / "docs" / "frameworks" / page).read_text()
    rows = re.findall(r"^\| (\S+) \| ([0-9.]+) \| ([0-9.]+) \|$", text, re.M)
    return {name: versions for name, *versions in rows}


def version_in(environment, package):
    name = environment.locks[-1]
    is_own = f"\n{package}==" in (lock.LOCKS / f"{name}.lock").read_text()
    return lock.version_of(package, name) if is_own else version_in(environment.over, package)


def versions_in(environments, packages):
    return {package: [version_in(each, package) for each in environments] for package in packages}


def test_the_page_of_ms_swift_tells_what_its_tests_run_with():
    packages = ("torch", "ms-swift", "transformers", "accelerate", "peft", "trl", "datasets")
    has = versions_in((callers.GUIDE, callers.NEWEST), packages)
    assert told_versions("ms-swift.md") == {**has, "deepspeed": [deepspeeds.VERSIONS[0]] * 2}
    assert has["torch"][0] == callers.GUIDE_TORCH


def test_the_page_of_hugging_face_tells_what_its_tests_run_with():
    has = versions_in((callers.FOUR, callers.NEWEST), ("torch", "transformers", "accelerate", "peft"))
    assert told_versions("huggingface.md") == has
    assert [version.split(".")[0] for version in has["transformers"]] == ["4", "5"]
