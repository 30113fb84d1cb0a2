"""Files under the names that a script gives its saves: hard links to what lies in the folders of steps.

`paths.json` in the checkpoint directory remembers the names, so that a step which the agent has stored behind the death
of its ranks gets its name in the next life. Only rank 0 writes here.
"""

import json
import os
import re
import sys
import threading

from phalanx.checkpoint.adapters import published

OFFERED = {}
_RECORD = "paths.json"
_WAITING = 16  # names of the newest saves that are not stored, or not yet
_KEPT = 2  # folders of the newest steps, from which load() goes on; older ones are their files alone
MAIN, _MANIFEST = "main.pt", "manifest.json"  # in a step's folder
_PART = re.compile(r"rank_\d+\.pt")
_OF_A_STEP = re.compile(rf"\d+(\.\d+)?/({re.escape(MAIN)}|{_PART.pattern}|{re.escape(_MANIFEST)})")


class Paths:
    def __init__(self, checkpointer, file, thins_out):
        """`file`: in a step's folder; `thins_out`: whether folders of older steps go once their file has its name."""
        self._checkpointer, self._file, self._thins_out = checkpointer, file, thins_out
        self._path = os.path.join(checkpointer.directory, _RECORD)
        self._lock = threading.Lock()

    def will_be(self, step, path):
        """Before the save of that step, to disk or to memory, from which the agent may store it. A path that is a file
        of a step's by itself, as DLRover's default <directory>/<step>/rank_0.pt, is none to be made."""
        with self._lock:
            record = self._read()
            record.pop(str(step), None)  # it becomes the newest entry
            if not self._is_of_a_step(path):
                record[str(step)] = {"path": os.path.abspath(path), "is_there": False}
            waiting = [step for step, wanted in record.items() if not wanted["is_there"]]
            for old in waiting[:-_WAITING]:
                del record[old]
            self._write(record)

    def publish(self):
        """All that are stored and have no name yet get theirs. OSError, RuntimeError."""
        with self._lock:
            record = self._read()
            if not record:
                return
            stored = {}
            for each in self._checkpointer.steps():
                stored.setdefault(str(each.step), each)  # that which was stored last
            for step, wanted in record.items():
                if step in stored and not wanted["is_there"]:
                    published.publish_file(os.path.join(stored[step].path, self._file), wanted["path"])
                    wanted["is_there"] = True
            self._thin_out(record)
            self._write({step: wanted for step, wanted in record.items() if step in stored or not wanted["is_there"]})

    def _is_of_a_step(self, path):
        folder, name = os.path.split(os.path.abspath(path))  # a link there would be replaced, and not followed
        inner = os.path.relpath(os.path.realpath(folder), os.path.realpath(self._checkpointer.directory))
        return _OF_A_STEP.fullmatch(os.path.join(inner, name)) is not None

    def _thin_out(self, record):
        for each in self._checkpointer.steps()[_KEPT:] if self._thins_out else ():
            wanted = record.get(str(each.step), {"path": "", "is_there": False})
            lies_within = os.path.realpath(os.path.dirname(wanted["path"])) == os.path.realpath(each.path)
            if wanted["is_there"] and not lies_within:  # else its file would go, too
                self._checkpointer.delete(each.step, timeline=each.timeline)

    def _read(self):
        try:
            with open(self._path, encoding="utf-8") as file:
                found = json.load(file)
            return {
                step: {"path": str(wanted["path"]), "is_there": bool(wanted["is_there"])}
                for step, wanted in found.items()
            }
        except FileNotFoundError:
            return {}
        except (ValueError, AttributeError, TypeError, KeyError) as error:
            sys.stderr.write(f"phalanx-dlrover: {self._path} is begun anew: it cannot be read ({error})\n")
            return {}

    def _write(self, record):
        """Not synced: what a power cut takes is a name, and no state."""
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        draft = f"{self._path}.new"
        with open(draft, "w", encoding="utf-8") as file:
            json.dump(record, file)
        os.replace(draft, self._path)


def whole_of(path):
    """The file with the whole state where `path` names what is one rank's own, in the folder of a step that was stored
    here; else `path`. In DLRover rank_N.pt is the whole state."""
    folder, name = os.path.split(path)
    whole = os.path.join(folder, MAIN)
    is_part = _PART.fullmatch(name) is not None and is_stored_here(folder) and os.path.isfile(whole)
    return whole if is_part else path


def is_stored_here(folder):
    """Whether it is that of a step, and not one of DLRover's."""
    return os.path.isfile(os.path.join(folder, _MANIFEST))
