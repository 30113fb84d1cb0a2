"""The checkpoint socket, this rank's end: docs/formats/checkpoint-socket.md. One JSON object a packet. Whoever in a
rank has something to ask of its agent asks here, without torch."""

import collections
import itertools
import json
import os
import select
import socket
import threading
import time
import weakref

PACKET_BYTES_MAX = 64 << 10
_KEPT_MAX = 4096  # packets that found no room


class Refusal(Exception):
    """The agent has answered that it cannot. The text is its reason."""


class Gone(Exception):
    """The agent does not answer any more."""


class _End:
    """What all Doors at one socket share: there is one for each Checkpointer, and any may read another's answer."""

    def __init__(self):
        self.ids = itertools.count(1)
        self.waiting = {}  # {id: _Question}, of those that nobody has answered
        self.kept = collections.deque(maxlen=_KEPT_MAX)  # packets that nobody answers, and that found no room
        # Held for a moment, never while somebody waits; a signal handler may come in between.
        self.lock = threading.RLock()


_ends = weakref.WeakValueDictionary()  # by the socket's identity
_ends_lock = threading.RLock()


class Door:
    """Speaks with the agent. Any number of threads may ask at once, and signal handlers within them: whoever reads an
    answer to another's question puts it down for that one, and wakes it."""

    def __init__(self, fd):
        # Of our own, so that the socket stays open whatever becomes of the descriptor that the rank was given.
        self._socket = socket.socket(fileno=os.dup(fd))
        self._socket.setblocking(True)
        status = os.fstat(self._socket.fileno())
        with _ends_lock:
            self._end = _ends.setdefault((status.st_dev, status.st_ino), _End())
        self._closed = None  # what those are answered who wait when this one is closed, or come later

    def fileno(self):
        """For the native side, which says by itself when an image is sealed."""
        return self._socket.fileno()

    def ask(self, request, /, timeout_s=None, **fields):
        """The agent's answer to one request, which goes out behind all that was told. Waits for it; Refusal and Gone
        say what else may come. Raises TimeoutError where none has come within `timeout_s`: it will be passed over."""
        question = _Question(next(self._end.ids), self)
        with self._end.lock:
            self._end.waiting[question.id] = question
            if self._closed is not None:
                question.settle(self._closed)
            fd = self._socket.fileno()  # while a close() of another thread cannot have taken it away unseen
        try:
            answer = self._await(question, packet(type=request, id=question.id, **fields), fd, timeout_s)
        except TimeoutError:
            raise
        except OSError as error:
            raise Gone(f"the agent's socket: {error.strerror}") from None
        finally:
            with self._end.lock:
                del self._end.waiting[question.id]
                question.close()
        if "error" in answer:
            raise Refusal(str(answer["error"]))
        return answer

    def tell(self, data):
        """One packet that nobody answers. It never waits: False where it finds no room, and is kept until something is
        told or asked, or where it finds nobody."""
        with self._end.lock:
            self._end.kept.append(data)
            return self.tell_kept()

    def tell_kept(self):
        """Tells what has found no room before, in its order. Whether all of that is told."""
        kept = self._end.kept
        with self._end.lock:
            while kept:
                data = kept.popleft()
                try:
                    if not self._has_sent(data):
                        kept.appendleft(data)
                        return False
                except OSError:
                    kept.clear()
                    return False
        return True

    def close(self, why="the Checkpointer was closed before the agent had answered"):
        """Who still waits for an answer is refused with that reason."""
        with self._end.lock:
            self._closed = {"error": why}
            for question in self._end.waiting.values():
                if question.door is self:
                    question.settle(self._closed)
        self._socket.close()

    def _has_sent(self, data):
        """Whether there was room for it."""
        try:
            self._socket.send(data, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        return True

    def _await(self, question, data, fd, timeout_s):
        """Sends `data`, as soon as there is room, and waits for the answer."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        poll = select.poll()
        if fd >= 0:
            poll.register(fd, select.POLLIN)
        poll.register(question.woken, select.POLLIN)
        is_sent = False
        while question.answer is None:
            if not is_sent:
                is_sent = self.tell_kept() and self._has_sent(data)
                if fd >= 0:
                    poll.modify(fd, select.POLLIN if is_sent else select.POLLIN | select.POLLOUT)
            left_ms = None if until is None else max(0.0, until - time.monotonic()) * 1000
            if not poll.poll(left_ms) and question.answer is None:
                raise TimeoutError(f"no answer within {timeout_s} s")
            if question.answer is None:
                self._receive()
        return question.answer

    def _receive(self):
        """Takes one packet, where there is one: another thread may have been faster."""
        try:
            data = self._socket.recv(PACKET_BYTES_MAX, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        if not data:
            raise Gone("the agent has closed the checkpoint socket")
        try:
            answer = json.loads(data.decode("utf-8", "surrogateescape"))
        except ValueError:
            raise Gone("the agent's answer is no JSON") from None
        if not isinstance(answer, dict):
            raise Gone("the agent's answer is no JSON object")
        with self._end.lock:
            question = self._end.waiting.get(answer.get("id"))
            if question is not None:  # else one that was cut short by an exception, or waits no longer
                question.settle(answer)


class _Question:
    """One that is under way. `woken`: a descriptor that can be read once there is an answer."""

    def __init__(self, number, asked_through):
        self.id = number
        self.door = asked_through
        self.answer = None
        self.woken, self._wake = os.pipe()

    def settle(self, answer):
        """The first answer counts."""
        if self.answer is None:
            self.answer = answer
            os.write(self._wake, b"!")

    def close(self):
        os.close(self.woken)
        os.close(self._wake)


def packet(**fields):
    """The bytes of one packet. What would not fit is a mistake of the caller's: reasons are cut before."""
    return json.dumps(fields, separators=(",", ":")).encode("utf-8", "surrogateescape")
