#!/usr/bin/env python3
"""A second node joins a job whose state lies in the first one's memory -> all ranks step, from the newest save.

    python bench/checkpoint_join.py [--mib 1024] [--rounds 3] [--json F]

One rank a node, DDP, memory saves alone. Beside it, in turn: the same join of a job that saves nothing and begins anew,
and as many bytes over one TCP connection of the loopback device, from a file in /dev/shm into memory that is there.
The time of a join is from just before the second phalanx-run is started to the latest first step of its life.
"""

import argparse
import os
import socket
import tempfile
import threading
import time

from support.arguments import count
from support.job import WORKLOADS, Job, TimedOut
from support.peers import phalanx
from support.results import Results, finish

MIB = 1 << 20
PLACES = [("127.0.0.1", []), ("127.0.0.2", [])]


def join(results, saves, options):
    what = "a second node joins to the first step of all" + (", from memory" if saves else ", from nothing")
    with tempfile.TemporaryDirectory() as directory:
        environment = {"BENCH_SAVES": str(int(saves)), "BENCH_MIB": str(options.mib), "BENCH_DIRECTORY": directory}
        job = Job(
            phalanx(), 1, 1, workload="join_steps.py", named=True, nnodes="1:2", places=PLACES, environment=environment
        )
        try:
            job.wait_whole_life()
            if saves:
                job.wait(lambda: any(e["ev"] == "committed" for e in job.events), "a committed save", 120)
            began = time.monotonic()
            job.nodes.append(job.add_node(1, str(WORKLOADS / "join_steps.py")))
            stepped = job.wait_first_steps(began, 2)
            if saves:
                restored = [e for e in job.events if e["ev"] == "restored" and e["t"] > began]
                assert {(e["source"], e["step"] > 0) for e in restored} == {("memory", True)}, restored
            results.add(what, "phalanx-run", stepped - began)
            job.close()
        except TimedOut as error:
            results.add(what, "phalanx-run", None)
            print(f"   {error}")
        finally:
            job.kill()


def copy_over_tcp(results, mib):
    """From a file in memory to memory, as the join's image goes; what is received stays in the cache of nobody."""
    with tempfile.TemporaryFile(dir="/dev/shm") as file, socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(mib):
            file.write(os.urandom(4096) * 256)
        file.flush()
        into = bytearray(mib * MIB)
        view = memoryview(into)
        view[::4096] = bytes(len(view[::4096]))  # the pages are there

        def send():
            with socket.create_connection(server.getsockname()) as sender:
                sender.sendfile(file)

        thread = threading.Thread(target=send)
        began = time.monotonic()
        file.seek(0)
        thread.start()
        receiver, _ = server.accept()
        with receiver:
            at = 0
            while at < len(into):
                at += receiver.recv_into(view[at:])
        results.add(f"{mib} MiB over loopback TCP", "sendfile and recv", time.monotonic() - began)
        thread.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=count, default=1024, help="of the state")
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--json")
    options = parser.parse_args()
    results = Results("s", 120.0)
    for _ in range(options.rounds):
        join(results, True, options)
        join(results, False, options)
        copy_over_tcp(results, options.mib)
    finish(options.json, "checkpoint_join", results)


if __name__ == "__main__":
    main()
