"""Makes a virtual environment with pinned requirements, or brings an existing one up to date.

Finished environments are kept in a cache outside the clone, keyed by requirements and Python. A clone gets its own by
hard links: a second or two for the five gigabytes of torch. Safe for several clones at once: one lock per key, and an
entry of the cache appears by rename, complete or not at all.
"""

import argparse
import contextlib
import ensurepip
import fcntl
import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

STAMP = ".phalanx-environment"
# Lies in an environment while it is filled or changed. Where it was left, nobody knows what is there.
UNFINISHED = ".phalanx-unfinished"
# Stands for the environment's own path in scripts that lie in the cache.
PLACEHOLDER = b"@PHALANX_VENV@"
# Begins the name of the cache's entry of a Python that has pip, and nothing else: pip is seconds of work each time.
BARE = "bare"
# Entries of an environment that belong to one clone, never to the cache: the commands and the package under work.
OWN_PREFIX = "phalanx"
# Names the environment below, where there is one.
OVER = f"{OWN_PREFIX}-over.pth"
# What every new environment has, whatever its requirements say.
ALWAYS_THERE = {"pip", "setuptools"}
MAX_SHEBANG = 127
# What pip and we write where the path is longer than that, or has a blank, which the kernel takes for its end.
THROUGH_SHELL = re.compile(rb"""\A#!/bin/sh\n'''exec' "?([^"\n]*?)"? "\$0" "\$@"\n' '''\n""")
KEEP_UNUSED_S = 30 * 24 * 3600


def say(text):
    print(f"== {text}", file=sys.stderr, flush=True)


def environment_key(requirements, over=None):
    """What decides whether one environment can stand for another."""
    below = (over / STAMP).read_text().split()[0] if over else ""
    return hashlib.sha256(requirements.read_bytes() + python_name().encode() + below.encode()).hexdigest()[:20]


def python_name():
    return f"{platform.python_version()} {sysconfig.get_config_var('SOABI')} {platform.machine()}"


