"""Types of arguments for argparse: a value that makes no sense ends a benchmark with a sentence and status 2."""

import argparse
import math
import os
import pathlib


def names(known):
    """A list of names, with commas between them, all of which are in `known`."""

    def parse(text):
        chosen = text.split(",")
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(f"'{name}' is none of {', '.join(known)}")
        return chosen

    return parse


def shape(text):
    """(3, 4) of "3x4"."""
    left, _, right = text.partition("x")
    if not all(number.isascii() and number.isdigit() and int(number) > 0 for number in (left, right)):
        raise argparse.ArgumentTypeError(f"'{text}' is no shape: two whole numbers from 1 on, as 2x4")
    return int(left), int(right)


def shapes(text):
    return [shape(part) for part in text.split(",")]


def program(text):
    """The path of one."""
    path = pathlib.Path(text).resolve()
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise argparse.ArgumentTypeError(f"'{text}' is no program")
    return path


def whole(least):
    """A whole number that is not less than `least`."""

    def parse(text):
        if not (text.isascii() and text.isdigit() and int(text) >= least):
            raise argparse.ArgumentTypeError(f"'{text}' is no whole number from {least} on")
        return int(text)

    return parse


def counts(text):
    """[1000, 3000] of "1000,3000"."""
    return [count(part) for part in text.split(",")]


count = whole(1)
count_or_zero = whole(0)


def amount(text):
    """Of what the flag names: finite and not negative."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"'{text}' is no number from 0 on")
    return value
