"""A program at a terminal: what a person would see and type."""

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import termios
import time


def set_size(fd, rows, columns):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _become_foreground():
    """In the child: a session of its own, whose terminal is its standard input."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """Runs `command` as the foreground program of a pseudo-terminal. `text`: all it has shown so far."""

    def __init__(self, command, env, cwd, rows=40, columns=100):
        self.text = ""
        self.fd, theirs = os.openpty()
        set_size(self.fd, rows, columns)
        self.process = subprocess.Popen(
            command, env=env, cwd=cwd, stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=_become_foreground
        )
        os.close(theirs)

    def wait_text(self, pattern, timeout_s=150, after=0):
        """Waits until what was shown from position `after` on matches; returns the match."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = re.compile(pattern).search(self.text, after)
            if found:
                return found
            assert self._read(deadline), f"waited in vain for {pattern!r} in:\n{self.text}"

    def wait_end(self, timeout_s=150):
        """The exit code; all that was shown is in `text`."""
        deadline = time.monotonic() + timeout_s
        while self._read(deadline):
            pass
        return self.process.wait(max(1.0, deadline - time.monotonic()))

    def _read(self, deadline):
        """Takes what is shown next. False where the time is over, or everybody has closed the terminal."""
        ready, _, _ = select.select([self.fd], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return False
        try:
            data = os.read(self.fd, 1 << 16)
        except OSError:  # EIO: nobody has the terminal open any more
            return False
        self.text += data.decode(errors="replace")
        return bool(data)

    def type(self, text):
        os.write(self.fd, text.encode())

    def resize(self, rows, columns):
        set_size(self.fd, rows, columns)

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self.fd)
