"""Runs shell functions of tools/setup.sh at the same time, and says every few seconds what each of them does.

Each argument is "NAME: COMMAND". Lines of a command go to build/NAME.log; those that begin with "== " are for people
and are shown at once. The first command that fails ends the others; its last lines are shown, and its status is ours.
Whoever interrupts this program interrupts all of them: each has a process group of its own, and none is left running.
"""

import dataclasses
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

SAY_EVERY_S = 5
SAY_TO_FILE_EVERY_S = 10  # and to a pipe, where nobody watches
QUICK_S = 2  # not worth a line
# How long an interrupted command may take for its own clean-up: pip removes what it has unpacked.
CLEAN_UP_S = 10
SHOWN_LINES = 60
# What a command writes of its progress: ninja's "[3/9] Building ... a.cc.o", and pip's verbs.
NOW = "now: "
NINJA = re.compile(r"^\[(\d+/\d+)\] (\w+)(?:.*[/ ])?(\S+)")
DONE = re.compile(r"(\d+)/(\d+) ")
WHEEL = re.compile(r"^ *(?:Downloading|Using cached) ([^-]+-[^-]+)-.*(\(\S+ .?B\))")
PIP = re.compile(r"^ *((?:Collecting|Downloading|Using cached|Building wheel|Installing build dependencies).*)")


def say(text):
    print(f"== {text}", file=sys.stderr, flush=True)


def progress_in(line):
    """What a line tells of a command's progress; None where it tells nothing."""
    if line.startswith(NOW):
        return line.removeprefix(NOW)
    if found := NINJA.match(line):
        return f"{found[1]} {found[2]} {found[3].removesuffix('.o')}"
    if found := WHEEL.match(line):
        return f"Downloading {found[1]} {found[2]}"
    if line.startswith("Installing collected packages: "):
        return f"Installing {line.count(',') + 1} packages"
    if found := PIP.match(line):
        return found[1].partition(" (from ")[0]
    return None


def compiling(session):
    """(source, seconds) of the compiler that has worked longest in this session; None without one. Ninja tells of what
    is done alone, and the last source of a build may take minutes."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) != session:
                continue
            words = (folder / "cmdline").read_text(errors="replace").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        if "-c" in words[:-1] and (source := words[words.index("-c") + 1]).endswith((".cc", ".c", ".cpp")):
            found.append((int(fields[19]), Path(source).name))
    if not found:
        return None
    began, source = min(found)
    return source, time.clock_gettime(time.CLOCK_BOOTTIME) - began / os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass
class Lane:
    """One command, from its start to its end."""

    name: str
    process: subprocess.Popen
    log: object
    at: str = "begun"  # where it is now
    rest: bytes = b""  # a line that has not ended yet

    def read(self):
        """Takes what there is. False at the end of the output, which is that of its last process."""
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        self.log.write(data)
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            self.take(line.decode(errors="replace"))
        return bool(data)

    def take(self, line):
        if line.startswith("== "):
            say(line.removeprefix("== "))
        self.at = progress_in(line) or self.at

    def where(self):
        """For a person: ninja's count of what is done, and what is under way."""
        done = DONE.match(self.at)
        now = compiling(self.process.pid)
        if done and now:
            return f"{done[1]}/{done[2]} done; now {now[0]} ({now[1]:.0f} s)"
        return self.at

    def last_lines(self):
        """What a person needs of a failed command's output: from ninja's first failure on, without progress."""
        self.log.flush()
        lines = Path(self.log.name).read_text(errors="replace").splitlines()
        first = next((number for number, line in enumerate(lines) if line.startswith("FAILED: ")), 0)
        told = [line for line in lines[first:] if not progress_in(line) and not line.startswith("== ")]
        return told[:SHOWN_LINES] if first else told[-SHOWN_LINES:]


def start(name, command, folder):
    log = open(folder / f"{name}.log", "wb")
    script = f"set -euo pipefail; source tools/setup.sh; {command}"
    process = subprocess.Popen(
        ["bash", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    return Lane(name, process, log)


class Signals:
    """Those that end this program, as bytes to be read beside the commands' output: none comes at a bad moment."""

    def __init__(self):
        self.reader, writer = socket.socketpair()
        writer.setblocking(False)
        self.writer = writer  # kept open
        signal.set_wakeup_fd(writer.fileno())
        # Set, too, where a shell started us with SIGINT ignored: what we start would ignore it then.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: None)

    def read(self):
        return self.reader.recv(1)[0]


def follow(lanes, signals):
    """Waits for all, one that fails, or a signal. Returns what failed, or None, and the signal's number, or 0."""
    clock = Clock()
    with selectors.DefaultSelector() as selector:
        selector.register(signals.reader, selectors.EVENT_READ, None)
        for lane in lanes:
            selector.register(lane.process.stdout, selectors.EVENT_READ, lane)
        running = list(lanes)
        while running:
            for key, _ in selector.select(clock.left_s()):
                lane = key.data
                if lane is None:
                    return None, signals.read()
                if lane.read():
                    continue
                selector.unregister(key.fileobj)
                running.remove(lane)
                if lane.process.wait() != 0:
                    return lane, 0
                if clock.passed_s() > QUICK_S:
                    say(f"{lane.name}: ready after {clock.passed_s():.0f} s")
            clock.say(running)
    return None, 0


class Clock:
    """Says where the commands are, every few seconds."""

    def __init__(self):
        self.began = time.monotonic()
        self.every_s = SAY_EVERY_S if sys.stderr.isatty() else SAY_TO_FILE_EVERY_S
        self.due = self.began + self.every_s

    def passed_s(self):
        return time.monotonic() - self.began

    def left_s(self):
        return max(0, self.due - time.monotonic())

    def say(self, running):
        if time.monotonic() < self.due:
            return
        self.due += self.every_s
        minutes, seconds = divmod(int(self.passed_s()), 60)
        say(f"{minutes}:{seconds:02}  " + "; ".join(f"{lane.name}: {lane.where()}" for lane in running))


def end(lanes):
    """Interrupts what still runs, lets it clean up, then kills what is left of it."""
    for lane in lanes:
        signal_group(lane, signal.SIGINT)
    deadline = time.monotonic() + CLEAN_UP_S
    with selectors.DefaultSelector() as selector:
        for lane in lanes:
            selector.register(lane.process.stdout, selectors.EVENT_READ, lane)
        while selector.get_map() and (left_s := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                if not key.data.read():
                    selector.unregister(key.fileobj)
    for lane in lanes:
        signal_group(lane, signal.SIGKILL)
        lane.process.wait()


def signal_group(lane, number):
    # Its number is that of its first process, which is not waited for before the group has ended.
    try:
        os.killpg(lane.process.pid, number)
    except ProcessLookupError:
        pass


def main():
    folder = Path("build")
    folder.mkdir(exist_ok=True)
    signals = Signals()
    commands = [argument.partition(": ") for argument in sys.argv[1:]]
    lanes = [start(name, command, folder) for name, _, command in commands]
    failed, interruption = follow(lanes, signals)
    end([lane for lane in lanes if lane.process.returncode is None])
    if interruption:
        done = [found for lane in lanes if (found := DONE.match(lane.at)) and found[1] != found[2]]
        after = f" after {done[0][1]} of {done[0][2]}" if done else ""
        say(f"interrupted{after}; nothing is left running. What is finished is kept; the same command goes on")
        return 128 + interruption
    if failed is None:
        return 0
    print("\n".join(failed.last_lines()), file=sys.stderr)
    print(f"run: {failed.name} failed; all it said is in {failed.log.name}", file=sys.stderr)
    return failed.process.returncode if failed.process.returncode > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
