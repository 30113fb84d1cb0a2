"""Runs the tests with programs that launch through torch and are too large for the environment of every run.

Their environment, in build/callers, begins as a copy of .venv by hard links and is kept in the same cache
(tools/venv.py).
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import test as suites  # noqa: E402
from tools import torches  # noqa: E402

FOLDER = ROOT / "build" / "callers"
TESTS = ("tests/test_ms_swift.py", "tests/test_callers.py")


def prepare(cache):
    """The environment, with the commands of build/release and our package in it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    dev = ROOT / "tools" / "requirements-dev.txt"
    all_of_it = FOLDER / "requirements.txt"
    all_of_it.write_text(dev.read_text() + (ROOT / "tools" / "callers-requirements.txt").read_text())
    venv = FOLDER / "venv"
    for requirements in [all_of_it] if venv.exists() else [dev, all_of_it]:
        command = [sys.executable, ROOT / "tools" / "venv.py", "--venv", venv, "--requirements", requirements]
        subprocess.run([*command, "--cache", cache], check=True)
    torches.put_ours(venv)
    return venv


def main():
    parser = argparse.ArgumentParser(
        prog="./run test --callers", description=__doc__.splitlines()[0], epilog="Other arguments go to pytest."
    )
    default = Path(os.environ.get("PHALANX_CACHE") or Path.home() / ".cache" / "phalanx")
    parser.add_argument("--cache", type=Path, default=default / "venv", help=argparse.SUPPRESS)
    options, arguments = parser.parse_known_args()
    began = time.monotonic()
    venv = prepare(options.cache)
    suites.say(f"environment: {time.monotonic() - began:.0f} s")
    report = FOLDER / "report.xml"
    report.unlink(missing_ok=True)
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    environment["PHALANX_RUN"] = str(venv / "bin" / "phalanx-run")
    with tempfile.TemporaryDirectory(prefix="phalanx-test-") as folder:
        command = [venv / "bin" / "python", "-m", "pytest", f"--junitxml={report}", f"--basetemp={folder}/t"]
        status = subprocess.run([*command, *(arguments or TESTS)], cwd=ROOT, env=environment).returncode
    result = suites.read_report("callers", report, status)
    for name in result.failed:
        print(f"FAILED: {name}")
    print(f"{result.passed} passed, {len(result.failed)} failed", flush=True)
    return 1 if result.failed or not result.passed else 0


if __name__ == "__main__":
    sys.exit(main())
