"""Makes dist/phalanx-VERSION-py3-none-PLATFORM.whl: static commands and the pure Python package, for any Python 3.8+.

The platform tag is earned: a command must be fully static (no interpreter, no library it needs), and a shared library
must not want a newer libc than the tag promises. --try installs the wheel in a clean environment and runs it.
"""

import argparse
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
# What static commands are promised to run on; a shared library may raise it.
OLDEST_GLIBC = (2, 17)
# Pythons to try the wheel with, the most unlike ours first.
OTHER_PYTHONS = ("3.8", "3.9", "3.10", "3.12", "3.13", "3.14", "3.11")


def say(text):
    print(f"== {text}", file=sys.stderr, flush=True)


def build(folder):
    """The wheel as the build backend makes it, with the platform tag of this machine."""
    environment = dict(os.environ, CCACHE_BASEDIR=str(ROOT), CCACHE_NOHASHDIR="1")
    # By the names that CMake itself chooses: ccache takes g++ and c++ for two compilers.
    environment.update(CC="cc", CXX="c++")
    environment.update(CMAKE_CXX_COMPILER_LAUNCHER="ccache", CMAKE_C_COMPILER_LAUNCHER="ccache")
    # ./run has set it; a test started by hand shall not compile everything once more.
    environment.setdefault("CCACHE_DIR", str(Path.home() / ".cache" / "phalanx" / "ccache"))
    environment["CMAKE_BUILD_PARALLEL_LEVEL"] = str(os.cpu_count())
    # pip-install options of the machine stay in force; nothing is fetched, the build tools are those of .venv.
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, "."]
    # As the presets say it: with other flags ccache would have to compile everything once more.
    command += ["--config-settings", "cmake.define.PHALANX_WARNINGS_ARE_ERRORS=ON"]
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if answer.returncode != 0:
        sys.exit(f"{answer.stdout}{answer.stderr}\nrun: the wheel cannot be built")
    return next(Path(folder).glob("*.whl"))


def readelf(path, option):
    environment = dict(os.environ, LC_ALL="C")
    command = ["readelf", option, "--wide", path]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


def is_static(path):
    return "INTERP" not in readelf(path, "--segments") and "(NEEDED)" not in readelf(path, "--dynamic")


def wanted_glibc(path):
    """The newest version of libc's symbols that a shared library asks for."""
    versions = re.findall(r"GLIBC_(\d+)\.(\d+)", readelf(path, "--version-info"))
    return max(((int(major), int(minor)) for major, minor in versions), default=OLDEST_GLIBC)


def platform_tag(wheel, folder):
    """manylinux_X_Y_x86_64 where everything in the wheel keeps that promise; None, with a word, where it does not."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    glibc = OLDEST_GLIBC
    for path in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
        with path.open("rb") as file:
            if file.read(4) != b"\x7fELF":
                continue
        if ".data/scripts/" in path.as_posix():
            if not is_static(path):
                say(f"{path.name} is not static: the wheel keeps the tag of this machine")
                return None
            say(f"{path.name}: static, {path.stat().st_size / 2**20:.1f} MiB")
        else:
            glibc = max(glibc, wanted_glibc(path))
    return f"manylinux_{glibc[0]}_{glibc[1]}_{os.uname().machine}"


def retag(wheel, tag):
    """Renames the wheel to its platform tag, in its name and in its WHEEL; returns its new path. pip before 20.3 knows
    the tag of glibc 2.17 by its old name alone."""
    tags = tag.replace("manylinux_2_17_", "manylinux2014_") + f".{tag}" if "_2_17_" in tag else tag
    command = [sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", tags, wheel]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    return wheel.parent / answer.stdout.split()[-1]


def finish(wheel, tag):
    """Puts the wheel into dist/, alone, under its tag."""
    if tag:
        wheel = retag(wheel, tag)
    DIST.mkdir(exist_ok=True)
    for old in DIST.glob("*.whl"):
        old.unlink()
    return Path(shutil.copy2(wheel, DIST))


def real_python(python):
    """The interpreter behind a name on PATH (pyenv's are scripts, some for Pythons that are not there), or None."""
    code = "import ensurepip, sys; print(sys.executable)"
    answer = subprocess.run([python, "-c", code], capture_output=True, text=True)
    return Path(answer.stdout.strip()) if answer.returncode == 0 else None


def pythons():
    """Interpreters found on this machine, by OTHER_PYTHONS' order, ours last."""
    places = [Path(folder) for folder in os.environ["PATH"].split(os.pathsep)]
    places += sorted((Path.home() / ".pyenv" / "versions").glob("*/bin"))
    for version in OTHER_PYTHONS:
        for place in places:
            python = place / f"python{version}"
            found = real_python(python) if python.is_file() else None
            if found:
                yield found
    yield Path(sys.executable)


def try_in(folder, python, wheel):
    """A clean environment with the wheel in it; returns what each command said. Raises CalledProcessError."""
    venv = Path(folder) / "venv"
    # Nothing of the tester's own environment may help: no PYTHONPATH, no other phalanx on PATH.
    environment = {"PATH": f"{venv}/bin:/usr/bin:/bin", "HOME": str(folder), "LC_ALL": "C.UTF-8"}
    subprocess.run([python, "-m", "venv", venv], check=True, env=environment)
    here = venv / "bin" / "python"
    install = [here, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel]
    subprocess.run(install, check=True, env=environment)
    commands = [
        ["phalanx-run", "--version"],
        ["phalanx", "--help"],
        ["phalanx-master", "--help"],
        ["python", "-m", "phalanx.run", "--version"],
        ["python", "-m", "phalanx.distributed.run", "--version"],
        ["python", "-c", "import phalanx; phalanx.step(1)"],
        ["phalanx-run", "--standalone", "--no-python", "--nproc-per-node=2", "true"],
    ]
    said = {}
    for command in commands:
        program = [venv / "bin" / command[0], *command[1:]]
        answer = subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
        if answer.returncode != 0:
            sys.exit(f"{answer.stdout}{answer.stderr}run: {' '.join(command)} ended with {answer.returncode}")
        said[" ".join(command)] = answer.stdout.strip()
    return said


def try_out(wheel):
    python = next(pythons())
    version = subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    say(f"trying {wheel.name} with {version}, in an environment with nothing else")
    with tempfile.TemporaryDirectory(prefix="phalanx-wheel-") as folder:
        for command, answer in try_in(folder, python, wheel).items():
            say(f"{command}: {answer.partition(chr(10))[0] or 'ok'}")


def main():
    parser = argparse.ArgumentParser(prog="./run wheel", description=__doc__.splitlines()[0])
    parser.add_argument("--try", action="store_true", dest="try_it", help="install and run it in a clean environment")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="phalanx-wheel-") as folder:
        made = build(folder)
        wheel = finish(made, platform_tag(made, Path(folder) / "content"))
    mode = stat.S_IMODE(wheel.stat().st_mode)
    wheel.chmod(mode | stat.S_IRGRP | stat.S_IROTH)
    if arguments.try_it:
        try_out(wheel)
    print(wheel.relative_to(ROOT))


if __name__ == "__main__":
    main()
