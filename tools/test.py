"""Runs every suite (lint, C++ unit tests, end-to-end, chaos, the oldest torch) and ends with "N passed, N failed".

Each suite reports in JUnit's format, which is summed up here; a suite that crashes or says nothing counts as failed.
Skipped tests are listed by name and reason, and the time of each suite is shown.
"""

import argparse
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "release"
REPORTS = ROOT / "build" / "reports"
CHAOS = "tests/test_chaos.py"
LONG_KILLS = 1_000


@dataclasses.dataclass
class Result:
    """What one suite came to. `failed` and `skipped` hold names, with the reason where there is one."""

    passed: int = 0
    failed: list = dataclasses.field(default_factory=list)
    skipped: list = dataclasses.field(default_factory=list)

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped


def say(text):
    print(f"== {text}", flush=True)


def first_line(text):
    return (text or "").strip().partition("\n")[0]


def read_junit(path):
    """Counts the test cases of a report. A case with an error in its clean-up appears once, as failed."""
    outcomes, reasons = {}, {}
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        name = ".".join(filter(None, (case.get("classname"), case.get("name"))))
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
            outcomes[name] = "failed"
        elif skipped is not None or case.get("result") == "skipped" or case.get("status") in ("disabled", "notrun"):
            outcomes.setdefault(name, "skipped")
            text = None if skipped is None else skipped.get("message") or skipped.text
            disabled = "disabled: no test, or the child of another one" if "DISABLED_" in name else None
            reasons[name] = first_line(text) or disabled or "no reason given"
        else:
            outcomes.setdefault(name, "passed")
    names = {kind: [name for name, outcome in outcomes.items() if outcome == kind] for kind in ("failed", "skipped")}
    skips = [f"{name}: {reasons[name]}" for name in names["skipped"]]
    return Result(list(outcomes.values()).count("passed"), names["failed"], skips)


def read_report(suite, path, status):
    """The suite's report; one failure more where the report is missing or hides what the exit status says."""
    try:
        result = read_junit(path)
    except (OSError, xml.etree.ElementTree.ParseError):
        return Result(failed=[f"{suite}: ended with status {status} and left no readable report"])
    if status != 0 and not result.failed:
        result.failed.append(f"{suite}: ended with status {status}")
    return result


def run_lint(quick):
    report = REPORTS / "lint.xml"
    command = [sys.executable, "-m", "tools.lint", "--junit", report] + (["--fast"] if quick else [])
    return read_report("lint", report, subprocess.run(command, cwd=ROOT).returncode)


def run_unit_tests(_quick):
    reports = REPORTS / "gtest"
    reports.mkdir()
    overview = REPORTS / "ctest.xml"
    command = ["ctest", "--test-dir", BUILD, "--parallel", "2", "--output-on-failure", "--no-tests=error"]
    command += ["--timeout", "300", "--output-junit", overview]
    environment = dict(os.environ, GTEST_OUTPUT=f"xml:{reports}/", GTEST_COLOR="no")
    status = subprocess.run(command, cwd=ROOT, env=environment).returncode
    return read_programs(read_report("unit tests", overview, status), reports)


def read_programs(overview, reports):
    """ctest runs one program per module. Each writes its own report of single tests, which counts in its place.

    A program that failed without a failure in its report (it crashed, or hung) counts as one.
    """
    result = Result(skipped=overview.skipped)
    explained, told = set(), 0
    for path in sorted(reports.glob("*.xml")):
        told += 1
        single = read_report(path.stem, path, 0)
        result.add(single)
        if single.failed:
            explained.add(f"{path.stem}.{path.stem}")
    result.failed += [f"{name}: see its output above" for name in overview.failed if name not in explained]
    result.passed += max(0, overview.passed + len(explained) - told)
    return result


def run_pytest(arguments):
    report = REPORTS / "pytest.xml"
    # A folder of our own: in the common one, other runs on this machine remove all but the last three.
    with tempfile.TemporaryDirectory(prefix="phalanx-test-") as folder:
        command = [sys.executable, "-m", "pytest", f"--junitxml={report}", f"--basetemp={folder}/t", *arguments]
        return read_report("pytest", report, subprocess.run(command, cwd=ROOT).returncode)


class Chaos:
    """Runs beside the other suites from the beginning: its five minutes are spent in waiting for the most part."""

    def __init__(self):
        self.report, self.log = REPORTS / "chaos.xml", REPORTS / "chaos.log"
        self.folder = tempfile.TemporaryDirectory(prefix="phalanx-test-")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-s",
            f"--junitxml={self.report}",
            f"--basetemp={self.folder.name}/t",
        ]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([*command, CHAOS], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)

    def result(self):
        status = self.process.wait()
        self.folder.cleanup()
        result = read_report("chaos", self.report, status)
        print(self.log.read_text(errors="replace"), flush=True)
        return result


def run_oldest_torch():
    """The store's clients and a restart under the oldest torch we serve; ./run test --all-torch has all of them."""
    sys.path.insert(0, str(ROOT))
    from tools import torches  # which imports this module

    return torches.run_oldest()


def chosen_suites(quick, long, pytest_arguments):
    kills = [f"--kills={LONG_KILLS}"] if long else []
    if pytest_arguments:
        return [("end to end", lambda: run_pytest([*kills, *pytest_arguments]))]
    selection = [*kills, *(["-m", "not slow"] if quick else [f"--ignore={CHAOS}"])]
    suites = [
        ("lint", lambda: run_lint(quick)),
        ("unit tests", lambda: run_unit_tests(quick)),
        ("end to end", lambda: run_pytest(selection)),
    ]
    if quick:
        return suites
    chaos = Chaos()
    return [*suites, ("oldest torch", run_oldest_torch), ("chaos, begun with the first", chaos.result)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave out clang-tidy and tests marked slow")
    parser.add_argument("--long", action="store_true", help=f"{LONG_KILLS} kills of ranks that save instead of 50")
    arguments, pytest_arguments = parser.parse_known_args()
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir(parents=True)
    total, times = Result(), []
    for name, run in chosen_suites(arguments.quick, arguments.long, pytest_arguments):
        say(name)
        began = time.monotonic()
        result = run()
        total.add(result)
        times.append(f"{name} {time.monotonic() - began:.0f} s ({result.passed} passed, {len(result.failed)} failed)")
    for line in times:
        say(line)
    for title, lines in (("skipped", total.skipped), ("FAILED", total.failed)):
        for line in lines:
            print(f"{title}: {line}")
    print(f"{total.passed} passed, {len(total.failed)} failed", flush=True)
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main())
