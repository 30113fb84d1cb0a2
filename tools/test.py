"""Runs every suite and ends with "N passed, N failed, N skipped".

The suites: lint, unit tests in C++, end-to-end tests beside each other, some of them with the oldest torch; in the
background clang-tidy, chaos and the operator's unit tests; at last those that need the machine alone: the operator's
with an API server, and end-to-end tests.
Each suite reports in JUnit's format. A skip that tools/suite/allowed_skips.json does not allow is a failure; a file
beyond its budget of time is a warning.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.suite import budgets, leftovers, room, skips
from tools.suite.programs import (
    NOTHING_COLLECTED,
    REPORTS,
    ROOT,
    Background,
    Interrupted,
    Overdue,
    gtest_environment,
    hear_signals,
    only_run,
    run,
    say,
)
from tools.suite.report import Result, read_journal, read_programs, read_report

BUILD = ROOT / "build" / "release"
CHAOS = "tests/test_chaos.py"
WRITER_KILLS = 50  # of writers without torch, in the unit tests; 1,000 with --long
LONG_KILLS = 1_000
LONG_FUZZ_S = 60
LONG_CHAOS_S = 300
LONG_SEEDS = 20_000
LONG_SUCCESSIONS = 10_000
# Of one pytest. Each test has a limit of its own; this one is for what hangs between them.
LIMIT_S = 3 * 3600
LONG_LIMIT_S = 24 * 3600
# Of one program of unit tests; with --long some have a thousand kills.
UNIT_TESTS_LIMIT_S = 300
UNIT_TESTS_LONG_LIMIT_S = 3600
SLICE = 2
# pytest's exit status for wrong usage: an option, a file.
WRONG_USAGE = 4
NOTHING_RAN = (WRONG_USAGE, NOTHING_COLLECTED)
WORKERS_MAX = 16
SLOWEST = 12
TIDY_NICE = 15  # clang-tidy takes what processors the tests leave


def workers():
    """How many end-to-end tests run at once: they wait more than they compute. Each takes a gigabyte with torch."""
    return min(WORKERS_MAX, 2 * (os.cpu_count() or 1))


class Run:
    """One run: its suites one after the other and in the background, and what they came to."""

    def __init__(self, seed, folder, limit_s=LIMIT_S):
        self.seed, self.folder, self.limit_s = seed, folder, limit_s
        self.total, self.times, self.background = Result(), [], []
        self.helpers = []  # Background that has no report: what waits for it tells what came of it
        self.nothing_ran = None  # pytest's reason, where it chose no test
        self.id = uuid.uuid4().hex

    def record(self, name, result, lasted_s):
        self.total.add(result)
        self.times.append((name, lasted_s, result.counts))
        say(f"{name}: {result.counts}, {lasted_s:.0f} s")

    def suite(self, name, work):
        say(name)
        began = time.monotonic()
        self.record(name, work(), time.monotonic() - began)

    def pytest(self, name, arguments):
        """The command of a pytest with a report and a folder of its own: in the common one, other runs on this machine
        remove all but the last three. Its name is short: below it lie Unix sockets, whose names are limited."""
        places = [f"--junitxml={REPORTS / f'{name}.xml'}", f"--basetemp={self.folder}/{name[0]}"]
        places.append(f"--journal={REPORTS / f'{name}.journal'}")
        return [sys.executable, "-m", "pytest", *places, f"--seed={self.seed}", *map(str, arguments)]

    def end_to_end(self, name, arguments):
        command = self.pytest(name, arguments)
        try:
            status = run(command, limit_s=self.limit_s)
        except Interrupted:
            self.total.add(read_journal(name, REPORTS / f"{name}.journal", None))
            raise
        if status in NOTHING_RAN:
            self.nothing_ran = why_nothing_ran(command, status)
            return Result(failed=[self.nothing_ran])
        return self.read(name, name, status)

    def read(self, name, report, status):
        """What a pytest reported, or, where a crash kept it from that, what its tests had come to. So where it was
        overdue: the journal names what ran by then."""
        if isinstance(status, Overdue) and (REPORTS / f"{report}.journal").exists():
            return read_journal(name, REPORTS / f"{report}.journal", status)
        if (REPORTS / f"{report}.xml").exists() or not (REPORTS / f"{report}.journal").exists():
            return read_report(name, REPORTS / f"{report}.xml", status)
        return read_journal(name, REPORTS / f"{report}.journal", status)

    def behind(self, name, command, nice=0, env=None, report=None):
        """Starts a program that works beside the suites to come; `report`: the name of its file."""
        self.background.append((Background(name, command, nice, env), report or name))

    def ahead(self, name, command):
        """Begins what a later suite needs, which waits for it."""
        self.helpers.append(Background(name, command, TIDY_NICE))
        return self.helpers[-1]

    def join(self):
        """Waits for what works in the background."""
        while self.background:
            program, report = self.background[0]
            say(f"waiting for {program.name}")
            status, lasted_s = program.wait(self.limit_s)
            result = self.read(program.name, report, status)
            self.record(f"{program.name}, in the background", result, lasted_s)
            self.background.pop(0)

    def end(self):
        """Of all that it has started. What tests have left is none of their failures: their process has died, or one
        of them looks away; but the next run would meet it."""
        for program in [*self.helpers, *(program for program, _ in self.background)]:
            program.end()
        for process in leftovers.end(self.id):
            print(f"warning: left running by a test, and killed: {process}")


def why_nothing_ran(command, status):
    """pytest's own reason, asked for once more: what it said is somewhere above."""
    if status == NOTHING_COLLECTED:
        return "pytest: no test was selected by these arguments"
    said = subprocess.run([*command, "--collect-only", "-q"], cwd=ROOT, capture_output=True, text=True).stderr
    reason = re.search(r"^.*: error: (.*)$", said, re.M) or re.search(r"^ERROR: (.*)$", said, re.M)
    return f"pytest: {reason[1] if reason else 'wrong usage; see above'}"


