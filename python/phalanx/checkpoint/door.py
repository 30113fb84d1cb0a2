"""The checkpoint socket, this rank's end: docs/formats/checkpoint-socket.md. One JSON object a packet."""

import json
import os
import socket
import threading

PACKET_BYTES_MAX = 64 << 10


class Refusal(Exception):
    """The agent has answered that it cannot. The text is its reason."""


class Gone(Exception):
    """The agent does not answer any more."""


class Door:
    """Speaks with the agent. Any thread may ask; one question is under way at a time."""

    def __init__(self, fd):
        # Of our own, so that the socket stays open whatever becomes of the descriptor that the rank was given.
        self._socket = socket.socket(fileno=os.dup(fd))
        self._socket.setblocking(True)
        self._lock = threading.Lock()
        self._last_id = 0

    def fileno(self):
        """For the native side, which says by itself when an image is sealed."""
        return self._socket.fileno()

    def ask(self, request, **fields):
        """The agent's answer to one request. Waits for it; Refusal and Gone say what else may come."""
        with self._lock:
            self._last_id += 1
            number = self._last_id
            try:
                self._socket.send(packet(type=request, id=number, **fields), socket.MSG_NOSIGNAL)
                answer = self._receive(number)
            except OSError as error:
                raise Gone(f"the agent's socket: {error.strerror}") from None
        if "error" in answer:
            raise Refusal(str(answer["error"]))
        return answer

    def tell(self, data):
        """One packet that nobody answers. It never waits: False where it finds no room, or nobody."""
        try:
            self._socket.send(data, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
        except OSError:
            return False
        return True

    def close(self):
        self._socket.close()

    def _receive(self, number):
        """Answers to a question that an interrupt has cut short are passed over."""
        while True:
            data = self._socket.recv(PACKET_BYTES_MAX)
            if not data:
                raise Gone("the agent has closed the checkpoint socket")
            try:
                answer = json.loads(data.decode("utf-8", "surrogateescape"))
            except ValueError:
                raise Gone("the agent's answer is no JSON") from None
            if not isinstance(answer, dict):
                raise Gone("the agent's answer is no JSON object")
            if answer.get("id") == number:
                return answer


def packet(**fields):
    """The bytes of one packet. What would not fit is a mistake of the caller's: reasons are cut before."""
    return json.dumps(fields, separators=(",", ":")).encode("utf-8", "surrogateescape")
