#!/usr/bin/env python3
"""Phalanx's store beside torch's own TCPStore server (libuv): the same load on both, in turn.

Prints a table with medians, spread and ratio; --json writes the numbers as well. --relays adds the barrier of a large
world: so many relays to our store, with them and their clients in as many processes as the limit of open files needs.

    python bench/store.py [--bin build/release/bin] [--rounds 5] [--relays 10000] [--json out.json]
"""

import argparse
import contextlib
import json
import re
import resource
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from support.arguments import amount, count
from support.results import Results, finish

ROOT = Path(__file__).resolve().parent.parent

# torch's server asks for the name of every peer it accepts, on the thread that serves all: with a slow resolver that is
# what would be measured, so its process looks into /etc/hosts only.
TORCH_SERVER = """
import ctypes
import sys
ctypes.CDLL(None).__nss_configure_lookup(b"hosts", b"files")
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=True)
print(store.port, flush=True)
sys.stdin.read()
"""


# Of a process that relays: what it has open anyway.
KEPT_FILES = 200
# Such processes stand for other machines: they leave the store its share of a processor.
AS_OTHERS = ("nice", "-n", "5")


@contextlib.contextmanager
def talking(command: list[object]) -> Iterator[subprocess.Popen]:
    """Runs a program that ends with its stdin."""
    words = [str(word) for word in command]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.stdin.close()


@contextlib.contextmanager
def server(command: list[str]) -> Iterator[int]:
    """Runs a server that prints its port and ends with its stdin."""
    with talking(command) as process:
        yield int(process.stdout.readline())


def measure(generator: Path, port: int, name: str, args: argparse.Namespace) -> dict[str, float]:
    command = [generator, "--port", port, "--name", name, "--seconds", args.seconds, "--clients", args.clients]
    result = subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True, timeout=60)
    return json.loads(result.stdout)


def collect(args: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    generator = args.bin / "phalanx-store-bench"
    samples: dict[str, dict[str, list[float]]] = {"phalanx": defaultdict(list), "torch libuv": defaultdict(list)}
    with (
        server([str(args.bin / "phalanx-store")]) as ours,
        server([sys.executable, "-c", TORCH_SERVER]) as torchs,
    ):
        ports = {"phalanx": ours, "torch libuv": torchs}
        for round_number in range(args.rounds):
            order = list(ports) if round_number % 2 == 0 else list(reversed(ports))
            for who in order:
                for what, value in measure(generator, ports[who], f"round{round_number}", args).items():
                    samples[who][what].append(value)
    return samples


def shares(relays: int, clients_of_each: int) -> list[int]:
    """Relays of each process: of one are its two listeners, its own sockets, and each client's both ends."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = (files - KEPT_FILES) // (6 + 2 * clients_of_each)
    processes = -(-relays // most)
    return [relays // processes + (number < relays % processes) for number in range(processes)]


def relayed_barrier(folder: Path, relays: int, clients_of_each: int) -> tuple[float, float]:
    """Seconds from the first connection to the last client's release, and the store's largest memory, in MiB."""
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(talking([folder / "phalanx-store"]))
        port = int(store.stdout.readline())
        nodes = []
        for share in shares(relays, clients_of_each):
            command = [*AS_OTHERS, folder / "phalanx-store-bench", "--port", port, "--name", "all", "--relays", share]
            command += ["--clients-of-each", clients_of_each, "--world", relays * clients_of_each]
            nodes.append(stack.enter_context(talking(command)))
        for node in nodes:
            assert node.stdout.readline() == "ready\n", "phalanx-store-bench has no relays"
        for node in nodes:
            node.stdin.write("go\n")
            node.stdin.flush()
        spans = [json.loads(node.stdout.readline()) for node in nodes]
        status = Path(f"/proc/{store.pid}/status").read_text()
    memory_mib = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024
    return (max(span["end_ns"] for span in spans) - min(span["begin_ns"] for span in spans)) / 1e9, memory_mib


def large_world(args: argparse.Namespace) -> list[Results]:
    times, memory = Results("s"), Results("MiB")
    what = f"barrier of {args.relays * args.clients_of_each} clients over {args.relays} relays"
    for _ in range(args.rounds):
        seconds, memory_mib = relayed_barrier(args.bin, args.relays, args.clients_of_each)
        times.add(what, "phalanx", seconds)
        memory.add("the store's memory in it", "phalanx", memory_mib)
    return [times, memory]


def results_of(samples: dict[str, dict[str, list[float]]], clients: int) -> list[Results]:
    """Times and rates: one table each."""
    times, rates = Results("s"), Results("1/s")
    for who, by_what in samples.items():
        for what, values in by_what.items():
            results = times if what.endswith("_s") else rates
            text = f"barrier of {clients} connections" if what == "barrier_s" else what.replace("_", " ")
            for value in values:
                results.add(text, who, value)
    return [times, rates]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=ROOT / "build/release/bin", help="folder of our commands")
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--clients", type=count, default=2048, help="connections of the barrier")
    parser.add_argument("--seconds", type=amount, default=0.5, help="duration of each throughput")
    parser.add_argument("--relays", type=count, default=0, help="of a large world (default: it is left out)")
    parser.add_argument("--clients-of-each", type=count, default=8, help="clients of such a relay")
    parser.add_argument("--only-relays", action="store_true", help="nothing but that")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    args = parser.parse_args()

    # Both servers and the generator hold one descriptor for each connection.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    results = [] if args.only_relays else results_of(collect(args), args.clients)
    finish(args.json, "store", *results, *(large_world(args) if args.relays else []))


if __name__ == "__main__":
    main()
