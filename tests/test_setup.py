"""./run and tools/setup.sh: what a command installs, and what it says where it cannot begin."""

import shutil
import subprocess
import sys
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


def setup(script, cwd=ROOT, env=None, **more):
    """What bash comes to that reads tools/setup.sh."""
    command = ["bash", "-c", f"set -euo pipefail; source tools/setup.sh; {script}"]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, **more)


@pytest.fixture
def clone(tmp_path):
    """What ./run reads before it begins."""
    shutil.copytree(ROOT / "tools", tmp_path / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "run", tmp_path)
    return tmp_path


def test_who_is_not_root_and_has_no_sudo_reads_what_to_install(clone):
    (clone / "build").mkdir()
    done = setup("id() { echo 1000; }; PATH=/nothing; apt_install 'ninja-build g++'", clone)
    assert (done.returncode, done.stderr) == (2, "run: neither root nor sudo; please install: ninja-build g++\n")


@pytest.mark.parametrize(("uid", "sudo", "can"), [(0, False, True), (1000, True, True), (1000, False, False)])
def test_who_can_be_root(tmp_path, uid, sudo, can):
    if sudo:
        (tmp_path / "sudo").write_text("#!/bin/sh\n")
        (tmp_path / "sudo").chmod(0o755)
    done = setup(f"id() {{ echo {uid}; }}; PATH={tmp_path}; can_be_root")
    assert (done.returncode == 0) == can, done.stderr


@pytest.mark.parametrize("name", ["plain", "with a blank", "long" * 40])
def test_a_command_of_python_starts_wherever_the_clone_lies(tmp_path, name):
    folder = tmp_path / name
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (folder / ".venv" / "bin" / "probe.py").write_text(
        "import sys\ndef main():\n    print(sys.argv[1:])\n    return 7\n"
    )
    done = setup(f"cd '{folder}'; install_script phalanx-probe probe")
    assert done.returncode == 0, done.stderr
    command = [folder / ".venv" / "bin" / "phalanx-probe", "a b", "c"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (7, "['a b', 'c']\n"), done.stderr
