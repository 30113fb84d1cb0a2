"""Whatever a stranger sends to whatever port of a job: nobody in it notices, and its memory stays bounded."""

import contextlib
import errno
import os
import random
import re
import resource
import select
import selectors
import signal
import socket
import ssl
import struct
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from harness import PATIENCE_S

TOKEN = "0123456789abcdef0123456789abcdef"
MIB = 1 << 20
CALLERS, KINDS = 1_000, 16  # at each port, at the same time
STORM_S = 2
# 48,000 callers of eight such waves came to 67 MiB in the master, the last four to 3 of them.
MAY_GROW_MIB = {"phalanx-run": 16, "phalanx-master": 96}
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
VALIDATE = b"\x00" + struct.pack("<I", 0x3C85F7CE)  # docs/formats/c10d-store.md
RELAY = b"\xf0PHXRLY\x01"  # docs/formats/store-relay.md


def client_hello():
    """What a TLS client says first."""
    context = ssl.create_default_context()
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(received, sent, server_hostname="phalanx").do_handshake()
    return sent.read()


def key(text):
    return struct.pack("<Q", len(text)) + text


def sayings(random_bytes):
    """{what: bytes}. Who has said it stays, and reads."""
    hello = client_hello()
    one_gb = struct.pack("<Q", 1 << 30)
    return {
        "nothing": b"",
        "random bytes": random_bytes,
        "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "half of a store's greeting": VALIDATE[:3],
        "a store's greeting with another number": VALIDATE[:1] + b"\xff\xff\xff\xff",
        "a store's greeting twice, and a key of 1 GB": VALIDATE * 2 + b"\x01" + one_gb + bytes(4096),
        "a relay's greeting of another round": RELAY + struct.pack("<Q", 1 << 40),
        "a relay's greeting, and frames": RELAY + struct.pack("<Q", 1) + struct.pack("<BBHI", 2, 0, 7, 1 << 30) * 1000,
        "a store's value of 1 GB": VALIDATE + b"\x01" + key(b"k") + one_gb + bytes(65536),
        "half of HTTP/2's preface": PREFACE[:9],
        "HTTP/2 in clear, a frame of 16 MB": PREFACE
        + SETTINGS
        + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01"
        + bytes(65536),
        "HTTP/2 in another order": SETTINGS + PREFACE,
        "a TLS greeting": hello,
        "half of a TLS greeting": hello[: len(hello) // 2],
        "a TLS greeting twice": hello * 2,
        "a TLS record of 65,535 bytes": b"\x16\x03\x01\xff\xff" + bytes(65536),
    }


def listening(pid):
    """{port: addresses} of TCP sockets that it listens on."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(fd))
    found = {}
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for row in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            cells = row.split()
            if cells[3] == "0A" and f"socket:[{cells[9]}]" in inodes:
                address, port = cells[1].split(":")
                found.setdefault(int(port, 16), []).append(socket.inet_ntop(family, in_network_order(address)))
    return found


def in_network_order(address):
    """The kernel shows 32 bits at a time, as this machine has them."""
    words = struct.unpack(f">{len(address) // 8}I", bytes.fromhex(address))
    return struct.pack(f"={len(words)}I", *words)


class Server(NamedTuple):
    program: str
    pid: int
    port: int
    addresses: list


def servers_of(nodes):
    """Of these nodes' own programs each port that one listens on."""
    found = []
    for node in nodes:
        for pid in node.job.processes(node):
            with contextlib.suppress(FileNotFoundError):  # it has ended meanwhile
                program = Path(os.readlink(f"/proc/{pid}/exe")).name
                if program.startswith("phalanx-"):
                    found += [Server(program, pid, *place) for place in listening(pid).items()]
    return found


def resident_mib(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


def open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


class Storm:
    """Many connections to one place, each of which says what it has to say, a byte at a time where it `drips`."""

    def __init__(self, selector):
        self.selector = selector
        self.open, self.refused, self.closed = set(), 0, 0

    def call_all(self, addresses, port):
        """As many callers as a port gets, of all kinds, shared out among its addresses."""
        say = sayings(random.Random(1).randbytes(4096))
        for turn in range(CALLERS // KINDS):
            for text in say.values():
                self.call(addresses[turn % len(addresses)], port, text, turn % 10 == 0)

    def call(self, address, port, text, drips):
        connection = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        connection.setblocking(False)
        code = connection.connect_ex((address, port))
        if code not in (0, errno.EINPROGRESS):
            connection.close()
            self.refused += 1
            return
        self.open.add(connection)
        self.selector.register(connection, selectors.EVENT_WRITE | selectors.EVENT_READ, [text, drips])

    def run(self, seconds):
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            for entry, events in self.selector.select(min(left, 0.05)):
                self.serve(entry.fileobj, entry.data, events)

    def serve(self, connection, data, events):
        try:
            if events & selectors.EVENT_READ and not connection.recv(65536):
                return self.drop(connection)
            if events & selectors.EVENT_WRITE and data[0]:
                sent = connection.send(data[0][:1] if data[1] else data[0])
                data[0] = data[0][sent:]
            if not data[0]:
                self.selector.modify(connection, selectors.EVENT_READ, data)
        except BlockingIOError:
            pass
        except OSError:
            self.drop(connection)

    def drop(self, connection):
        self.closed += 1
        self.selector.unregister(connection)
        self.open.remove(connection)
        connection.close()

    def end(self):
        for connection in list(self.open):
            self.drop(connection)


@pytest.fixture
def many_files():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


class Besieged:
    """The programs that listen, with what they had before strangers came."""

    def __init__(self, job, servers):
        self.job = job
        self.programs = {server.pid: server.program for server in servers}
        self.before = {pid: (resident_mib(pid), open_files(pid)) for pid in self.programs}

    def endure(self, servers, meanwhile):
        """A thousand strangers at each of these ports; `meanwhile` returns when the job has gone on beside them."""
        with selectors.DefaultSelector() as selector:
            storm = Storm(selector)
            for server in servers:
                storm.call_all(server.addresses, server.port)
            storm.run(STORM_S)
            meanwhile()
            for pid, program in self.programs.items():
                grown = resident_mib(pid) - self.before[pid][0]
                assert grown < MAY_GROW_MIB[program], f"{program} by {grown} MiB"
            storm.end()

    def endure_and_step(self, servers):
        steps = len(self.job.found("step"))

        def stepped(_):
            return len(self.job.found("step")) > steps + 20

        self.endure(servers, lambda: self.job.wait(stepped, "steps beside strangers"))

    def has_closed_all(self):
        for pid, (_, files) in self.before.items():
            self.job.wait(
                lambda _, pid=pid, files=files: open_files(pid) <= files + 8, "the end of what was opened for strangers"
            )

    def has_counted(self, kinds):
        """Of that many kinds the callers of one port, as turned away by the master."""
        (address,) = self.job.folder.glob("state*/*/address")
        told = self.job.phalanx("status", f"--state-dir={address.parent}").stdout
        assert int(re.search(r"(\d+) callers turned away", told)[1]) >= kinds * (CALLERS // KINDS), told


def end_well(job, nodes):
    job.stop()
    assert [node.wait() for node in nodes] == [0] * len(nodes), job.story()


@pytest.mark.slow
# Of the kinds of callers so many are turned away at once: at a closed job also those that speak in clear.
@pytest.mark.parametrize(("token", "kinds"), [(TOKEN, 5), ("", 4)], ids=["closed", "open"])
def test_garbage_on_every_port(job, many_files, token, kinds):
    env = {"PHALANX_TOKEN": token} if token else {}
    script = ["saving.py", job.folder / "run", "--ddp"]
    flags = ["--max-restarts=0", "--store-relay=on"]
    nodes = [job.node(index, *map(str, script), env=env, flags=flags) for index in (0, 1)]
    job.wait(lambda _: len(job.found("step")) > 20, "steps")
    servers = servers_of(nodes)
    assert {server.program for server in servers} == {"phalanx-run", "phalanx-master"}
    # The master; of each node presence, images, and the store of this round or the next, at a loopback of IPv6 as well;
    # of one its relay.
    assert len(servers) >= 7, servers
    assert sum("::1" in server.addresses for server in servers) >= 2, servers
    besieged = Besieged(job, servers)
    besieged.endure_and_step(servers)
    besieged.has_closed_all()
    besieged.has_counted(kinds)
    end_well(job, nodes)
    assert list(job.lives()) == [0]


@pytest.mark.slow
def test_garbage_at_ipv6_and_at_a_master_to_be(job, many_files):
    """All of a job at ::1. Then its master's node is lost, and the one that would take its place waits for the voice of
    a third, that stands still meanwhile."""
    job.endpoint_host = "[::1]"
    of_all = {"nnodes": "1:3", "env": {"PHALANX_TOKEN": TOKEN}, "flags": ["--local-addr=::1", "--explain"]}
    nodes = [job.node(0, "light_steps.py", **of_all)]
    alone = job.wait_world(1)
    nodes += [job.node(index, "light_steps.py", **of_all) for index in (1, 2)]
    life = job.wait_world(3, after=alone)
    servers = servers_of(nodes)
    assert all("::1" in server.addresses for server in servers), servers
    besieged = Besieged(job, servers)
    besieged.endure_and_step(servers)
    besieged.has_closed_all()
    besieged.has_counted(5)
    assert max(job.lives()) == life, "a node was lost"

    nodes[2].signal(signal.SIGSTOP)
    job.killed_by_test = True
    job.signal_node(nodes[0], signal.SIGKILL)
    nodes[1].wait_line("this node has the first voice for the master that it has started")
    (master,) = [server for server in servers_of(nodes[1:2]) if server.program == "phalanx-master"]
    Besieged(job, [master]).endure([master], lambda: nodes[2].signal(signal.SIGCONT))
    life = job.wait_world(2, after=life)
    end_well(job, nodes[1:])


@pytest.mark.slow
def test_garbage_at_a_job_of_one_node(job, many_files):
    node = job.standalone("light_steps.py")
    job.wait_world(2)
    servers = servers_of([node])
    # The master, the store of the round, and the next one's.
    assert sorted(server.program for server in servers) == ["phalanx-master", "phalanx-run", "phalanx-run"], servers
    besieged = Besieged(job, servers)
    besieged.endure_and_step(servers)
    besieged.has_closed_all()
    besieged.has_counted(5)
    end_well(job, [node])
    assert list(job.lives()) == [0]


# Python runs it before all else. Each socket on which a check listens is told, and a check goes on when it is let go.
HOLDING_CHECKS = """
import os, socket, sys

listen = socket.socket.listen


def listen_and_wait(self, *backlog):
    listen(self, *backlog)
    if sys._getframe(1).f_globals["__name__"] == "phalanx.node_check.sockets" and os.path.exists({hold!r}):
        address, port = self.getsockname()[:2]
        gate = {hold!r} + f"-{{os.getpid()}}-{{port}}"
        os.mkfifo(gate)
        with open({told!r}, "w") as told:
            told.write(f"{{address}} {{port}} {{gate}}\\n")
        open(gate).close()


socket.socket.listen = listen_and_wait
"""


class HeldChecks:
    """Node checks of processes with `env`, held where they listen: open for so short a time, no stranger meets them by
    chance."""

    def __init__(self, folder):
        self._hold, told = folder / "hold", folder / "told"
        self._hold.mkdir()
        os.mkfifo(told)
        (folder / "sitecustomize.py").write_text(HOLDING_CHECKS.format(hold=str(self._hold), told=str(told)))
        self.env = {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}
        self._told = os.open(told, os.O_RDWR)

    def next(self):
        """(address, port, gate) of a check that listens."""
        assert select.select([self._told], [], [], PATIENCE_S)[0], "no check has come to listen"
        line = b""
        while not line.endswith(b"\n"):
            line += os.read(self._told, 1)
        address, port, gate = line.decode().split()
        return address, int(port), gate

    def hold_no_more(self):
        """Of what comes. Those that are held are to be let go one by one."""
        self._hold.rmdir()

    def close(self):
        os.close(self._told)


@pytest.mark.slow
def test_garbage_at_a_check_of_nodes(job, many_files, tmp_path):
    """At the ports of the checks of each node alone, and at that of the two together: each has its callers before
    it can hear anybody."""
    held = HeldChecks(tmp_path)
    flags = ["--network-check", "--rdzv-conf=last_call_timeout=60"]
    nodes = [job.node(index, "light_steps.py", env=held.env, flags=flags) for index in (0, 1)]
    with contextlib.ExitStack() as stack:
        stack.callback(held.close)
        storms = [Storm(stack.enter_context(selectors.DefaultSelector())) for _ in range(3)]
        for storm in storms:
            stack.callback(storm.end)
            address, port, gate = held.next()
            storm.call_all([address], port)
            for _ in range(CALLERS):  # of whom none goes by itself
                storm.call(address, port, b"", False)
            storm.run(0.5)
            if storm is storms[-1]:
                held.hold_no_more()
            open(gate, "w").close()
        line = nodes[0].wait_line(r"node check: ")
        assert "failed" not in line and "left out" not in line, line
        job.wait_world(2)
    end_well(job, nodes)
