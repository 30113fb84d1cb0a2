"""Programs of a test run: one in the foreground, or several behind it whose output is kept in a file."""

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REPORTS = ROOT / "build" / "reports"
NOTHING_COLLECTED = 5  # pytest's exit status where it has no test to run
ENDS_WITHIN_S = 60
# Before a command: the kernel interrupts it where we are killed, and cannot.
ENDS_WITH_US = ("setpriv", "--pdeathsig", "INT")


class Interrupted(SystemExit):
    """A signal asked this program to end. `code` is its exit status, as shells tell it."""


class Overdue(str):
    """Stands for the exit status of a program that ran longer than it may, and was ended."""

    def __new__(cls, status, limit_s):
        return super().__new__(cls, f"{status}, ended by us after {limit_s:g} s")


def say(text):
    print(f"== {text}", flush=True)


def cache_folder():
    """What all clones share, where tools/setup.sh has it, too."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("PHALANX_CACHE") or Path(caches) / "phalanx")


@contextlib.contextmanager
def only_run():
    """Of the tests in this clone: a second one ends with a sentence. ./run asks the same lock before it prepares."""
    REPORTS.parent.mkdir(parents=True, exist_ok=True)
    with open(REPORTS.parent / ".test.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit("test: another ./run test works in this clone, and its reports are in build/reports")
        yield


GTEST_SEEDS = 99_999  # 1 and up; 0 lets googletest choose


def gtest_environment(reports, seed):
    """Of programs of unit tests that report into the folder `reports` and choose by `seed`. What a person's shell has
    for googletest is left out: a filter or a shard would leave out tests without a word."""
    own = {"GTEST_OUTPUT": f"xml:{reports}/", "GTEST_COLOR": "no", "GTEST_RANDOM_SEED": str(seed % GTEST_SEEDS + 1)}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GTEST_")}
    return {**kept, **own}


def hear_signals():
    """Those that end a program raise Interrupted, so that what runs is ended as well."""

    def interrupt(number, _):
        raise Interrupted(128 + number)

    # SIGINT, too, where a shell started us with it ignored, as in a background job.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)


def run(command, env=None, limit_s=None):
    """The exit status of a program in the foreground, Overdue where it runs longer than `limit_s`. It has a session of
    its own, so that an interruption reaches all that it has started: ctest ends by it at once, and would leave its
    tests running. What a terminal sends to our group, we pass on."""
    with CtrlZ() as ctrl_z:
        process = subprocess.Popen([*ENDS_WITH_US, *command], cwd=ROOT, env=env, start_new_session=True)
        try:
            ctrl_z.stops(process.pid)
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            end(process)
            return Overdue(process.returncode, limit_s)
        except BaseException:  # a signal, as an exception
            end(process)
            raise


class CtrlZ:
    """Stops a group as well as us, and fg continues it. It hears from before the group is there."""

    def __init__(self):
        self._group, self._is_asked = None, False

    def __enter__(self):
        self._before = signal.getsignal(signal.SIGTSTP)
        if self._before is signal.SIG_DFL:  # else a shell without job control has it ignored
            signal.signal(signal.SIGTSTP, self._stop)
        return self

    def __exit__(self, *_):
        signal.signal(signal.SIGTSTP, self._before)

    def stops(self, group):
        self._group = group
        if self._is_asked:
            self._stop()

    def _stop(self, *_):
        if self._group is None:
            self._is_asked = True
            return
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # it has just ended
            os.killpg(self._group, signal.SIGSTOP)
            os.waitid(os.P_PID, self._group, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            os.kill(os.getpid(), signal.SIGSTOP)
            os.killpg(self._group, signal.SIGCONT)


def end(process):
    """Ends the group of `process`, whose first it is. Asked politely, pytest ends the jobs that its tests have started;
    what is left then, or after a second interruption, is killed."""
    ended = os.pidfd_open(process.pid)  # tells of its end while its number, that of the group, is still taken
    try:
        os.killpg(process.pid, signal.SIGINT)
        select.select([ended], [], [], ENDS_WITHIN_S)
    finally:
        os.close(ended)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Background:
    """A program that works beside the others, its output in build/reports/NAME.log until it has ended."""

    def __init__(self, name, command, nice=0, env=None):
        self.name, self.began, self.log = name, time.monotonic(), REPORTS / f"{name.replace(' ', '-')}.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [*ENDS_WITH_US, "nice", "-n", str(nice), *command],
                cwd=ROOT,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if nice:
            set_share(self.process.pid, nice)

    def wait(self, limit_s=None):
        """Its exit status, and the seconds since its start. Shows what it said where it failed. From now on others wait
        for it, so it yields to them no more; Overdue where they wait for `limit_s`."""
        set_share(self.process.pid, 0)
        try:
            status = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            end(self.process)
            status = Overdue(self.process.returncode, limit_s)
        lasted_s = time.monotonic() - self.began
        if status != 0:
            print(self.log.read_text(errors="replace"), flush=True)
        return status, lasted_s

    def end(self):
        """Of a run that ends early."""
        if self.process.poll() is None:
            end(self.process)


def set_share(pid, nice):
    """Where the kernel shares out processors by session, niceness alone counts within one only. Only root may ask for
    more than before."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))
