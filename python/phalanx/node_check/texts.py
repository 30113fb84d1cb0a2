"""Sentences for people, of what systems and strangers say."""

import os
import re
import traceback

MOST_CHARACTERS = 1000
_SOURCE = re.compile(r"\A\[\S+\.(?:cc|cpp|h):\d+\] ")
_ADVICE = re.compile(r"\. This (?:is typically|may) .*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def clean(text, most=MOST_CHARACTERS):
    """One line of characters that every reader takes, and not too many."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    text = _CONTROL.sub(" ", text).strip()
    return text if len(text) <= most else text[: most - 3] + "..."


def last_line(error):
    """What an exception says, as Python would show it in the last line."""
    lines = "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()
    return clean(lines[-1], 400) if lines else type(error).__name__


def first_line(error):
    """What an exception of a native library says. It puts its own sources before that, advice and stacks behind it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return clean(_ADVICE.sub("", _SOURCE.sub("", lines[0])), 400)


def of_errno(error):
    """What the system says."""
    return os.strerror(error.errno) if error.errno else clean(str(error), 400)


def seconds(count):
    """30 -> "30 s", 1.25 -> "1.2 s", 0.05 -> "50 ms"."""
    if count < 0.95:
        return f"{count * 1000:.0f} ms"
    return f"{count:.0f} s" if count >= 10 or abs(count - round(count)) < 0.05 else f"{count:.1f} s"


def joined(names):
    """ "a, b and c"."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def place(address, port):
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
