"""The wheel, as a user gets it: built, its promises read from its files, then installed for another Python and run."""

import base64
import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import wheel as wheel_tool  # noqa: E402

pytestmark = pytest.mark.timeout(1200)

SCRIPT = """
import os, sys
import torch
from torch import distributed
import phalanx
distributed.init_process_group("gloo")
ones = torch.ones(1)
distributed.all_reduce(ones)
with open(f"{sys.argv[1]}/rank{distributed.get_rank()}", "w") as file:
    print(int(ones), phalanx.__file__, os.path.dirname(sys.executable), sep="\\n", file=file)
"""


@pytest.fixture(scope="module")
def wheel():
    answer = subprocess.run([sys.executable, "tools/wheel.py"], cwd=ROOT, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    return ROOT / answer.stdout.strip()


@pytest.mark.slow
def test_name_and_contents(wheel):
    assert wheel.name.startswith("phalanx-")
    assert wheel.name.endswith("-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl")
    names = zipfile.ZipFile(wheel).namelist()
    commands = {name.split("/")[-1] for name in names if ".data/scripts/" in name}
    assert commands == {"phalanx", "phalanx-master", "phalanx-run"}
    assert "phalanx/run.py" in names
    assert "phalanx/_bootstrap/zygote.py" in names
    for module in ("checkpoint", "data", "elasticity"):
        assert names.count(f"phalanx/{module}/libphalanx_{module}.so") == 1
    for library in ("describe", "universal"):
        assert names.count(f"phalanx/checkpoint/libphalanx_{library}.so") == 1
    assert "phalanx/shim/site/sitecustomize.py" in names
    assert "phalanx/preprocess/pyspark_preprocess.py" in names
    scripts = zipfile.ZipFile(wheel).read(next(name for name in names if name.endswith("/entry_points.txt"))).decode()
    assert "phalanx-preprocess = phalanx.preprocess.run:main" in scripts
    torchrun = zipfile.ZipFile(wheel).getinfo("phalanx/shim/bin/torchrun")
    assert torchrun.external_attr >> 16 & 0o111, "what phalanx.shim puts on PATH can be executed"
    assert not [name for name in names if re.search(r"(^|[/_])tests?[/_.]|__pycache__", name)]


def test_a_dynamic_command_is_not_called_manylinux(tmp_path):
    archive = tmp_path / "phalanx-0-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(archive, "w") as file:
        file.write("/bin/true", "phalanx-0.data/scripts/phalanx-run")
    assert wheel_tool.platform_tag(archive, tmp_path / "content") is None


def test_a_shared_library_raises_the_tag(tmp_path):
    library = tmp_path / "libprobe.so"
    source = "#include <stdlib.h>\nint Draw(void) { return (int)arc4random(); }\n"
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", library]
    subprocess.run(command, input=source, text=True, check=True)
    archive = tmp_path / "phalanx-0-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(archive, "w") as file:
        file.write(library, "phalanx/libprobe.so")
    assert wheel_tool.platform_tag(archive, tmp_path / "content") == "manylinux_2_36_x86_64"


def test_an_old_pip_knows_the_tag_by_its_old_name(tmp_path):
    """pip before 20.3, as in Ubuntu 20.04, refuses a wheel that is manylinux_2_17 alone."""
    tags = {
        "manylinux_2_17_x86_64": ["manylinux2014_x86_64", "manylinux_2_17_x86_64"],
        "manylinux_2_36_x86_64": ["manylinux_2_36_x86_64"],
    }
    for tag, wanted in tags.items():
        archive = tmp_path / "phalanx-0-py3-none-linux_x86_64.whl"
        told = b"Wheel-Version: 1.0\nTag: py3-none-linux_x86_64\n"
        digest = base64.urlsafe_b64encode(hashlib.sha256(told).digest()).rstrip(b"=").decode()
        record = f"phalanx-0.dist-info/WHEEL,sha256={digest},{len(told)}\nphalanx-0.dist-info/RECORD,,\n"
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("phalanx-0.dist-info/WHEEL", told)
            file.writestr("phalanx-0.dist-info/RECORD", record)
        wheel = wheel_tool.retag(archive, tag)
        assert wheel.name == f"phalanx-0-py3-none-{'.'.join(wanted)}.whl"
        told = zipfile.ZipFile(wheel).read("phalanx-0.dist-info/WHEEL").decode()
        assert sorted(re.findall(r"^Tag: py3-none-(.*)$", told, re.M)) == wanted


@pytest.mark.slow
def test_a_copy_of_it_unpacked_serves_a_python_that_does_not_know_it(wheel, tmp_path):
    """As images/launcher brings it into pods: beside no Python, in another folder than it was unpacked to."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*pip, "--target", tmp_path / "unpacked", wheel], check=True)
    subprocess.run(["cp", "-R", f"{tmp_path}/unpacked/.", tmp_path / "phalanx"], check=True)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    search_path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    environment = {"PATH": search_path, "HOME": str(tmp_path), "PYTHONNOUSERSITE": "1"}
    command = [tmp_path / "phalanx/bin/phalanx-run", "--nproc-per-node=2", script, tmp_path]
    answer = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    for rank in range(2):
        said = (tmp_path / f"rank{rank}").read_text().splitlines()
        assert said == ["2", str(tmp_path / "phalanx/phalanx/__init__.py"), str(Path(sys.executable).parent)]


@pytest.mark.slow
def test_runs_in_a_clean_environment_of_another_python(wheel, tmp_path):
    said = wheel_tool.try_in(tmp_path, next(wheel_tool.pythons()), wheel)
    version = wheel.name.split("-")[1]
    assert version in said["phalanx-run --version"]
    assert said["python -m phalanx.run --version"] == said["phalanx-run --version"]
    assert "status" in said["phalanx --help"]
