"""What `site` runs when an interpreter starts: sitecustomize, usercustomize, and lines of .pth files that import.

Each rank's own start would run them; a fork has what the zygote's did, without the variables of ranks. Where there are
such files, another interpreter runs them under the watch (site_probe.py): what a fork must not inherit is found there.
"""

import json
import os
import site
import sys

from phalanx._bootstrap import linux
from phalanx._bootstrap.watching import reads

_MODULES = ("sitecustomize", "usercustomize")
# Lines that packages everywhere bring, by how they begin: of setuptools and virtualenv.
_KNOWN = ("import os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = ", "import _virtualenv")


class Looked:
    """`why` a fork must not have what they have done, or None; `variables` {name: value} and `files` {(path, how):
    reads.look} that they have read; `walked`: whether they have looked through all variables."""

    def __init__(self, why=None, read=None, walked=False, files=()):
        self.why = why
        self.variables = read or {}
        self.walked = walked
        self.files = {(path, how): tuple(found) if isinstance(found, list) else found for path, how, found in files}


class Asked:
    """Another interpreter that does what they do: a tenth of a second's work beside this one's own imports."""

    def __init__(self):
        """Where it hangs, each start of Python does: no limit of time is needed that this one has not had."""
        self._pid, self._answer, self._error = None, None, None
        if not _there():
            return
        probe = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site_probe.py")
        answer, ours = os.pipe()
        words = [sys.executable or "", *linux.interpreter_options()[1:], "-S", probe, str(ours)]
        os.set_inheritable(ours, True)
        try:
            # Deaf to what is meant for ranks, as the zygote is.
            self._pid = os.posix_spawn(words[0], words, linux.environment_at_start(), setsigmask=linux.FOR_RANKS)
            self._answer = answer
        except OSError as error:
            os.close(answer)
            self._error = error
        os.close(ours)

    def look(self):
        """A Looked of what they do; waits for it. Once."""
        files = [] if sys.flags.no_site else _path_files()
        if self._error is not None:
            return Looked(f"what they do cannot be found out: {self._error}")
        if self._pid is None:
            return Looked(files=files)
        with open(self._answer, "rb") as file:
            text = file.read()
        os.waitpid(self._pid, 0)
        try:
            found = json.loads(text.decode("utf-8", "surrogateescape"))
            return Looked(found["why"], found["read"], found["walked"], [*found["files"], *files])
        except ValueError as error:
            return Looked(f"what they do cannot be found out: {error}")


def _there():
    if sys.flags.no_site:
        return False
    return any(name in sys.modules for name in _MODULES) or any(_has_code(folder) for folder in _folders())


def _folders():
    found = list(site.getsitepackages())
    return [*found, site.getusersitepackages()] if site.ENABLE_USER_SITE else found


def _path_files():
    """[path, how, reads.look] of those by which `site` puts entries on sys.path, and of the folders that may have some:
    one that was not there is no entry itself."""
    folders = _folders()
    looks = [(folder, "paths") for folder in folders] + [(path, "file") for each in folders for path in _paths(each)]
    return [(path, how, reads.look(path, how)) for path, how in looks]


def _paths(folder):
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".pth")]
    except OSError:
        return []


def _has_code(folder):
    return any(map(_runs, _paths(folder)))


def _runs(path):
    try:
        with open(path, encoding="utf-8-sig", errors="replace") as file:
            return any(line.startswith(("import ", "import\t")) and not line.startswith(_KNOWN) for line in file)
    except OSError:
        return False
