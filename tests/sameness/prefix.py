"""A throw-away Python installation, a virtual environment made by hand, with the stand-in libraries."""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from sameness import libraries

_HERE = Path(__file__).resolve().parent


class Prefix:
    """`python`, and `launcher`, a phalanx-run that stands beside it and so takes it for its ranks."""

    def __init__(self, folder, launcher=None, more=None):
        """`more`: {name: text} of further files of its site-packages."""
        self.folder = Path(folder)
        self.python = self.folder / "bin" / "python"
        self.launcher = self.folder / "bin" / "phalanx-run"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.packages = self.folder / "lib" / version / "site-packages"
        self.python.parent.mkdir(parents=True)
        interpreter = os.path.realpath(sys.executable)
        os.symlink(interpreter, self.python)
        home = os.path.dirname(interpreter)
        self.folder.joinpath("pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n")
        write_files(self.packages, {**libraries.texts(), **(more or {})})
        shutil.copyfile(_HERE / "standin.py", self.packages / "standin.py")
        if launcher is not None:
            for name in ("phalanx", "phalanx-run", "phalanx-master"):
                _place(Path(launcher).resolve().parent / name, self.python.parent / name)


def _place(source, target):
    """The same program under another name: it looks for its interpreter where it stands."""
    try:
        os.link(source, target)
    except OSError:  # another disk
        shutil.copy2(source, target)


def write_files(folder, files):
    for name, text in files.items():
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(text, bytes):
            path.write_bytes(text)
        else:
            path.write_text(text)


def purelib():
    """Where the packages of the Python that runs the tests are: torch, for torchrun."""
    return sysconfig.get_paths()["purelib"]
