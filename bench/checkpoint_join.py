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
import functools
import mmap
import os
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from contextlib import ExitStack

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


def copy_over_tcp(results, mib, contexts=None):
    """From a file in memory to memory, as the join's image goes. In clear by sendfile into memory that is there; with
    `contexts`, of TLS, encrypted, and into another file in memory, as nothing that crosses a network here goes else."""
    with ExitStack() as stack:
        source = stack.enter_context(memory_file())
        for _ in range(mib):
            source.write(os.urandom(4096) * 256)
        source.flush()
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        thread = threading.Thread(target=send, args=(server.getsockname(), source, contexts))
        if contexts is None:
            into = bytearray(mib * MIB)
            into[::4096] = bytes(len(into[::4096]))  # the pages are there
            receive = functools.partial(receive_into, memoryview(into))
        else:
            receive = functools.partial(receive_file, stack.enter_context(memory_file()), mib * MIB)
        began = time.monotonic()
        thread.start()
        receiver, _ = server.accept()
        with contexts[0].wrap_socket(receiver, server_side=True) if contexts else receiver as stream:
            receive(stream)
        how = ("TCP", "sendfile and recv") if contexts is None else ("TLS", "Python's ssl")
        results.add(f"{mib} MiB over loopback {how[0]}", how[1], time.monotonic() - began)
        thread.join()


def memory_file():
    return tempfile.TemporaryFile(dir="/dev/shm")


def send(address, source, contexts):
    source.seek(0)
    with socket.create_connection(address) as plain:
        if contexts is None:
            plain.sendfile(source)
            return
        with contexts[1].wrap_socket(plain) as sender, mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as view:
            sender.sendall(view)


def receive_into(view, stream):
    at = 0
    while at < len(view):
        at += stream.recv_into(view[at:])


def receive_file(file, size, stream):
    block = memoryview(bytearray(MIB))
    while size > 0:
        got = stream.recv_into(block)
        file.write(block[:got])
        size -= got
    file.flush()


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
    for _ in range(options.rounds):
        for does in KINDS:
            join(results, does, options)
        copy_over_tcp(results, options.mib)
        with tempfile.TemporaryDirectory() as folder:
            copy_over_tcp(results, options.mib, tls_contexts(folder))
    finish(options.json, "checkpoint_join", results)


if __name__ == "__main__":
    main()
