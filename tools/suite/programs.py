"""Programs of a test run: one in the foreground, or several behind it whose output is kept in a file."""

import contextlib
import functools
import os
import signal
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REPORTS = ROOT / "build" / "reports"
ENDS_WITHIN_S = 60


def say(text):
    print(f"== {text}", flush=True)


def run(command, env=None):
    """The exit status of a program in the foreground. Interrupted, it has time to end what it has started."""
    with subprocess.Popen(command, cwd=ROOT, env=env) as process:
        try:
            return process.wait()
        except BaseException:  # a signal, as an exception
            end(process, process.send_signal)
            raise


def end(process, send):
    """Asked politely, pytest ends the jobs that its tests have started."""
    send(signal.SIGINT)
    try:
        process.wait(ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        send(signal.SIGKILL)
        process.wait()


class Background:
    """A program that works beside the others, its output in build/reports/NAME.log until it has ended."""

    def __init__(self, name, command, nice=0, env=None):
        self.name, self.began, self.log = name, time.monotonic(), REPORTS / f"{name.replace(' ', '-')}.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                ["nice", "-n", str(nice), *command],
                cwd=ROOT,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if nice:
            set_share(self.process.pid, nice)

    def wait(self):
        """Its exit status, and the seconds since its start. Shows what it said where it failed. From now on others wait
        for it, so it yields to them no more."""
        set_share(self.process.pid, 0)
        status = self.process.wait()
        lasted_s = time.monotonic() - self.began
        if status != 0:
            print(self.log.read_text(errors="replace"), flush=True)
        return status, lasted_s

    def end(self):
        """Of a run that ends early."""
        if self.process.poll() is None:
            end(self.process, functools.partial(os.killpg, self.process.pid))


def set_share(pid, nice):
    """Where the kernel shares out processors by session, niceness alone counts within one only. Only root may ask for
    more than before."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))
