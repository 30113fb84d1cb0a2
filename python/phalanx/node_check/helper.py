"""The helper's loop: orders in, lines out. It forks a process for each order and ends all of that process's tree."""

import json
import os
import select
import signal
import sys
import time

from phalanx._bootstrap import linux
from phalanx.node_check import child, pipes, processes
from phalanx.node_check.orders import MOST_LINE_BYTES, Garbage, Refused, read_line, read_order
from phalanx.node_check.texts import clean, joined, seconds

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_MOST_ENDED_CHARACTERS = 4096


class Running:
    """A forked process that carries out an order."""

    def __init__(self, order, pid, reports, stderr):
        self.order, self.pid = order, pid
        self.reports, self.stderr = reports, stderr
        self.began_at = time.monotonic()
        self.ends_at = self.began_at + order.limit_ms / 1000
        self.lines, self.words = pipes.Lines(), pipes.LastWords()
        self.check, self.last_check = None, None
        self.trouble = None  # why it must be ended

    def where(self):
        if self.check is not None:
            return f" in {self.order.named(self.check)}"
        return f" behind {self.order.named(self.last_check)}" if self.last_check is not None else ""


class Helper:
    def __init__(self, orders, reports, torch):
        self._orders, self._reports, self._torch = orders, reports, torch
        self._lines = pipes.Lines(MOST_LINE_BYTES, None)
        self._statuses = {}
        self._running = None
        self._wakeups = None

    def run(self):
        """The status to end with."""
        linux.adopt_orphans()
        self._wakeups = processes.Wakeups(_ENDING)
        try:
            self._tell({"type": "ready", "torch": self._torch.version()})
            while self._step():
                pass
        except (Garbage, pipes.TooMuch) as error:
            print(f"phalanx.node_check: {error}", file=sys.stderr)
            return 2
        except BrokenPipeError:
            return 0  # as at the end of its orders: the agent is gone
        finally:
            processes.end_all(self._wakeups, self._statuses)
        return 0

    def _step(self):
        """Waits for something, and acts on it. False at the end of orders."""
        if not self._wakeups.heard.isdisjoint(_ENDING):
            return False  # it came while an order was ended
        fds, wait_s = [self._orders, self._wakeups.fd], None
        if self._running is not None:
            fds += [self._running.reports, self._running.stderr]
            wait_s = max(0, self._running.ends_at - time.monotonic())
        ready, _, _ = select.select([fd for fd in fds if fd is not None], [], [], wait_s)
        self._wakeups.take()
        processes.reap(self._statuses)
        if self._running is not None:
            self._look_at(self._running)
        elif self._statuses:
            self._statuses.clear()  # one that could not be ended in time, and has ended now
        return self._orders not in ready or self._take_orders()

    def _take_orders(self):
        data = pipes.read_ready(self._orders)  # there is something: this does not wait
        if not data:
            return False
        for line in self._lines.feed(data):
            message = read_line(line)
            if message["type"] == "cancel":
                if self._running is not None and self._running.order.id == message["id"]:
                    self._end("cancelled")
            else:
                if self._running is not None:
                    self._end("given up", f" for order {message['id']}")
                self._begin(message)
        return True

    def _begin(self, message):
        try:
            order = read_order(message)
        except Refused as refused:
            self._tell({"type": "done", "id": message["id"], "ended": clean(f"refused: {refused}")})
            return
        reports, child_reports = os.pipe()
        stderr, child_stderr = os.pipe()
        helper_pid = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            for fd in (reports, child_reports, stderr, child_stderr):
                os.close(fd)
            ended = f"refused: no process can be made: {os.strerror(error.errno)}"
            self._tell({"type": "done", "id": order.id, "ended": ended})
            return
        if pid == 0:
            ours = (self._orders, self._reports, reports, stderr, *self._wakeups.fds())
            child.carry_out(order, self._torch, helper_pid, child_reports, child_stderr, ours)
        os.close(child_reports)
        os.close(child_stderr)
        os.set_blocking(reports, False)
        os.set_blocking(stderr, False)
        self._running = Running(order, pid, reports, stderr)

    def _look_at(self, running):
        ended = self._statuses.get(running.pid)  # before its pipes, which have all of it then
        self._drain(running)
        if running.trouble is not None:
            self._end("ended", f": {running.trouble}")
        elif ended is not None:
            self._end(processes.how_it_ended(ended), quotes=True)
        elif time.monotonic() >= running.ends_at:
            self._end(f"ended after {seconds(running.order.limit_ms / 1000)} (--check-timeout)", quotes=True)

    def _end(self, how, why="", quotes=False):
        """Ends all that the order has started, and says so: how, where and why; with last words if `quotes`."""
        running = self._running
        left = processes.end_all(self._wakeups, self._statuses)
        self._drain(running)
        for fd in (running.reports, running.stderr):
            if fd is not None:
                os.close(fd)
        if not how and running.check is not None:
            how = "exited with status 0"  # by a library's will
        ended = f"{how}{running.where()}{why}{running.words.said() if quotes else ''}" if how else ""
        if left:
            name = f"could not be ended within {processes.END_WITHIN_S} s: {joined(left)}"
            ended = f"{ended}; {name}" if ended else name
        self._running = None
        self._statuses.clear()
        self._tell({"type": "done", "id": running.order.id, "ended": clean(ended, _MOST_ENDED_CHARACTERS)})

    def _drain(self, running):
        """Passes on whole lines that are there by now, and keeps last words."""
        while running.reports is not None and running.trouble is None:
            data = pipes.read_ready(running.reports)
            if data is None:
                break
            if data == b"":
                os.close(running.reports)
                running.reports = None
                break
            self._pass_on(running, data)
        # So many reads at most: one that floods must not keep this from its limit.
        for _ in range(64):
            data = pipes.read_ready(running.stderr) if running.stderr is not None else None
            if data is None:
                break
            if data == b"":
                os.close(running.stderr)
                running.stderr = None
            running.words.feed(data)

    def _pass_on(self, running, data):
        try:
            lines = running.lines.feed(data)
        except pipes.TooMuch as error:
            running.trouble = str(error)
            return
        for line in lines:
            kind, check = _of_report(line, running.order.id)
            if kind is None:
                running.trouble = "it wrote a line that is no report"
                return
            running.check = check if kind == "begun" else None
            running.last_check = check
            self._write(line + b"\n")

    def _tell(self, message):
        self._write(json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n")

    def _write(self, data):
        while data:
            data = data[os.write(self._reports, data) :]


def _of_report(line, order_id):
    """(type, check) of a line of a child's; (None, None) of one that it cannot have meant."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None, None
    if not isinstance(message, dict) or message.get("id") != order_id or not isinstance(message.get("check"), str):
        return None, None
    return (message["type"], message["check"]) if message.get("type") in ("begun", "result") else (None, None)