def in_parallel(count):
    return ["-n", count, "-q"]


def lint(name, *arguments):
    return [sys.executable, "-m", "tools.lint", "--junit", REPORTS / f"{name}.xml", *arguments]


def run_lint():
    return read_report("lint", REPORTS / "lint.xml", run(lint("lint", "--fast")))


def run_unit_tests(seed, long=False):
    reports = REPORTS / "gtest"
    reports.mkdir()
    overview = REPORTS / "ctest.xml"
    command = ["ctest", "--test-dir", BUILD, "--parallel", str(os.cpu_count()), "--output-on-failure"]
    kills = {} if long else {"PHALANX_KILLS": str(WRITER_KILLS)}
    limit_s = UNIT_TESTS_LONG_LIMIT_S if long else UNIT_TESTS_LIMIT_S
    command += ["--no-tests=error", "--timeout", str(limit_s), "--output-junit", overview]
    status = run(command, env={**gtest_environment(reports, seed), **kills})
    return read_programs("unit tests", overview, status, reports)


def operator(part):
    """Of the Kubernetes operator: "unit", "api-server" or "if-built", the parts of tools/operator.sh."""
    return [ROOT / "tools" / "operator.sh", f"--{part}", "--junit", REPORTS / f"operator-{part}.xml"]


def run_operator(part):
    return read_report(f"operator, {part}", REPORTS / f"operator-{part}.xml", run(operator(part)))


def run_oldest_torch(tests, environment):
    from tools import torches

    if environment is not None and environment.wait(tests.limit_s)[0] != 0:
        say("oldest torch: its environment was not made ahead; once more")
    return torches.run_oldest([*in_parallel(workers()), f"--seed={tests.seed}"])


def slice_of(arguments):
    """The part of the end-to-end tests that --quick runs. Chaos is in it where somebody names it."""
    without = [] if any(str(argument).startswith(CHAOS) for argument in arguments) else [f"--ignore={CHAOS}"]
    return [f"--slice={SLICE}", *without, "-m", "not alone"]


def run_quick(tests):
    """Some three minutes: what a person runs before each commit."""
    tests.suite("lint", run_lint)
    tests.suite("unit tests", lambda: run_unit_tests(tests.seed))
    tests.suite("operator", lambda: run_operator("unit"))
    selection = [*in_parallel(workers()), *slice_of([])]
    tests.suite("slice of end to end", lambda: tests.end_to_end("end-to-end", selection))