@contextlib.contextmanager
def locked(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def works(venv):
    """Whether `venv` was finished and has a Python of this version that starts and knows its place."""
    if (venv / UNFINISHED).exists():
        return False
    python = venv / "bin" / "python"
    code = "import platform, sys; print(platform.python_version(), sys.prefix)"
    try:
        answer = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        return False
    return answer == [platform.python_version(), str(venv)]


def install(venv, requirements, over, tell):
    """Lets pip install what is missing, by the hashes where `requirements` has them. `tell`: it says what it does."""
    command = [venv / "bin" / "python", "-m", "pip", "install", "--no-warn-script-location", "--progress-bar", "off"]
    if is_lock(requirements):
        command += ["--require-hashes"]
        if over:
            command += ["--no-deps"]  # pip would ask for hashes of what lies below; the lock has all the rest
    if not tell:
        command += ["--quiet"]
    status = subprocess.run([*command, "-r", requirements]).returncode
    if status != 0:
        sys.exit(f"run: {venv} cannot be made: pip ended with status {status}")


def is_lock(requirements):
    return "--hash=" in requirements.read_text()


def can_link(source_file, target_dir):
    probe = target_dir / f".probe-{os.getpid()}"
    try:
        os.link(source_file, probe)
    except OSError:
        return False
    probe.unlink()
    return True


def copy_tree(source, target):
    """Copies a folder by hard links where the file systems allow it, else byte by byte."""
    stamp_like = next(path for path in source.rglob("*") if path.is_file())
    mode = "-al" if can_link(stamp_like, target.parent) else "-a"
    subprocess.run(["cp", mode, "--", source, target], check=True)


def text_head(path):
    """The start of a script, or None for anything that is not one."""
    with path.open("rb") as file:
        head = file.read(4096)
    return head if head.startswith(b"#!") else None


def rewrite_script(source, target, old, new):
    """Writes `source` as `target` with the environment's path replaced in its first lines."""
    text = THROUGH_SHELL.sub(rb"#!\1\n", source.read_bytes()).replace(old, new)
    first, _, rest = text.partition(b"\n")
    if (
        first.startswith(b"#!/")
        and b"/python" in first
        and (len(first) > MAX_SHEBANG or (b" " in new and new in first))
    ):
        first = b"#!/bin/sh\n'''exec' \"" + first[2:] + b'" "$0" "$@"\n\' \'\'\''
    target.write_bytes(first + b"\n" + rest)
    shutil.copymode(source, target)


def store_entry(venv, entry):
    """Makes a cache entry of a finished environment: lib by hard links, scripts without their place."""
    temporary = Path(tempfile.mkdtemp(prefix=f".tmp-{entry.name}-", dir=entry.parent))
    copy_tree(venv / "lib", temporary / "lib")
    for site in temporary.glob("lib/python3*/site-packages"):
        for own in site.glob(OWN_PREFIX + "*"):
            own.unlink() if own.is_symlink() or own.is_file() else shutil.rmtree(own)
    (temporary / "bin").mkdir()
    for script in (venv / "bin").iterdir():
        if script.is_symlink() or script.is_dir() or script.name.startswith((OWN_PREFIX, "activate", "Activate")):
            continue
        if text_head(script) is None:
            shutil.copy2(script, temporary / "bin" / script.name)
        else:
            rewrite_script(script, temporary / "bin" / script.name, bytes(venv), PLACEHOLDER)
    temporary.rename(entry)


def take_entry(venv, entry):
    """Fills a new environment from the cache."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    for library in (entry / "lib").iterdir():
        shutil.rmtree(venv / "lib" / library.name, ignore_errors=True)
        copy_tree(library, venv / "lib" / library.name)
    for script in (entry / "bin").iterdir():
        if text_head(script) is None:
            shutil.copy2(script, venv / "bin" / script.name)
        else:
            rewrite_script(script, venv / "bin" / script.name, PLACEHOLDER, bytes(venv))
    os.utime(entry)


def see_through(venv, over):
    """Lets `venv` find the packages of `over`, if there is one, behind its own."""
    for site in venv.glob("lib/python3*/site-packages") if over else ():
        (site / OVER).write_text(f"{over / site.relative_to(venv)}\n")


def drop_stale(cache, key):
    """Removes what a killed run left under this key, whose lock the caller has, and entries that no clone took for a
    month."""
    for left in cache.glob(f".tmp-{key}-*"):
        shutil.rmtree(left, ignore_errors=True)
    for entry in cache.iterdir():
        if entry.name != key and is_stale(entry):
            drop_entry(entry)


def is_stale(entry):
    try:
        return entry.is_dir() and time.time() - entry.stat().st_mtime > KEEP_UNUSED_S
    except FileNotFoundError:
        return False  # another run has removed it


def drop_entry(entry):
    """Removes a stale entry, unless somebody works with it. It vanishes by rename: nobody finds half of one."""
    key = entry.name.split("-")[1] if entry.name.startswith(".tmp-") else entry.name
    with (entry.parent / f"{key}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if not is_stale(entry):
            return  # it was taken just now
        left = entry.with_name(f".tmp-{key}-dropped-{os.getpid()}")
        entry.rename(left)
        shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def unfinished(venv):
    """Marks `venv` until the work on it is done. An interruption or a failure leaves the mark: pip cleans up behind
    some failures only, and an environment without half of its commands looks like a whole one."""
    venv.mkdir(parents=True, exist_ok=True)
    (venv / UNFINISHED).touch()
    (venv / STAMP).unlink(missing_ok=True)
    yield
    (venv / UNFINISHED).unlink()


def clear(venv):
    """Removes all but the mark, which an interruption of this leaves, too."""
    for path in venv.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != UNFINISHED:
            path.unlink()


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def left_over(venv, requirements):
    """The packages in `venv` that `requirements` does not name: those of older ones, or what packages asked for."""
    named = {normal(found) for found in re.findall(r"^[\w.-]+", requirements.read_text(), re.M)}
    sites = [str(site) for site in venv.glob("lib/python3*/site-packages")]
    there = {normal(found.metadata["Name"]) for found in importlib.metadata.distributions(path=sites)}
    return {name for name in there - named - ALWAYS_THERE if not name.startswith(OWN_PREFIX)}


def make_bare(venv, cache):
    """Fills a new environment with pip alone."""
    entry = cache / (BARE + hashlib.sha256(f"{python_name()} {ensurepip.version()}".encode()).hexdigest()[:20])
    with locked(cache / f"{entry.name}.lock"):
        if not entry.is_dir():
            subprocess.run([sys.executable, "-m", "venv", venv], check=True)
            store_entry(venv, entry)
        else:
            take_entry(venv, entry)


def make_new(venv, requirements, cache, over, tell):
    has_torch = any(line.startswith("torch==") for line in requirements.read_text().splitlines())
    what = "the environment; the first time it downloads torch (about 3 GB)" if has_torch else requirements.stem
    say(f"making {what}")
    with unfinished(venv):
        clear(venv)
        make_bare(venv, cache)
        see_through(venv, over)
        install(venv, requirements, over, tell)


def update(venv, requirements, over, tell):
    say(f"bringing {venv.name} up to date")
    with unfinished(venv):
        see_through(venv, over)
        install(venv, requirements, over, tell)


def prepare(venv, requirements, cache, key, over=None, tell=False):
    entry = cache / key
    if entry.is_dir():
        with unfinished(venv):
            clear(venv)
            take_entry(venv, entry)
            see_through(venv, over)
        return
    if works(venv):
        update(venv, requirements, over, tell)
        if left_over(venv, requirements):
            return  # nobody else gets those: another clone makes the entry
    else:
        make_new(venv, requirements, cache, over, tell)
    store_entry(venv, entry)


def stamp_of(venv, key):
    return f"{key} {venv}\n"


def is_ready(venv, key):
    stamp = venv / STAMP
    return stamp.is_file() and stamp.read_text() == stamp_of(venv, key) and (venv / "bin" / "python").exists()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--requirements", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--over", type=Path, help="an environment, made by this program, whose packages are seen too")
    parser.add_argument("--tell", action="store_true", help="what pip does, line by line")
    arguments = parser.parse_args()
    venv, cache = arguments.venv.absolute(), arguments.cache.absolute()
    over = arguments.over.absolute() if arguments.over else None
    key = environment_key(arguments.requirements, over)
    if is_ready(venv, key):
        return
    with locked(cache / f"{key}.lock"):
        if is_ready(venv, key):  # who had the lock has made it, and its programs run by now
            return
        drop_stale(cache, key)
        prepare(venv, arguments.requirements, cache, key, over, arguments.tell)
        (venv / STAMP).write_text(stamp_of(venv, key))


if __name__ == "__main__":
    main()
