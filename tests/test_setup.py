"""./run and tools/setup.sh: what a command installs, and what it says where it cannot begin."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("arguments", "fuzz"), [([], False), (["--quick"], False), (["--long"], True), (["--seed", "7", "--long"], True)]
)
def test_the_long_tests_have_what_fuzzers_need(tmp_path, arguments, fuzz):
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "run", tmp_path)
    (tmp_path / "tools" / "setup.sh").write_text('test_works() { false; }; install_packages() { echo "$*"; exit 0; }\n')
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


def test_what_apt_does_is_told_every_few_seconds(clone):
    """The first thing that an empty machine waits for, before it has a Python. This apt waits until that was read."""
    (clone / "build").mkdir()
    os.mkfifo(clone / "go")
    apt = clone / "apt-get"
    apt.write_text('#!/bin/sh\n[ "$5" = install ] || exit 0\necho Unpacking ninja-build\nread -r line < go\nexit 3\n')
    apt.chmod(0o755)
    script = (
        "set -euo pipefail; source tools/setup.sh; id() { echo 0; }; SAY_EVERY_S=0.05; apt_install 'ninja-build g++'"
    )
    env = {**os.environ, "PATH": f"{clone}:{os.environ['PATH']}"}
    process = subprocess.Popen(["bash", "-c", script], cwd=clone, env=env, stderr=subprocess.PIPE, text=True)
    assert process.stderr.readline() == "== installing ninja-build g++\n"
    told = [process.stderr.readline() for _ in range(2)]
    assert all(re.fullmatch(r"== 0:\d\d  packages: (Unpacking ninja-build)?\n", line) for line in told), told
    (clone / "go").write_text("\n")
    left = process.communicate()[1].splitlines()  # ends with the clock, which holds it as well
    assert process.returncode == 2 and left[-1] == "run: apt-get failed: Unpacking ninja-build", left
    assert (clone / "build/apt.log").read_text() == "Unpacking ninja-build\n"


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


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({}, "HOME is not set; set PHALANX_CACHE to "),
        ({"HOME": "/dev/null"}, "cannot write to /dev/null/.cache/phalanx; set PHALANX_CACHE to "),
        ({"PHALANX_CACHE": "/proc/nowhere"}, "cannot write to /proc/nowhere; set PHALANX_CACHE to "),
    ],
)
def test_without_a_place_for_the_cache_there_is_one_sentence(clone, env, says):
    environment = {"PATH": os.environ["PATH"], **env}
    done = subprocess.run(["bash", clone / "run", "build"], env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"run: {says}") and done.stderr.count("\n") == 1
    help_of_it = subprocess.run(["bash", clone / "run", "help"], env=environment, capture_output=True, text=True)
    assert help_of_it.returncode == 0, help_of_it.stderr


def test_the_clone_of_another_user_is_named_as_that():
    with tempfile.TemporaryDirectory(prefix="phx-") as folder:
        shutil.copytree(ROOT / "tools", Path(folder) / "tools")
        os.chmod(folder, 0o555)
        other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
        command = [*other, "bash", "-c", "set -euo pipefail; source tools/setup.sh; locked true"]
        env = {**os.environ, "PHALANX_CACHE": tempfile.gettempdir()}
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
        os.chmod(folder, 0o755)
    assert done.returncode == 2
    assert done.stderr.startswith("run: cannot write to build in this clone, which is ")
    assert done.stderr.endswith("; use a clone of your own\n") and done.stderr.count("\n") == 1


def test_who_waits_for_the_lock_reads_who_has_it(clone):
    cache = {**os.environ, "PHALANX_CACHE": str(clone / "cache")}
    os.mkfifo(clone / "go")
    script = "set -euo pipefail; source tools/setup.sh; RUN_COMMAND='./run build'; hold() { echo has; read -r <go; }; "
    first = subprocess.Popen(
        ["bash", "-c", script + "locked hold"], cwd=clone, env=cache, stdout=subprocess.PIPE, text=True
    )
    assert first.stdout.readline() == "has\n"
    script = "set -euo pipefail; source tools/setup.sh; locked true"
    second = subprocess.Popen(["bash", "-c", script], cwd=clone, env=cache, stderr=subprocess.PIPE, text=True)
    said = second.stderr.readline()
    (clone / "go").write_text("go\n")
    assert said == f"== ./run build (process {first.pid}) works in this clone; waiting for it\n"
    assert (first.wait(), second.wait()) == (0, 0)


@pytest.mark.parametrize("arguments", [[], ["--quick"], ["tests/test_x.py"], ["--all-torch"], ["--callers"]])
def test_a_second_run_of_the_tests_is_refused_before_it_builds(clone, arguments):
    """It would exchange the programs below the first. A build says so; the lock is that of tools/suite."""
    (clone / "build").mkdir()
    env = {**os.environ, "PHALANX_CACHE": str(clone / "cache")}
    with open(clone / "build" / ".test.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = ["bash", clone / "run", "test", *arguments]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("run: another ./run test works in this clone; ") and done.stderr.count("\n") == 1
        built = setup("steps_build() { :; }; prepare_build", clone, env)
        assert (built.returncode, built.stderr.startswith("== ./run test works in this clone: ")) == (0, True)
    assert setup("steps_build() { :; }; prepare_build", clone, env).stderr == ""


@pytest.mark.parametrize(
    ("name", "said"), [("", "''"), ("../tools/test", "'../tools/test'"), ("nonsense", "'nonsense'")]
)
def test_only_benchmarks_are_benchmarks(name, said):
    done = subprocess.run(["bash", ROOT / "run", "bench", name], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"run: no benchmark {said}; there are: ") and " recovery " in done.stderr


def test_build_takes_targets(clone):
    (clone / "tools" / "setup.sh").write_text(
        'die() { echo "run: $*"; exit 2; }; say() { :; }; prepare_build() { echo "$#: $*"; }\n'
    )

    def build(*targets):
        return subprocess.run(["bash", clone / "run", "build", *targets], stdout=subprocess.PIPE, text=True).stdout

    (clone / ".venv" / "bin").mkdir(parents=True)
    assert build() == "0: \n"
    assert build("master_core_test", "phalanx-run") == "2: master_core_test phalanx-run\n"
    assert build("$(reboot)").startswith("run: '$(reboot)' is no target")


def test_a_fuzzer_begins_with_the_seed_that_it_is_given(clone):
    """The fuzzer of this test tells what it was started with."""
    (clone / "tools" / "setup.sh").write_text('die() { echo "$*"; exit 2; }; say() { :; }; timed() { :; }\n')
    (clone / "ninja").write_text('#!/bin/sh\necho "src/base/a_fuzzer: CXX_EXECUTABLE_LINKER__a_fuzzer"\n')
    (clone / "build/fuzz/src/base").mkdir(parents=True)
    (clone / "build/fuzz/src/base/a_fuzzer").write_text('#!/bin/sh\necho "$*"\n')
    for program in ("ninja", "build/fuzz/src/base/a_fuzzer"):
        (clone / program).chmod(0o755)

    def fuzz(*arguments):
        env = {**os.environ, "PATH": f"{clone}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", "tools/fuzz.sh", *arguments], cwd=clone, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return (clone / "build/fuzz/a_fuzzer.log").read_text().split()

    assert "-seed=41" in fuzz("1", "", "41") and "-seed=41" in fuzz("1", "a_fuzzer", str((1 << 32) + 41))
    assert "-seed=0" in fuzz("1")
