"""Builds the unit tests with sanitizers (presets asan and tsan) and runs them: sanitize.py [asan] [tsan].

Each preset leaves REPORTS/<preset>.xml in JUnit's format (default build/reports), one case a program of tests. A build
that fails is a failed case, so that a report is never missing. Called by ./run test --long.
"""

import argparse
import os
import subprocess
import sys
import time
import xml.etree.ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRESETS = ("asan", "tsan")
# Programs take some ten times as long as without.
TEST_TIMEOUT_S = 1_800
OPTIONS = {
    "ASAN_OPTIONS": "halt_on_error=1:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}


def say(text):
    print(f"== {text}", flush=True)


def environment():
    """The compiler's cache serves all clones; ./run sets the same."""
    cache = Path(os.environ.get("PHALANX_CACHE") or Path.home() / ".cache" / "phalanx")
    ours = {"CCACHE_DIR": str(cache / "ccache"), "CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1"}
    return {**ours, **OPTIONS, **os.environ}


def write_failure(report, preset, step, status):
    suite = xml.etree.ElementTree.Element("testsuite", name=preset)
    case = xml.etree.ElementTree.SubElement(suite, "testcase", classname=preset, name=step)
    xml.etree.ElementTree.SubElement(case, "failure", message=f"ended with status {status}")
    xml.etree.ElementTree.ElementTree(suite).write(report)


def run_preset(preset, reports, tests):
    """0 where all passed. Prints ninja's and ctest's own lines as progress."""
    report, folder, began = reports / f"{preset}.xml", ROOT / "build" / preset, time.monotonic()
    report.unlink(missing_ok=True)
    for step, command in (
        ("configure", ["cmake", "--preset", preset, "--log-level=WARNING"]),
        ("build", ["cmake", "--build", folder, "--parallel", str(os.cpu_count())]),
    ):
        say(f"{preset}: {step}")
        status = subprocess.run(command, cwd=ROOT, env=environment()).returncode
        if status != 0:
            write_failure(report, preset, step, status)
            return status
    say(f"{preset}: tests")
    command = ["ctest", "--test-dir", folder, "--parallel", str(os.cpu_count()), "--output-on-failure"]
    command += ["--no-tests=error", "--timeout", str(TEST_TIMEOUT_S), "--output-junit", report]
    command += ["--tests-regex", tests] if tests else []
    status = subprocess.run(command, cwd=ROOT, env=environment()).returncode
    if not report.is_file():
        write_failure(report, preset, "tests", status)
    say(f"{preset}: {'passed' if status == 0 else 'FAILED'}, {time.monotonic() - began:.0f} s")
    return status


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("preset", nargs="*", help=f"{' or '.join(PRESETS)}; not given: both")
    parser.add_argument("--reports", type=Path, default=ROOT / "build" / "reports", help="folder of the reports")
    parser.add_argument("--tests", help="only programs of this pattern (ctest -R)")
    arguments = parser.parse_args()
    unknown = [preset for preset in arguments.preset if preset not in PRESETS]
    if unknown:
        parser.error(f"no preset {', '.join(unknown)}; there are: {' '.join(PRESETS)}")
    reports = arguments.reports.resolve()
    reports.mkdir(parents=True, exist_ok=True)
    failed = [preset for preset in arguments.preset or PRESETS if run_preset(preset, reports, arguments.tests) != 0]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
