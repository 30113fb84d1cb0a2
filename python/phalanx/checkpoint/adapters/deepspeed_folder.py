"""The directory of a DeepSpeed engine's checkpoints: `latest`, zero_to_fp32.py, and links from tags to steps."""

import contextlib
import errno
import itertools
import os
import re
import shutil
import tempfile

import deepspeed

from phalanx.checkpoint import universal
from phalanx.checkpoint.people import say

LATEST = "latest"
OURS = ("manifest.json", ".unfinished", ".deleted.json")  # what a folder of ours has one of, also a damaged one
_SCRIPT = "zero_to_fp32.py"
_TAG_BYTES_MAX = 256
_STEP = re.compile(r"\d+(\.\d+)?\Z")  # the name of a folder of ours


def put_script(directory):
    """DeepSpeed's zero_to_fp32.py, as engine.save_checkpoint() puts it there."""
    source = os.path.join(os.path.dirname(deepspeed.__file__), "utils", _SCRIPT)
    with tempfile.NamedTemporaryFile(dir=directory, prefix=f".{_SCRIPT}.", delete=False) as file:
        try:
            with open(source, "rb") as script:
                shutil.copyfileobj(script, file)
            os.chmod(file.name, os.stat(source).st_mode | 0o100)
            os.replace(file.name, os.path.join(directory, _SCRIPT))
        except OSError:
            os.unlink(file.name)
            raise


def read_latest(directory):
    """The tag in <directory>/latest, or None."""
    try:
        with open(os.path.join(directory, LATEST)) as file:
            return file.read(_TAG_BYTES_MAX).strip() or None
    except FileNotFoundError:
        return None


def put_latest(directory, tag):
    """<directory>/latest names that tag, if it is there yet; None: there is no such file. OSError."""
    path = os.path.join(directory, LATEST)
    if tag is None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    elif os.path.exists(os.path.join(directory, tag)):
        universal.write_text(path, tag)


def link(directory, tag, folder):
    """<directory>/<tag> leads to <directory>/<folder>; links to steps that are deleted go. OSError."""
    for entry in os.scandir(directory):
        if entry.is_symlink() and _STEP.match(os.readlink(entry.path)) and not os.path.exists(entry.path):
            os.unlink(entry.path)
    if tag == folder:
        return
    path, made = os.path.join(directory, tag), os.path.join(directory, f".{tag}.new")
    if os.path.lexists(path) and not os.path.islink(path):
        _put_aside(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(made)
    os.symlink(folder, made)
    os.replace(made, path)


def _put_aside(path):
    """What DeepSpeed itself has made there, all of it or the half."""
    if any(os.path.lexists(os.path.join(path, name)) for name in OURS):
        raise FileExistsError(errno.EEXIST, "it is the folder of another step", path)
    names = (f"{path}.before-phalanx{number or ''}" for number in itertools.count())
    aside = next(name for name in names if not os.path.lexists(name))
    os.rename(path, aside)
    say(f"{path} was there before, and is {aside} now")
