"""Builds the unit tests with sanitizers (presets asan, tsan, ubsan) and runs them: sanitize.py [asan] [tsan] [ubsan].

REPORTS/sanitize.xml (default build/reports) has one case a program of tests and preset, in JUnit's format, and one for
each single test that was skipped. A build that fails is a failed case, so that a report is never missing. Called by
./run test --long.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.suite.programs import cache_folder, gtest_environment  # noqa: E402
from tools.suite.report import read_singles, silent  # noqa: E402

PRESETS = ("asan", "tsan", "ubsan")
# Programs take some ten times as long as without.
TEST_TIMEOUT_S = 1_800
# {preset: programs that it is not asked of}. The first has one thread, and an hour of work. The others run servers of
# the distribution's gRPC, built without the sanitizer: what its locks keep in order looks like a race, hundreds of
# times.
LEFT_OUT = {"tsan": "^(simulation_planted_test|master_test|cli_test)$"}
# {preset: the programs that it is asked of, where not of all}. asan looks for undefined behaviour everywhere, but
# without the optimizer, which makes some of it show: ubsan has it, and is asked of what decides, of the endpoint, of
# the stores, of what reads, writes and sends checkpoints and records, and of what is below them.
ONLY = {
    "ubsan": (
        "agent_checkpoint_selection_test",
        "agent_checkpoint_test",
        "agent_core_test",
        "agent_workers_core_test",
        "base_test",
        "checkpoint_disk_test",
        "checkpoint_file_table_test",
        "checkpoint_files_test",
        "checkpoint_host_test",
        "checkpoint_image_test",
        "checkpoint_kill_test",
        "checkpoint_memory_test",
        "checkpoint_pages_test",
        "checkpoint_remote_test",
        "checkpoint_safetensors_test",
        "checkpoint_storage_test",
        "checkpoint_test",
        "checkpoint_universal_test",
        "crc32_test",
        "data_test",
        "elasticity_test",
        "front_door_test",
        "master_core_test",
        "master_journal_test",
        "master_record_test",
        "master_replay_test",
        "master_rules_test",
        "process_test",
        "replay_test",
        "simulation_test",
        "store_engine_test",
        "store_mux_test",
        "store_relay_test",
        "store_server_test",
        "wire_test",
    )
}
OPTIONS = {
    "ASAN_OPTIONS": "halt_on_error=1:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}


def say(text):
    print(f"== {text}", flush=True)


def environment(reports, seed):
    """Of programs that report into the folder `reports` and choose by `seed`. What a shell has for sanitizers is left
    out: a log elsewhere or an exit status of 0 would hide what they find. The compiler's cache serves all clones;
    ./run sets the same."""
    ours = {"CCACHE_DIR": str(cache_folder() / "ccache"), "CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1"}
    return {**ours, **gtest_environment(reports, seed), **OPTIONS}


def case_of(name, outcome, message):
    case = xml.etree.ElementTree.Element("testcase", name=name)
    xml.etree.ElementTree.SubElement(case, outcome, message=message)
    return case


def failure(step, status):
    return case_of(step, "failure", f"ended with status {status}")


def cases_of(overview, reports, status):
    """ctest's own, what single tests were skipped, and a failure for each program that reports no test."""
    cases = list(xml.etree.ElementTree.parse(overview).iter("testcase")) if overview.is_file() else []
    if status != 0 or not cases:
        cases.append(failure("tests", status))
    singles = read_singles(reports)
    cases += [case_of(test, "skipped", why) for single in singles.values() for test, why in single.skipped]
    return cases + [case_of(name, "failure", "ended with 0 and reports no test") for name in silent(overview, singles)]


def any_of(names):
    """ctest's pattern of these programs."""
    return f"^({'|'.join(names)})$"


def run_preset(preset, tests, seed):
    """The cases of one preset. Prints ninja's and ctest's own lines as progress."""
    folder, began = ROOT / "build" / preset, time.monotonic()
    overview, reports = folder / "ctest.xml", folder / "gtest"
    overview.unlink(missing_ok=True)
    shutil.rmtree(reports, ignore_errors=True)
    targets = ["--target", *ONLY[preset]] if preset in ONLY else []
    for step, command in (
        ("configure", ["cmake", "--preset", preset, "--log-level=WARNING"]),
        ("build", ["cmake", "--build", folder, "--parallel", str(os.cpu_count()), *targets]),
    ):
        say(f"{preset}: {step}")
        status = subprocess.run(command, cwd=ROOT, env=environment(reports, seed)).returncode
        if status != 0:
            return [failure(step, status)]
    say(f"{preset}: tests")
    command = ["ctest", "--test-dir", folder, "--parallel", str(os.cpu_count()), "--output-on-failure"]
    command += ["--no-tests=error", "--timeout", str(TEST_TIMEOUT_S), "--output-junit", overview]
    command += ["--tests-regex", tests or any_of(ONLY[preset])] if tests or preset in ONLY else []
    if preset in LEFT_OUT:
        say(f"{preset}: without {LEFT_OUT[preset]}")
        command += ["--exclude-regex", LEFT_OUT[preset]]
    status = subprocess.run(command, cwd=ROOT, env=environment(reports, seed)).returncode
    say(f"{preset}: ended with status {status}, {time.monotonic() - began:.0f} s")
    return cases_of(overview, reports, status)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("preset", nargs="*", help=f"{' or '.join(PRESETS)}; not given: all")
    parser.add_argument("--reports", type=Path, default=ROOT / "build" / "reports", help="folder of the report")
    parser.add_argument("--tests", help="only programs of this pattern (ctest -R)")
    parser.add_argument("--seed", type=int, help="of all that tests choose; not given: another one each time")
    arguments = parser.parse_args()
    unknown = [preset for preset in arguments.preset if preset not in PRESETS]
    if unknown:
        parser.error(f"no preset {', '.join(unknown)}; there are: {' '.join(PRESETS)}")
    seed = random.SystemRandom().randrange(1, 1 << 31) if arguments.seed is None else arguments.seed
    say(f"seed {seed}")
    reports = arguments.reports.resolve()
    reports.mkdir(parents=True, exist_ok=True)
    suite = xml.etree.ElementTree.Element("testsuite", name="sanitize")
    for preset in arguments.preset or PRESETS:
        for case in run_preset(preset, arguments.tests, seed):
            case.set("classname", preset)
            suite.append(case)
    xml.etree.ElementTree.ElementTree(suite).write(reports / "sanitize.xml")
    return 1 if suite.find("testcase/failure") is not None else 0


if __name__ == "__main__":
    sys.exit(main())
