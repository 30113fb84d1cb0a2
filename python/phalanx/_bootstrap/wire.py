"""Messages between the agent and its Python processes: docs/formats/worker-socket.md."""

import array
import json
import os
import socket
import struct
import sys

MESSAGE_BYTES_MAX = 8 << 20
FDS_MAX = 8
_LENGTH = struct.Struct("<I")
# Kept as they are now: a script may put another function where json has its own.
_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder().decode
# Names of files and values of variables are bytes, which the agent writes down as UTF-8. Python has them by another
# encoding where the locale says so.
_IS_UTF_8 = sys.getfilesystemencoding().lower() in ("utf-8", "utf8")
_FD_BYTES = array.array("i").itemsize


class Closed(Exception):
    """The other end is gone, or says what nobody can read."""


class Channel:
    """One end of a socket pair. Not for use by two threads at once.

    It keeps a number, not a socket object, and looks whether that is still its socket: the script may close descriptors
    that it does not know, and must hear nothing of ours when the interpreter ends.
    """

    def __init__(self, fd):
        self._fd = fd
        self._identity = identity(fd)
        os.set_blocking(fd, True)
        os.set_inheritable(fd, False)

    def fileno(self):
        return self._fd

    def close(self):
        if self.is_open():
            os.close(self._fd)
        self._identity = None

    def is_open(self):
        return self._identity is not None and self._identity == identity(self._fd)

    def receive(self):
        """Waits for one message: (message, descriptors); the caller owns the descriptors. Closed at the end of file."""
        head, fds = self._receive_head()
        try:
            (length,) = _LENGTH.unpack(head)
            if length > MESSAGE_BYTES_MAX:
                raise Closed(f"a message of {length} bytes")
            message = message_of(self._receive_exactly(length))
            if not isinstance(message, dict) or not isinstance(message.get("type"), str):
                raise Closed("a message without a type")
        except (Closed, ValueError) as error:
            close_all(fds)
            self.close()
            raise Closed(str(error)) from None
        return message, fds

    def send(self, message):
        """Sends one message, waiting for room. Raises OSError where the other end is gone."""
        with self._borrowed() as sock:
            sock.sendall(_frame(_shown(message)))

    def ask(self, message):
        """`send` for who stands in the agent's place: names of files arrive as they are."""
        with self._borrowed() as sock:
            sock.sendall(_frame(text_of(message)))

    def send_or_give_up(self, message):
        """Sends one message without ever waiting: a worker depends on nobody. What does not fit closes it."""
        if not self.is_open():
            return
        frame = _frame(_shown(message))
        try:
            with self._borrowed() as sock:
                sent = sock.send(frame, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            sent = 0
        if sent != len(frame):
            self.close()

    def _borrowed(self):
        return _Borrowed(self._fd)

    def _receive_head(self):
        space = socket.CMSG_SPACE(FDS_MAX * _FD_BYTES)
        with self._borrowed() as sock:
            data, ancillary, _, _ = sock.recvmsg(_LENGTH.size, space, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
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
        with self._borrowed() as sock:
            while len(data) < count:
                chunk = sock.recv(count - len(data))
                if not chunk:
                    raise Closed("end of file inside a message")
                data += chunk
        return bytes(data)


class _Borrowed:
    """A socket object for the time of one call."""

    def __init__(self, fd):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=fd)

    def __enter__(self):
        return self._socket

    def __exit__(self, *unused):
        self._socket.detach()


def identity(fd):
    """Which open file this descriptor is, None where it is none."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def close_all(fds):
    for fd in fds:
        os.close(fd)


def message_of(text):
    """What the bytes of a message say, its texts as this interpreter has them. Raises ValueError."""
    message = _decode(text.decode("utf-8", "surrogateescape"))
    return message if _IS_UTF_8 else _mapped(message, _from_utf_8)


def text_of(message):
    """The bytes of a message that message_of reads, perhaps in another locale."""
    return _encode(message if _IS_UTF_8 else _mapped(message, _to_utf_8)).encode("ascii")


def _frame(text):
    return _LENGTH.pack(len(text)) + text


def _shown(message):
    """The bytes of a message for the agent, which reads characters alone: a byte that is none as \\xNN."""
    text = _encode(message)
    if "\\ud" in text:  # half a character, or one beyond 16 bits
        text = _encode(_mapped(message, _without_halves))
    return text.encode("ascii")


def _without_halves(text):
    return "".join(f"\\x{ord(one) & 0xFF:02x}" if "\ud800" <= one <= "\udfff" else one for one in text)


def _mapped(value, change):
    """The same value with each of its texts changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(name): _mapped(inner, change) for name, inner in value.items()}
    return [_mapped(inner, change) for inner in value] if isinstance(value, (list, tuple)) else value


def _from_utf_8(text):
    return os.fsdecode(text.encode("utf-8", "surrogateescape"))


def _to_utf_8(text):
    try:
        return os.fsencode(text).decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text  # words of ours, which no file has
