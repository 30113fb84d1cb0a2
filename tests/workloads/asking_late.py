"""Loads its checkpoint when it is sent SIGUSR1, and not before: who answers may have gone by then."""

import argparse
import signal

from phalanx.checkpoint import Checkpointer
from report import report

parser = argparse.ArgumentParser()
parser.add_argument("--dir", required=True)
options = parser.parse_args()

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
report("main")
signal.sigwait([signal.SIGUSR1])
state, step = Checkpointer(options.dir).load(default=None)
report("loaded", step=step)
