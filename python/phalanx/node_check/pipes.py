"""What comes out of a process: whole lines within bounds, and the last of its words."""

import os

from phalanx.node_check.texts import clean

MOST_LINE_BYTES = 64 << 10
MOST_ORDER_BYTES = 256 << 10
LAST_WORDS_BYTES = 2 << 10
_READ_BYTES = 64 << 10


class TooMuch(Exception):
    """The sentence says how much came."""


def read_ready(fd):
    """What a descriptor that does not block has now: b"" at its end, None where that is nothing."""
    try:
        return os.read(fd, _READ_BYTES)
    except BlockingIOError:
        return None


class Lines:
    """Cuts bytes into lines. Raises TooMuch where one is too long, or all of them are."""

    def __init__(self, most_line=MOST_LINE_BYTES, most=MOST_ORDER_BYTES):
        self._most_line, self._left = most_line, most
        self._rest = b""

    def feed(self, data):
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in [*lines, self._rest]:
            if len(line) >= self._most_line:
                raise TooMuch(f"it wrote a line of more than {self._most_line >> 10} KiB")
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                raise TooMuch(f"it wrote more than {MOST_ORDER_BYTES >> 10} KiB")
        return lines


class LastWords:
    """The tail of a stream."""

    def __init__(self):
        self._tail = b""

    def feed(self, data):
        self._tail = (self._tail + data)[-LAST_WORDS_BYTES:]

    def said(self):
        """ "; its last words: ...", or nothing. All of it: the sentence that it ends is bounded as a whole."""
        text = clean(self._tail.decode("utf-8", "backslashreplace"), LAST_WORDS_BYTES)
        return f"; its last words: {text}" if text else ""
