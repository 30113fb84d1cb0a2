"""./run and tools/setup.sh: what a command installs, and what it says where it cannot begin."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("arguments", "fuzz"), [([], False), (["--quick"], False), (["--long"], True), (["--seed", "7", "--long"], True)]
)
def test_the_long_tests_have_what_fuzzers_need(tmp_path, arguments, fuzz):
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "run", tmp_path)
    (tmp_path / "tools" / "setup.sh").write_text('install_packages() { echo "$*"; exit 0; }\n')
    said = subprocess.run(["bash", tmp_path / "run", "test", *arguments], stdout=subprocess.PIPE, text=True, check=True)
    groups = said.stdout.split()
    assert groups[:3] == ["environment", "build", "test"]
    assert ("fuzz" in groups) == fuzz


@pytest.mark.parametrize("steps", ["steps_build", "steps_lint"])
def test_without_a_python_there_is_one_sentence(steps):
    functions = "install_packages() { :; }; choose_python() { die 'no Python'; }"
    script = f"set -euo pipefail; source tools/setup.sh; {functions}; {steps}"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "run: no Python\n")
