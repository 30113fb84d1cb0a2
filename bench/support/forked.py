"""No launcher: torch imported once, then a fork per rank, which runs the script. Nothing watches the ranks.

    python forked.py [--nproc-per-node=2] SCRIPT

That is the least that can stand between a command and its first step where all but torch must be imported by each rank
behind its own first lines (docs/warm-workers.md, "What is imported ahead of time"): a bound for launchers that keep to
this rule, torchrun's time being the other one.
"""

import argparse
import gc
import os
import runpy
import socket
import sys

LATE = ("torch._dynamo", "torch.distributed.nn", "torch.optim", "torch.utils.data")  # what scripts bring in of torch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nproc-per-node", type=int, default=2)
    parser.add_argument("script")
    options = parser.parse_args()
    gc.disable()
    for name in ("torch", *LATE):
        __import__(name)
    gc.freeze()
    gc.enable()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ranks = [start(rank, port, options) for rank in range(options.nproc_per_node)]
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 for pid in ranks))


def start(rank, port, options):
    pid = os.fork()
    if pid:
        return pid
    world = str(options.nproc_per_node)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=world, LOCAL_WORLD_SIZE=world)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
    os.environ["TORCHELASTIC_RESTART_COUNT"] = "0"
    sys.argv = [options.script]
    sys.path[0] = os.path.dirname(options.script)
    runpy.run_path(options.script, run_name="__main__")
    os._exit(0)


if __name__ == "__main__":
    main()
