#!/usr/bin/env python3
"""A second node joins a job whose state lies in the first one's memory -> all ranks step, from the newest save.

    python bench/checkpoint_join.py [--mib 1024] [--rounds 3] [--json F]

One rank a node, DDP, memory saves alone. Beside it, in turn: the same join of a job that saves as much and begins at
step 0, as where what lies in memory is lost; that of a job that saves nothing; and as many bytes over one connection of
the loopback device, by TCP from a file in /dev/shm into memory that is there, and by TLS into another file there, as
images are read. The time of a join is from just before the second phalanx-run is started to the latest first step of
its life. The life before ends at its next save, so that no step is lost: that is in the time of both that save.
"""

import argparse
import mmap
import os
import socket
import ssl
import subprocess
import tempfile
import threading
import time

from support.arguments import count
from support.job import WORKLOADS, Job, measured
from support.peers import phalanx
from support.results import Results, finish

MIB = 1 << 20
PLACES = [("127.0.0.1", []), ("127.0.0.2", [])]


# What the training does, and what that is called.
KINDS = {
    "saves loads": "from memory",
    "saves": "from nothing, what it saved is lost",
    "": "from nothing, and it saves nothing",
}
WHAT = "a second node joins to the first step of all"


def join(results, does, options):
    what = f"{WHAT}, {KINDS[does]}"
    with tempfile.TemporaryDirectory() as directory:
        environment = {"BENCH_DOES": does, "BENCH_MIB": str(options.mib), "BENCH_DIRECTORY": directory}
        job = Job(
            phalanx(), 1, 1, workload="join_steps.py", named=True, nnodes="1:2", places=PLACES, environment=environment
        )
        with measured(job, results, what):
            job.wait_whole_life()
            if does:
                job.wait(lambda: any(e["ev"] == "committed" for e in job.events), "a committed save", 120)
            began = time.monotonic()
            job.nodes.append(job.add_node(1, str(WORKLOADS / "join_steps.py")))
            stepped = job.wait_first_steps(began, 2)
            events = [e for e in job.events if e["t"] > began]
            restored = [e for e in events if e["ev"] == "restored"]
            expected = {("memory", True)} if "loads" in does else set()
            assert {(e["source"], e["step"] > 0) for e in restored} == expected, restored
            results.add(what, "phalanx-run", stepped - began)
            add_parts(results, what, began, events, stepped)
            job.close()


def add_parts(results, what, began, events, stepped):
    """When the last rank came to each point, from the beginning of the join; the parts add up to the whole."""
    life = max(e["life"] for e in events)
    at = began
    for event, part in (
        ("saving", "the life before begins its last save"),
        ("main", "the next life's ranks begin"),
        ("group", "they are connected"),
        ("restored", "they have loaded"),
    ):
        times = [e["t"] for e in events if e["ev"] == event and (e["life"] == life) != (event == "saving")]
        if times:
            results.add(f"{what}: of that, until {part}", "phalanx-run", max(times) - at)
            at = max(times)
    results.add(f"{what}: of that, until the first step of all", "phalanx-run", stepped - at)


def copy(results, mib, how, send, receive):
    """From a file in memory to memory, as the join's image goes. `how`: what it is called, and by what it is done;
    `send(socket, file)` and `receive(socket)` end with the last byte."""
    with memory_file() as source, socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(mib):
            source.write(os.urandom(4096) * 256)
        source.flush()
        source.seek(0)

        def run():
            with socket.create_connection(server.getsockname()) as sender:
                send(sender, source)

        thread = threading.Thread(target=run)
        began = time.monotonic()
        thread.start()
        receiver, _ = server.accept()
        with receiver:
            receive(receiver)
        results.add(f"{mib} MiB over loopback {how[0]}", how[1], time.monotonic() - began)
        thread.join()


def memory_file():
    return tempfile.TemporaryFile(dir="/dev/shm")


def copy_by_tcp(results, mib):
    """In clear, into memory that is there."""
    view = memoryview(bytearray(mib * MIB))
    view[::4096] = bytes(len(view[::4096]))  # the pages are

    def receive(receiver):
        at = 0
        while at < len(view):
            at += receiver.recv_into(view[at:])

    copy(results, mib, ("TCP", "sendfile and recv"), lambda sender, source: sender.sendfile(source), receive)


def copy_by_tls(results, mib, contexts):
    """Encrypted, and into another file in memory, as images are read."""
    server, client = contexts

    def send(sender, source):
        with client.wrap_socket(sender) as stream, mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as view:
            stream.sendall(view)

    def receive(receiver):
        block, left = memoryview(bytearray(MIB)), mib * MIB
        with server.wrap_socket(receiver, server_side=True) as stream, memory_file() as file:
            while left > 0:
                got = stream.recv_into(block)
                file.write(block[:got])
                left -= got
            file.flush()

    copy(results, mib, ("TLS", "Python's ssl"), send, receive)


def tls_contexts(folder):
    """(server's, client's): TLS 1.3 with a key that is made here."""
    key, certificate = os.path.join(folder, "key"), os.path.join(folder, "certificate")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-subj", "/CN=bench", "-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.load_cert_chain(certificate, key)
    client.check_hostname = False
    client.load_verify_locations(certificate)
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    return server, client


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=count, default=1024, help="of the state")
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--json")
    options = parser.parse_args()
    results = Results("s", 120.0)
    with tempfile.TemporaryDirectory() as folder:
        contexts = tls_contexts(folder)
    for _ in range(options.rounds):
        for does in KINDS:
            join(results, does, options)
        copy_by_tcp(results, options.mib)
        copy_by_tls(results, options.mib, contexts)
    finish(options.json, "checkpoint_join", results)


if __name__ == "__main__":
    main()
