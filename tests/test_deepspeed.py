"""phalanx.elasticity beside DeepSpeed itself, of three versions, in environments of tools/deepspeeds.py. The first time
they are made here, which takes a minute or two."""

import functools
import subprocess
import sys
from pathlib import Path

import pytest
from harness import clean_environment, command_path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import deepspeeds  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WITH_ELASTICITY = ("0.16.5", "0.19.7")
WITHOUT = "0.19.8"
ROWS = 20_000
SEED = 20_261_122
# All that DeepSpeed's elasticity raises; an AssertionError is so rare that not every seed meets one.
CLASSES = {
    *("ElasticityConfigError", "ElasticityError", "ElasticityIncompatibleWorldSize", "InvalidVersion"),
    *("JSONDecodeError", "NotImplementedError", "AttributeError", "OverflowError", "TypeError", "UFuncTypeError"),
    *("ValueError", "ZeroDivisionError"),
}
environment = functools.lru_cache(maxsize=None)(deepspeeds.prepare)


@pytest.mark.parametrize("version", WITH_ELASTICITY)
def test_random_configurations_are_answered_as_deepspeed_does(version):
    command = [
        *(sys.executable, ROOT / "tests" / "elasticity_oracle.py"),
        *("--deepspeed", deepspeeds.modules(environment(version)), "--version", version),
        *("--command", command_path("phalanx-elasticity-rows"), "--count", ROWS, "--seed", SEED),
    ]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=clean_environment())
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    alike = next(line for line in done.stdout.splitlines() if line.startswith("alike: "))
    assert CLASSES - set(alike.replace(",", "").split()) == set()