def run_all(tests, long):
    from tools import torches

    tidy = lint("clang-tidy", "clang-tidy", *(["--all"] if long else []))
    tests.behind("clang-tidy", tidy, nice=TIDY_NICE)
    chaos_s = {"PHALANX_CHAOS_S": str(LONG_CHAOS_S), "PHALANX_CHAOS_TORCH": "1"} if long else {}
    tests.behind("chaos", tests.pytest("chaos", ["-s", CHAOS]), env=chaos_s)
    # The first time both download for minutes: modules of Go, and another torch.
    tests.behind("operator", operator("unit"), nice=TIDY_NICE, report="operator-unit")
    oldest = tests.ahead("oldest torch", torches.oldest_environment()) if torches.has_oldest() else None
    tests.suite("lint", run_lint)
    tests.suite("unit tests", lambda: run_unit_tests(tests.seed, long))
    kills = ["--long", f"--kills={LONG_KILLS}"] if long else []
    selection = [*in_parallel(workers()), *kills, f"--ignore={CHAOS}", "-m", "not alone"]
    tests.suite("end to end", lambda: tests.end_to_end("end-to-end", selection))
    tests.suite("oldest torch", lambda: run_oldest_torch(tests, oldest))
    tests.join()
    # Building it takes a quarter of an hour: a person asks for it, or --long does.
    part = "api-server" if long else "if-built"
    tests.suite("operator, with an API server", lambda: run_operator(part))
    selection = [*kills, f"--ignore={CHAOS}", "-q", "-m", "alone"]
    tests.suite("end to end, alone", lambda: tests.end_to_end("alone", selection))


def run_long(tests):
    """Everything with seeds and minutes: an afternoon."""
    from tools import callers, torches

    run_all(tests, long=True)
    dropin = [*in_parallel(workers()), "--launcher=torchrun"]
    tests.suite("dropin tests against torchrun", lambda: tests.end_to_end("torchrun", dropin).named("torchrun"))
    fuzz = [ROOT / "tools" / "fuzz.sh", str(LONG_FUZZ_S), "", str(tests.seed)]
    tests.suite("fuzzers", lambda: read_report("fuzzers", REPORTS / "fuzz.xml", run(fuzz)))
    sanitize = [sys.executable, ROOT / "tools" / "sanitize.py", "--seed", str(tests.seed)]
    tests.suite("sanitizers", lambda: read_report("sanitizers", REPORTS / "sanitize.xml", run(sanitize)))
    tests.suite("simulation", lambda: run_simulation(tests.seed))
    seed = [f"--seed={tests.seed}"]
    for name, work in torches.suites([*in_parallel(workers()), *seed]):
        tests.suite(name, work)
    tests.suite("callers", lambda: callers.run(seed))


def run_simulation(seed):
    """Seeds that no run before had; a failing one prints its story and how to repeat it."""
    result = Result()
    for worlds, seeds in (([], LONG_SEEDS), (["--succession"], LONG_SUCCESSIONS)):
        status = run([BUILD / "bin" / "phalanx-sim", *worlds, "--seeds", str(seeds), "--from", str(seed)])
        told = f"simulation: {' '.join([*worlds, str(seeds)])} seeds from {seed}"
        result.add(Result(passed=1) if status == 0 else Result(failed=[told]))
    return result


def keep_times(tests, mode, began):
    """For bench/suite.py, which keeps the history."""
    record = {
        "mode": mode,
        "total_s": round(time.monotonic() - began, 1),
        "suites_s": {name: round(lasted_s, 1) for name, lasted_s, _ in tests.times},
        "files_s": {file: round(time_s, 1) for file, time_s in sorted(tests.total.times_s.items())},
        "passed": tests.total.passed,
        "failed": len(tests.total.failed),
        "skipped": len(tests.total.skipped),
    }
    (REPORTS / "times.json").write_text(json.dumps(record, indent=1) + "\n")


