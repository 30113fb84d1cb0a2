"""Runs the tests that meet other people's Pythons and torches, once for each row of a table.

Each row has a virtual environment of its own in build/torches, made by tools/venv.py and so kept in the same cache. The
commands of build/release are put beside its Python, as they are beside .venv's, and pytest runs with that Python. Rows
whose Python is not on this machine are left out, and named.
"""

import argparse
import dataclasses
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.suite import skips  # noqa: E402
from tools.suite.programs import NOTHING_COLLECTED, cache_folder, hear_signals, only_run, run, say  # noqa: E402
from tools.suite.report import Result, read_report  # noqa: E402

FOLDER = ROOT / "build" / "torches"
COMMANDS = ROOT / "build" / "release" / "bin"
# Of one row: each test has a limit of its own, this one is for what hangs between them.
LIMIT_S = 3 * 3600
# The last of pytest that runs under all of them.
PYTEST = ("pytest==8.3.5", "pytest-timeout==2.4.0", "pytest-xdist==3.6.1")
TESTS = (
    *("tests/test_store_compat.py", "tests/test_bootstrap_check.py", "tests/test_bootstrap_commands.py"),
    *("tests/test_bootstrap_console.py", "tests/test_bootstrap_full_disk.py"),
    *("tests/test_bootstrap_changes.py", "tests/test_bootstrap_generated.py", "tests/test_bootstrap_late.py"),
    *("tests/test_bootstrap_libraries.py", "tests/test_bootstrap_links.py"),
    *("tests/test_bootstrap_process.py", "tests/test_bootstrap_scan.py", "tests/test_bootstrap_search_path.py"),
    *("tests/test_bootstrap_standing.py", "tests/test_bootstrap_pages.py"),
    *("tests/test_bootstrap_start.py", "tests/test_bootstrap_steps.py"),
    "tests/test_bootstrap_torch.py",
    *("tests/test_bootstrap_memory.py", "tests/test_checkpoint_plan.py", "tests/test_checkpoint_save.py"),
    "tests/test_checkpoint_pickled.py",
    *("tests/test_checkpoint_overlap.py", "tests/test_checkpoint_cuda.py"),
    *("tests/test_bootstrap_zygote.py", "tests/test_warm.py", "tests/test_failures.py::test_one_death"),
    "tests/test_venv.py::test_changed_requirements_do_not_touch_other_clones",
)


@dataclasses.dataclass(frozen=True)
class Row:
    """A Python and the torch that runs in it, with what that torch needs and does not pin itself."""

    python: str
    torch: str
    extras: tuple

    @property
    def name(self):
        return f"python{self.python}-torch{self.torch}"

    @property
    def requirements(self):
        return "".join(f"{line}\n" for line in (f"torch=={self.torch}", *self.extras, *PYTEST))


# The oldest torch that our store serves, the newest, and between them those that changed its clients: the first with a
# libuv client by default (2.4), the first whose keys do not name the attempt (2.6), the first with queues (2.9).
ROWS = (
    Row("3.8", "2.2.2", ("numpy==1.24.4",)),
    Row("3.8", "2.4.1", ("numpy==1.24.4",)),
    # Its torchrun imports what its requirements forget.
    Row("3.9", "2.6.0", ("numpy==2.0.2", "importlib-metadata==8.5.0")),
    Row("3.10", "2.9.1", ("numpy==2.2.6",)),
    Row("3.12", "2.15.0", ("numpy==2.4.6",)),
    Row("3.13", "2.15.0", ("numpy==2.4.6",)),
)

# What every full run of the tests meets beside the newest torch: the oldest, under the Python of .venv.
OLDEST = Row("{}.{}".format(*sys.version_info[:2]), "2.2.2", ("numpy==1.26.4",))
OLDEST_TESTS = ("tests/test_store_compat.py", "tests/test_failures.py::test_one_death")


def version_of(python):
    """(version, path) of an interpreter that can make environments, asked of itself: names may be scripts of a version
    manager for a Python that is not there. None where it does not answer."""
    code = "import ensurepip, sys; print('%d.%d' % sys.version_info[:2], sys.executable)"
    try:
        answer = subprocess.run([python, "-c", code], capture_output=True, text=True)
    except OSError:
        return None
    return tuple(answer.stdout.strip().split(" ", 1)) if answer.returncode == 0 else None


def interpreters(given, versions, search_path):
    """{version: path} of what is there for `versions`: those given by hand first, then python3.X on `search_path`."""
    names = [str(path) for path in given]
    for version in versions:
        names += [os.path.join(folder, f"python{version}") for folder in search_path.split(os.pathsep)]
    found = {}
    for name in names:
        answer = version_of(name) if os.access(name, os.X_OK) else None
        if answer:
            found.setdefault(*answer)
    return found


