"""Runs the tests with programs that launch through torch and are too large for the environment of every run.

Their environment, in build/callers, begins as a copy of .venv by hard links and is kept in the same cache
(tools/venv.py).
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import torches  # noqa: E402
from tools.suite import skips  # noqa: E402
from tools.suite.programs import hear_signals, only_run, say  # noqa: E402
from tools.suite.report import Result  # noqa: E402

FOLDER = ROOT / "build" / "callers"
TESTS = (
    *("tests/test_ms_swift.py", "tests/test_callers.py", "tests/test_frameworks.py"),
    *("tests/test_huggingface_checkpoint.py", "tests/test_framework_checkpoints.py"),
    "tests/test_fabric_checkpoint.py",
)


def prepare(cache):
    """The environment, with the commands of build/release and our package in it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    dev, all_of_it = (ROOT / "tools" / "locks" / f"{name}.lock" for name in ("dev", "callers"))
    venv = FOLDER / "venv"
    for lock in [all_of_it] if venv.exists() else [dev, all_of_it]:
        command = [sys.executable, ROOT / "tools" / "venv.py", "--venv", venv, "--requirements", lock]
        subprocess.run([*command, "--cache", cache], check=True)
    torches.put_ours(venv)
    return venv


def run(arguments=(), cache=None):
    """The result of the tests; an environment that cannot be made is one failure."""
    began = time.monotonic()
    try:
        venv = prepare(cache or torches.default_cache())
    except (OSError, subprocess.CalledProcessError) as error:
        return Result(failed=[f"callers: no environment: {error}"])
    say(f"environment: {time.monotonic() - began:.0f} s")
    return torches.run_pytest("callers", venv, FOLDER / "report.xml", torches.with_tests(arguments, TESTS))


def main():
    parser = argparse.ArgumentParser(
        prog="./run test --callers",
        description=__doc__.splitlines()[0],
        epilog="Other arguments go to pytest; a test file among them is run instead of these tests.",
    )
    parser.add_argument("--cache", type=Path, help=argparse.SUPPRESS)
    options, arguments = parser.parse_known_args()
    hear_signals()
    with only_run():
        result = skips.check(run(arguments, options.cache), skips.read())
    for name, reason in result.skipped:
        print(f"skipped: {name}: {reason}")
    for name in result.failed:
        print(f"FAILED: {name}")
    print(result.counts, flush=True)
    return 1 if result.failed or not result.passed else 0


if __name__ == "__main__":
    sys.exit(main())
