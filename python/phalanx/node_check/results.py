"""What a check comes to. It returns (sentence, values), or raises one of these."""

import re

MOST_VALUES = 256
BETTER = ("less", "more", "")
NAME = re.compile(r"[A-Za-z0-9_.:-]{1,64}\Z")
UNIT = re.compile(r"[A-Za-z0-9/%_.-]{0,16}\Z")
_INT64 = 1 << 63


class Failed(Exception):
    """The sentence says what failed; the check's name is put before it."""

    def __init__(self, sentence, values=()):
        super().__init__(sentence)
        self.values = list(values)


class Skipped(Exception):
    """The sentence says what there is not."""


def value(name, unit, number, better=""):
    return {"name": name, "unit": unit, "value": int(number), "better": better}


def is_integer(number):
    """One of 64 bits. True and False are none."""
    return isinstance(number, int) and not isinstance(number, bool) and -_INT64 <= number < _INT64


def mb_per_s(count, seconds):
    return int(count / max(seconds, 1e-9) / 1e6)
