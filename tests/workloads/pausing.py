"""How a rank waits to be killed: on a busy machine its work would be over before its test comes to it."""

import os
import signal

from report import report


def add_option(parser):
    """`--pause-at=6,10`: behind step 6 in the first life, behind step 10 in the next, and nowhere in others."""
    parser.add_argument("--pause-at", type=lambda text: [int(step) for step in text.split(",")], default=[])


def is_due(step, pauses):
    life = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return life < len(pauses) and step == pauses[life]


def wait_to_be_killed():
    report("pausing")
    signal.pause()
