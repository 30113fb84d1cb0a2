"""`python -m phalanx.run` and `python -m phalanx.distributed.run` are phalanx-run; `import phalanx` is cheap."""

import os
import subprocess
import sys
import venv

import pytest

PYTHON_DIR = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "python")


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory):
    """A virtual environment of its own, whose phalanx-run is ours to write."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, symlinks=True)
    return str(folder / "bin" / "python")


def run(python, module, *args, **env):
    return subprocess.run(
        [python, "-m", module, *args],
        env={"PYTHONPATH": PYTHON_DIR, "PATH": "/usr/bin:/bin", **env},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("module", ["phalanx.run", "phalanx.distributed.run"])
@pytest.mark.parametrize("place", ["beside", "path"])
def test_becomes_the_command(bare_python, tmp_path, module, place):
    bin_folder = os.path.dirname(bare_python) if place == "beside" else str(tmp_path)
    command = os.path.join(bin_folder, "phalanx-run")
    with open(command, "w") as file:
        file.write('#!/bin/sh\necho "$@"\nexit 7\n')
    os.chmod(command, 0o755)
    try:
        done = run(bare_python, module, "--nproc-per-node=2", "s.py", "a b", PATH=f"/usr/bin:/bin:{bin_folder}")
        assert (done.returncode, done.stdout, done.stderr) == (7, "--nproc-per-node=2 s.py a b\n", "")
    finally:
        os.unlink(command)


def test_says_where_it_has_looked(bare_python):
    done = run(bare_python, "phalanx.run")
    assert done.returncode == 2 and done.stdout == ""
    assert "no phalanx-run beside" in done.stderr and os.path.dirname(bare_python) in done.stderr


def test_import_costs_nothing():
    code = "import sys; before = set(sys.modules); import phalanx; print(*(set(sys.modules) - before)); phalanx.step(3)"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": PYTHON_DIR}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "phalanx\n", "")


def test_version_is_the_projects():
    with open(os.path.join(PYTHON_DIR, "..", "CMakeLists.txt")) as file:
        text = file.read()
    sys.path.insert(0, PYTHON_DIR)
    import phalanx

    assert f"project(phalanx VERSION {phalanx.__version__} " in text