def tell(tests, mode, began):
    """The table of times, the slowest files, what was skipped or failed, and the closing line."""
    total = skips.check(tests.total, skips.read())
    for name, lasted_s, counts in tests.times:
        print(f"{lasted_s:8.0f} s  {name}: {counts}")
    print(f"{time.monotonic() - began:8.0f} s  in all ({mode}); the slowest files, as the sum of their tests:")
    for file, time_s in sorted(total.times_s.items(), key=lambda row: -row[1])[:SLOWEST]:
        print(f"{time_s:8.1f} s  {file}")
    # Other modes run other tests of a file, or with other work beside them.
    for file, time_s, budget_s in budgets.over(total.times_s, budgets.read()) if mode == "default" else ():
        print(f"warning: {file} took {time_s:.0f} s of a budget of {budget_s:g} s (tools/suite/budgets.json)")
    for name, reason in total.skipped:
        print(f"skipped: {name}: {reason}")
    for name in total.failed:
        print(f"FAILED: {name}")
    if total.failed and not tests.nothing_ran:
        print(f"the choices of this run again: {'--long ' if mode == 'long' else ''}--seed {tests.seed}")
    print(f"{total.passed} passed, {len(total.failed)} failed, {len(total.skipped)} skipped", flush=True)
    return 1 if total.failed or not total.passed else 0


def chosen(tests, options, pytest_arguments):
    """Runs what was asked for; returns its name."""
    if pytest_arguments:
        more = ["--long", f"--kills={LONG_KILLS}"] if options.long else []
        more += slice_of(pytest_arguments) if options.quick else []
        tests.suite("end to end", lambda: tests.end_to_end("end-to-end", [*more, *pytest_arguments]))
        return "some"
    if options.quick:
        run_quick(tests)
        return "quick"
    if options.long:
        run_long(tests)
        return "long"
    run_all(tests, long=False)
    return "default"


def main():
    parser = argparse.ArgumentParser(
        prog="./run test",
        description=__doc__.splitlines()[0],
        epilog="Other arguments go to pytest, and end-to-end tests run alone: those that the arguments choose, their "
        "slice with --quick, and with --long those marked long as well.",
        allow_abbrev=False,  # --lo and the like are pytest's
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--quick", action="store_true", help="fast lint, unit tests, a slice of every end-to-end file")
    mode.add_argument("--long", action="store_true", help="everything with seeds and minutes, too")
    parser.add_argument("--seed", type=int, help="of all that tests choose; another one each time where not given")
    options, pytest_arguments = parser.parse_known_args()
    asked_s = os.environ.get("PHALANX_CHAOS_S", "0")
    if not re.fullmatch(r"[0-9]+", asked_s):
        parser.error(f"PHALANX_CHAOS_S is {asked_s!r}: a whole number of seconds is wanted")
    no_room = room.why_none(room.available_mib())
    if no_room and not pytest_arguments:
        parser.error(no_room)
    if no_room:
        print(f"warning: {no_room}")
    with only_run():
        return run_suites(options, pytest_arguments, int(asked_s))


def run_suites(options, pytest_arguments, chaos_s):
    """The exit status of what was asked for. `chaos_s`: a person may ask for hours of it."""
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir()
    began = time.monotonic()
    seed = random.SystemRandom().randrange(1, 1 << 31) if options.seed is None else options.seed
    say(f"seed {seed}")
    hear_signals()
    with tempfile.TemporaryDirectory(prefix="phx-", ignore_cleanup_errors=True) as folder:
        tests = Run(seed, folder, (LONG_LIMIT_S if options.long else LIMIT_S) + chaos_s)
        os.environ[leftovers.MARKER] = tests.id  # of all that is started from now on
        try:
            mode = chosen(tests, options, pytest_arguments)
        except Interrupted as interruption:
            tests.end()
            for name in tests.total.failed:
                print(f"FAILED: {name}")
            print(f"interrupted; {tests.total.counts} so far", flush=True)
            return interruption.code
        finally:
            tests.end()
    status = tell(tests, mode, began)
    keep_times(tests, mode, began)
    return status


if __name__ == "__main__":
    sys.exit(main())
