#!/usr/bin/env python3
"""Phalanx's store beside torch's own TCPStore server (libuv): the same load on both, in turn.

Prints a table with medians, spread and ratio; --json writes the numbers as well.

    python bench/store.py [--bin build/release/bin] [--rounds 5] [--json out.json]
"""

import argparse
import contextlib
import json
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


@contextlib.contextmanager
def server(command: list[str]) -> Iterator[int]:
    """Runs a server that prints its port and ends with its stdin."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield int(process.stdout.readline())
        process.stdin.close()


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
    parser.add_argument("--json", type=Path, help="write the numbers here")
    args = parser.parse_args()

    # Both servers and the generator hold one descriptor for each connection.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    finish(args.json, "store", *results_of(collect(args), args.clients))


if __name__ == "__main__":
    main()
