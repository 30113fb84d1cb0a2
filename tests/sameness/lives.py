"""Runs a script of the corpus: two lives and a second launch, by plain Python and by a launcher."""

import json
import re
import shutil
import signal
import subprocess
from pathlib import Path

from sameness.prefix import write_files

LIVES = ("first life", "second life", "second launch")
TIMEOUT_S = 60
# A warning that shows a descriptor's number: a worker has one descriptor more, its socket (docs/warm-workers.md).
_UNCLOSED = re.compile(r"(ResourceWarning: unclosed (?:file <.* name=|<socket.socket fd=))\d+")
_REPEATED = re.compile(r"\[Previous line repeated \d+ more times\]")


class Place:
    """The folders of one script. `work` is made anew for each side, under the same name: paths are in what is said.
    `dies`: whether the first life is killed where it tells."""

    def __init__(self, folder, case, prefix, dies=True):
        self.case, self.prefix, self.dies = case, prefix, dies
        self.work = Path(folder) / "work"
        self.notes = Path(folder) / "notes"
        self.reset()

    def reset(self):
        for folder in (self.work, self.notes):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        write_files(self.work, self._filled(self.case.files))
        write_files(self.prefix.packages, self._filled(self.case.installed))
        edits = {str(self.work / name): text for name, text in self._filled(self.case.edits).items()}
        (self.notes / "edits.json").write_text(json.dumps(edits))
        if not self.dies:
            (self.notes / "died").touch()

    def _filled(self, files):
        """Names and texts with {folder} and {packages} filled in."""

        def fill(text):
            text = text.replace("{folder}", str(self.work))
            return text.replace("{packages}", str(self.prefix.packages))

        return {fill(name): text if isinstance(text, bytes) else fill(text) for name, text in files.items()}

    def environment(self):
        return {
            "STANDIN_DIES": str(self.notes),
            "STANDIN_PRELOADED": str(self.notes / "preloaded"),
            **self.case.environment,
        }

    def command(self):
        """What a launcher is given: the script or -m and the module, and its arguments."""
        return [*(["-m"] if self.case.is_module else []), self.case.script, *self.case.args]

    def status_of(self, life):
        """How a process of that life ends, as subprocess gives it."""
        return -signal.SIGKILL if self.dies and life == LIVES[0] else 0

    def preloaded(self):
        """Of each life, the libraries that came from another process."""
        return [set(line.split()) for line in (self.notes / "preloaded").read_text().splitlines()]


def rank_environment(place, life):
    """What torchrun gives rank 0 that a library of the corpus may look at."""
    ranks = place.case.ranks
    worlds = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), str(ranks))
    zeros = dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"), "0")
    threads = {"OMP_NUM_THREADS": "1"} if ranks > 1 else {}
    return {**threads, **worlds, **zeros, "GROUP_WORLD_SIZE": "1", "TORCHELASTIC_RESTART_COUNT": str(life)}


def by_plain_python(place, environment, lives=LIVES):
    """{life: (stdout, stderr, exit status)}. The first is killed by its own script, as under a launcher."""
    said = {}
    for life, name in enumerate(lives):
        done = subprocess.run(
            [place.prefix.python, "-u", *place.command()],
            cwd=place.work,
            env={**rank_environment(place, life % 2), **environment, **place.environment()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        said[name] = (done.stdout, done.stderr, str(done.returncode))
    return said


def by_launcher(place, job, command, environment):
    """The same of a launcher, from the files that `--redirects` makes; what the launcher itself said is job.story()."""
    said = {}
    for launch in range(2):
        logs = job.folder / f"logs{launch}"
        flags = [
            "--standalone",
            f"--nproc-per-node={place.case.ranks}",
            "--max-restarts=1",
            "--redirects=3",
            f"--log-dir={logs}",
        ]
        if job.launcher != "torchrun":
            flags.append(f"--state-dir={job.folder / 'state'}")
        node = job.run(
            *flags, *place.command(), command=command, cwd=place.work, env={**place.environment(), **environment}
        )
        assert node.wait() == 0, f"{job.story()}\n{texts(logs, 0)}\n{texts(logs, 1)}"
        for attempt, name in enumerate(LIVES[:2] if launch == 0 else LIVES[2:]):
            said[name] = (*texts(logs, attempt), str(place.status_of(name)))
    return said


def differences(expected, found):
    """What one life said line by line, where another said something else; empty where all is the same."""
    told = []
    for life, streams in expected.items():
        for stream, theirs, ours in zip(("stdout", "stderr", "exit status"), streams, found[life]):
            theirs, ours = _lines(theirs), _lines(ours)
            if theirs != ours:
                here = [f"  python -u: {line}" for line in theirs if line not in ours]
                there = [f"  warm:      {line}" for line in ours if line not in theirs]
                told += [f"{life}, {stream}:", *(here + there or [f"  another order: {ours}", f"  not: {theirs}"])]
    return told


def _lines(text):
    """What is compared: a recursion ends some frames earlier above those of the bootstrap."""
    return _REPEATED.sub("[repeated]", _UNCLOSED.sub(r"\1", text)).splitlines()


def texts(logs, attempt):
    """What rank 0 has written in one life: (stdout, stderr)."""
    found = [next(logs.glob(f"*/attempt_{attempt}/0/{stream}.log"), None) for stream in ("stdout", "stderr")]
    return tuple(path.read_text() if path else "" for path in found)
