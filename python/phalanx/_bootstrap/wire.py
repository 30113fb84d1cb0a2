"""Messages between the agent and its Python processes: docs/formats/worker-socket.md."""

import array
import json
import socket
import struct

MESSAGE_BYTES_MAX = 8 << 20
FDS_MAX = 8
_LENGTH = struct.Struct("<I")
_FD_BYTES = array.array("i").itemsize


class Closed(Exception):
    """The other end is gone, or says what nobody can read."""


class Channel:
    """One end of a socket pair. Not for use by two threads at once."""

    def __init__(self, fd):
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(True)
        self._socket.set_inheritable(False)

    def fileno(self):
        return self._socket.fileno()

    def close(self):
        self._socket.close()

    def receive(self):
        """Waits for one message: (message, descriptors); the caller owns the descriptors. Closed at the end of file."""
        head, fds = self._receive_head()
        try:
            (length,) = _LENGTH.unpack(head)
            if length > MESSAGE_BYTES_MAX:
                raise Closed(f"a message of {length} bytes")
            message = json.loads(self._receive_exactly(length).decode("utf-8", "surrogateescape"))
            if not isinstance(message, dict) or not isinstance(message.get("type"), str):
                raise Closed("a message without a type")
        except (Closed, ValueError) as error:
            close_all(fds)
            self.close()
            raise Closed(str(error)) from None
        return message, fds

    def send(self, message):
        """Sends one message, waiting for room. Raises OSError where the other end is gone."""
        self._socket.sendall(_frame(message))

    def send_or_give_up(self, message):
        """Sends one message without ever waiting: a worker depends on nobody. Where it does not fit, the channel closes."""
        try:
            frame = _frame(message)
            if self._socket.send(frame, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) != len(frame):
                self.close()
        except OSError:
            self.close()

    def _receive_head(self):
        space = socket.CMSG_SPACE(FDS_MAX * _FD_BYTES)
        data, ancillary, _, _ = self._socket.recvmsg(_LENGTH.size, space, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
        fds = array.array("i")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) - len(payload) % _FD_BYTES])
        if not data:
            raise Closed("end of file")
        if len(data) < _LENGTH.size:
            data += self._receive_exactly(_LENGTH.size - len(data))
        return data, list(fds)

    def _receive_exactly(self, count):
        data = bytearray()
        while len(data) < count:
            chunk = self._socket.recv(count - len(data))
            if not chunk:
                raise Closed("end of file inside a message")
            data += chunk
        return bytes(data)


def close_all(fds):
    import os

    for fd in fds:
        os.close(fd)


def _frame(message):
    text = json.dumps(message, separators=(",", ":")).encode("utf-8", "surrogateescape")
    return _LENGTH.pack(len(text)) + text
