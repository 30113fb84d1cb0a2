"""Real torch clients against our c10d store, and against a relay to it, which must be the same to them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(os.environ.get("PHALANX_BIN", ROOT / "build/release/bin"))
SUITE = ROOT / "tests/store_client_suite.py"


@contextlib.contextmanager
def serving(*flags: str) -> Iterator[int]:
    """The port of a phalanx-store, on 127.0.0.1 and ::1."""
    command = [BIN / "phalanx-store", *flags]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as store:
        yield int(store.stdout.readline())
        store.stdin.close()
        assert store.wait(timeout=10) == 0


@pytest.fixture(params=["store", "relay"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    """Where a fresh store is: its own port, or that of a relay to it."""
    with serving("--epoch=3") as store:
        if request.param == "store":
            yield store
            return
        with serving("--epoch=3", f"--relay-to={store}") as relay:
            yield relay


def run_suite(host: str, port: int, *flags: str) -> None:
    done = subprocess.run(
        [sys.executable, SUITE, host, str(port), *flags], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "checks passed" in done.stdout


@pytest.mark.parametrize("flags", [["--job", "4"], ["--no-libuv"]], ids=["libuv and a gloo job", "legacy client"])
def test_every_call_of_a_real_client(port: int, flags: list[str]) -> None:
    run_suite("127.0.0.1", port, *flags)


def test_by_name_and_ipv6(port: int) -> None:
    script = (
        "import sys; from torch.distributed import TCPStore\n"
        "for host in ('localhost', '::1', '127.0.0.1'):\n"
        "    print(TCPStore(host, int(sys.argv[1]), world_size=1, is_master=False).add('n', 1))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(port)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["1", "2", "3"], done.stdout + done.stderr
