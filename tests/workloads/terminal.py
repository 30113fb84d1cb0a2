"""What a person sees of a rank at a terminal. Modes: debug, bar, size, idle.

debug: every rank comes to a breakpoint, and reads its stdin. bar: a progress bar and colours, on stderr. size: reports
the width of its stderr's terminal at the start and at each SIGWINCH. Imports no torch, since none of it needs any.
"""

import os
import signal
import sys

from hearing import hear_signals
from report import report


def debug():
    answer = 6
    breakpoint()
    if os.environ["RANK"] != sys.argv[2]:
        print(f"stdin of rank {os.environ['RANK']}: {sys.stdin.read()!r}", flush=True)
    print(f"rank {os.environ['RANK']} goes on with {answer}", flush=True)


def bar():
    from tqdm import tqdm

    sys.stderr.write(f"\033[32mgreen\033[0m {sys.stderr.isatty()}\n")
    for _ in tqdm(range(3), ncols=40):
        pass


def size():
    def tell(_number=None, _frame=None):
        report("width", columns=os.get_terminal_size(2).columns)

    signal.signal(signal.SIGWINCH, tell)
    tell()
    idle()


def idle():
    report("main")
    hear_signals()


{"debug": debug, "bar": bar, "size": size, "idle": idle}[sys.argv[1]]()