def prepare(row, python, cache):
    """The row's environment, with our commands and our package in it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    venv, requirements = FOLDER / row.name, FOLDER / f"{row.name}.txt"
    requirements.write_text(row.requirements)
    command = [python, ROOT / "tools" / "venv.py", "--venv", venv, "--requirements", requirements, "--cache", cache]
    subprocess.run(command, check=True)
    put_ours(venv)
    return venv


def put_ours(venv):
    """Our commands and our package into an environment, as they are in .venv."""
    for program in COMMANDS.iterdir():
        if os.access(program, os.X_OK):
            shutil.copy2(program, venv / "bin" / f".{program.name}.new")
            (venv / "bin" / f".{program.name}.new").rename(venv / "bin" / program.name)
    for site in venv.glob("lib/python3*/site-packages"):
        if not (site / "phalanx").is_symlink():
            (site / "phalanx").symlink_to(ROOT / "python" / "phalanx")


def has_oldest():
    return sys.version_info < (3, 13)


def oldest_environment():
    """The command that makes what run_oldest needs: a minute where it has to be downloaded."""
    return [sys.executable, "-m", "tools.torches", "--prepare-oldest"]


def run_oldest(pytest_arguments):
    """The part of a full run that needs an older torch; one skip where that has nothing for this Python."""
    if not has_oldest():
        return Result(skipped=[(OLDEST.name, f"torch {OLDEST.torch} is not made for this Python")])
    return run_row(OLDEST, sys._base_executable, default_cache(), [*OLDEST_TESTS, *map(str, pytest_arguments)])


def suites(pytest_arguments):
    """[(name, function that runs it)] of all rows; one skip of each whose Python is not there, and a failure where none
    is there."""
    found = interpreters([], dict.fromkeys(row.python for row in ROWS), os.environ["PATH"])

    def run_there(row):
        if row.python not in found:
            return Result(skipped=[(row.name, f"no python{row.python} on PATH")])
        return run_row(row, found[row.python], default_cache(), [*TESTS, *pytest_arguments])

    rows = [(row.name, functools.partial(run_there, row)) for row in ROWS]
    if not any(row.python in found for row in ROWS):
        rows.append(("all torches", lambda: Result(failed=["all torches: no Python of their rows is on PATH"])))
    return rows


def with_tests(arguments, tests):
    """What pytest is given: `tests`, unless `arguments` name test files of their own. The other tests are not written
    for these Pythons, and must not be collected."""
    return list(arguments) if names_tests(arguments) else [*tests, *arguments]


def names_tests(arguments):
    return any(map(is_test, arguments))


def is_test(word):
    """Whether this argument of pytest's is a test file, or a test in one."""
    return not word.startswith("-") and word.partition("::")[0].endswith(".py")


def default_cache():
    return cache_folder() / "venv"


def run_row(row, python, cache, arguments):
    """The result of the row's tests; an environment that cannot be made is one failure."""
    try:
        venv = prepare(row, python, cache)
    except (OSError, subprocess.CalledProcessError) as error:
        return Result(failed=[f"{row.name}: no environment: {error}"])
    return run_pytest(row.name, venv, FOLDER / f"{row.name}.xml", with_tests(arguments, TESTS)).named(row.name)


def run_pytest(name, venv, report, arguments, may_be_none=False):
    """The result of pytest under an environment that has our commands. `may_be_none`: no test that is chosen there is
    no failure."""
    report.unlink(missing_ok=True)
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    environment["PHALANX_RUN"] = str(venv / "bin" / "phalanx-run")
    with tempfile.TemporaryDirectory(prefix="phalanx-test-", ignore_cleanup_errors=True) as folder:
        command = [venv / "bin" / "python", "-m", "pytest", f"--junitxml={report}", f"--basetemp={folder}/t"]
        status = run([*command, *arguments], env=environment, limit_s=LIMIT_S)
    if may_be_none and status == NOTHING_COLLECTED:
        return Result()
    return read_report(name, report, status)


def tell(lines, total):
    """The table, then what `./run test` ends with."""
    for name, reason in total.skipped:
        print(f"skipped: {name}: {reason}")
    for name in total.failed:
        print(f"FAILED: {name}")
    print(f"{'python':8}{'torch':10}result")
    for row, text in lines:
        print(f"{row.python:8}{row.torch:10}{text}")
    print(total.counts, flush=True)


def main():
    parser = argparse.ArgumentParser(
        prog="./run test --all-torch",
        description=__doc__.splitlines()[0],
        epilog="Other arguments go to pytest; a test file among them is run instead of these tests.",
    )
    parser.add_argument(
        "--python", action="append", type=Path, default=[], metavar="PATH", help="an interpreter that is not on PATH"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="only rows with TEXT in their name, as python3.8-"
    )
    parser.add_argument("--cache", type=Path, default=default_cache(), help=argparse.SUPPRESS)
    parser.add_argument("--prepare-oldest", action="store_true", help=argparse.SUPPRESS)
    options, arguments = parser.parse_known_args()
    if options.prepare_oldest:
        prepare(OLDEST, sys._base_executable, options.cache)
        return 0
    for python in options.python:
        if version_of(python) is None:
            parser.error(f"--python {python} is no Python that can make virtual environments")
    rows = [row for row in ROWS if not options.only or any(text in row.name for text in options.only)]
    if not rows:
        parser.error(
            f"--only {' '.join(options.only)}: no row has that; there are {', '.join(row.name for row in ROWS)}"
        )
    hear_signals()
    with only_run():
        return run_rows(rows, options, arguments)


def run_rows(rows, options, arguments):
    """The exit status of all rows; those whose Python is not there are left out, and told."""
    found = interpreters(options.python, dict.fromkeys(row.python for row in rows), os.environ["PATH"])
    total, lines = Result(), []
    for row in rows:
        if row.python not in found:
            lines.append((row, f"left out: no python{row.python} on PATH (--python names one elsewhere)"))
            continue
        say(f"Python {row.python}, torch {row.torch}")
        began = time.monotonic()
        result = run_row(row, found[row.python], options.cache, arguments)
        total.add(result)
        lines.append((row, f"{result.counts}, {time.monotonic() - began:.0f} s"))
    tell(lines, skips.check(total, skips.read()))
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main())
