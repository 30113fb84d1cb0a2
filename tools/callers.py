"""Runs the tests with programs that launch through torch and are too large for the environment of every run.

There are three environments. That in build/callers begins as a copy of .venv by hard links, so it has the newest torch;
that in build/callers-ms-swift has what ms-swift's guide names, and runs the tests of ms-swift once more. That in
build/callers-transformers-4 lies over the guide's, and runs those of Hugging Face and of Lightning once more.
tools/venv.py keeps all in the cache of .venv.
"""

import argparse
import dataclasses
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

TESTS = (
    *("tests/test_ms_swift.py", "tests/test_callers.py", "tests/test_frameworks.py"),
    *("tests/test_huggingface_checkpoint.py", "tests/test_framework_checkpoints.py"),
    *("tests/test_fabric_checkpoint.py", "tests/test_lightning_io.py"),
)


@dataclasses.dataclass(frozen=True)
class Environment:
    """Made of `locks`, one on top of the other, in the folder of that name below build. `over`: another one, whose
    packages are seen behind its own."""

    name: str
    locks: tuple
    tests: tuple
    over: "Environment | None" = None

    @property
    def folder(self):
        return ROOT / "build" / self.name


NEWEST = Environment("callers", ("dev", "callers"), TESTS)
GUIDE = Environment("callers-ms-swift", ("ms-swift",), ("tests/test_ms_swift.py",))
GUIDE_TORCH, GUIDE_PYTHON_MAX = "2.6.0", (3, 13)
# transformers 4, and all else as the guide has it: torch 2.6 is the oldest with which a Trainer of 4.57 resumes.
FOUR = Environment(
    "callers-transformers-4",
    ("transformers-4",),
    ("tests/test_frameworks.py", "tests/test_huggingface_checkpoint.py", "tests/test_framework_checkpoints.py"),
    over=GUIDE,
)


def prepare(environment, cache):
    """The environment, with the commands of build/release and our package in it."""
    over = ["--over", prepare(environment.over, cache)] if environment.over else []
    environment.folder.mkdir(parents=True, exist_ok=True)
    locks = [ROOT / "tools" / "locks" / f"{name}.lock" for name in environment.locks]
    venv = environment.folder / "venv"
    for lock in locks[-1:] if venv.exists() else locks:
        command = [sys.executable, ROOT / "tools" / "venv.py", "--venv", venv, "--requirements", lock]
        subprocess.run([*command, "--cache", cache, *over], check=True)
    torches.put_ours(venv)
    return venv


def those_for(environment, arguments):
    """Those of pytest's arguments that concern it; None where they name other test files alone."""
    if not torches.names_tests(arguments):
        return list(arguments)
    others = [word for word in arguments if torches.is_test(word) and word.partition("::")[0] not in environment.tests]
    left = [word for word in arguments if word not in others]
    return left if torches.names_tests(left) else None


def run(arguments=(), cache=None):
    """The result of the tests, in each environment that `arguments` choose tests of."""
    cache = cache or torches.default_cache()
    result = run_in(NEWEST, arguments, cache)
    for older in (GUIDE, FOUR):
        chosen = those_for(older, arguments)
        if chosen is None:
            continue
        if sys.version_info[:2] > GUIDE_PYTHON_MAX:
            result.add(Result(skipped=[(older.name, f"torch {GUIDE_TORCH} is not made for this Python")]))
        else:
            result.add(run_in(older, chosen, cache).named(older.name))
    return result


def run_in(environment, arguments, cache):
    """The result of its tests; an environment that cannot be made is one failure."""
    began = time.monotonic()
    try:
        venv = prepare(environment, cache)
    except (OSError, subprocess.CalledProcessError) as error:
        return Result(failed=[f"{environment.name}: no environment: {error}"])
    say(f"environment {environment.name}: {time.monotonic() - began:.0f} s")
    given = torches.with_tests(arguments, environment.tests)
    chooses = environment is not NEWEST and any(word.startswith(("-k", "-m")) for word in arguments)
    return torches.run_pytest(environment.name, venv, environment.folder / "report.xml", given, may_be_none=chooses)


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
