"""The environment variables that phalanx.shim sets, put in and taken out again. Pure."""

import os

SHIM_PYTHON = "PHALANX_SHIM"  # the interpreter that the shim's torchrun runs
SHIM_PID = "PHALANX_SHIM_PID"  # of the command that the shim became
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SITE_FOLDER = os.path.join(_PACKAGE, "shim", "site")
COMMAND_FOLDER = os.path.join(_PACKAGE, "shim", "bin")


def with_shim(environment, python):
    """A copy of `environment` in which programs that launch through torch get Phalanx."""
    changed = dict(without_shim(environment))
    changed["PYTHONPATH"] = _joined(SITE_FOLDER, changed.get("PYTHONPATH"))
    changed["PATH"] = _joined(COMMAND_FOLDER, changed.get("PATH") or os.defpath)
    changed[SHIM_PYTHON] = python
    changed[SHIM_PID] = str(os.getpid())
    return changed


def without_shim(environment):
    """A copy of `environment` without the shim, whatever else has been added to it since."""
    changed = dict(environment)
    changed.pop(SHIM_PYTHON, None)
    changed.pop(SHIM_PID, None)
    for name, folder in (("PYTHONPATH", SITE_FOLDER), ("PATH", COMMAND_FOLDER)):
        entries = changed.get(name, "").split(os.pathsep)
        if folder in entries:
            changed[name] = os.pathsep.join(entry for entry in entries if entry != folder)
            if not changed[name]:
                del changed[name]
    return changed


def _joined(folder, rest):
    return folder + os.pathsep + rest if rest else folder
