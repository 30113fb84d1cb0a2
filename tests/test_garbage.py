"""Whatever a stranger sends to whatever port of a job: nobody in it notices, and its memory stays bounded."""

import contextlib
import errno
import os
import random
import re
import resource
import selectors
import socket
import ssl
import struct
import time
from pathlib import Path

import pytest

TOKEN = "0123456789abcdef0123456789abcdef"
MIB = 1 << 20
CALLERS = 1_000  # at each port, at the same time
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
    """[(address, port)] of IPv4 sockets that it listens on."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(fd))
    found = []
    for row in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        cells = row.split()
        if cells[3] == "0A" and f"socket:[{cells[9]}]" in inodes:
            address, port = cells[1].split(":")
            found.append((socket.inet_ntoa(struct.pack("<I", int(address, 16))), int(port, 16)))
    return found


def servers_of(job):
    """[(program, pid, (address, port))] of all that this job's own programs listen on."""
    found = []
    for pid in {pid for node in job.nodes for pid in job.processes(node)}:
        with contextlib.suppress(FileNotFoundError):  # it has ended meanwhile
            program = Path(os.readlink(f"/proc/{pid}/exe")).name
            if program.startswith("phalanx-"):
                found += [(program, pid, place) for place in listening(pid)]
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

    def call(self, address, port, text, drips):
        connection = socket.socket()
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


@pytest.mark.slow
# Of the kinds of callers so many are turned away at once: at a closed job also those that speak in clear.
@pytest.mark.parametrize(("token", "kinds"), [(TOKEN, 5), ("", 4)], ids=["closed", "open"])
def test_garbage_on_every_port(job, many_files, token, kinds):
    env = {"PHALANX_TOKEN": token} if token else {}
    script = ["saving.py", job.folder / "run", "--ddp"]
    flags = ["--max-restarts=0", "--store-relay=on"]
    nodes = [job.node(index, *map(str, script), env=env, flags=flags) for index in (0, 1)]
    job.wait(lambda _: len(job.found("step")) > 20, "steps")
    servers = servers_of(job)
    programs = {program for program, _, _ in servers}
    assert programs == {"phalanx-run", "phalanx-master"}
    # The master; of each node presence, images, and the store of this round or the next, one at two addresses; of one
    # its relay.
    assert len({place for _, _, place in servers}) >= 8, servers
    pids = {pid: program for program, pid, _ in servers}
    before = {pid: (resident_mib(pid), open_files(pid)) for pid in pids}
    say = sayings(random.Random(1).randbytes(4096))
    for _, _, (address, port) in servers:
        with selectors.DefaultSelector() as selector:
            storm = Storm(selector)
            steps = len(job.found("step"))
            for turn in range(CALLERS // len(say)):
                for text in say.values():
                    storm.call(address, port, text, turn % 10 == 0)
            storm.run(1)
            job.wait(lambda _, steps=steps: len(job.found("step")) > steps, "steps beside what strangers do")
            for pid, program in pids.items():
                assert resident_mib(pid) - before[pid][0] < MAY_GROW_MIB[program], (program, port)
            storm.end()
    for pid in pids:
        job.wait(lambda _, pid=pid: open_files(pid) <= before[pid][1] + 8, "the end of what was opened for strangers")
    (address,) = job.folder.glob("state*/*/address")
    told = job.phalanx("status", job.id, f"--state-dir={address.parent}").stdout
    assert int(re.search(r"(\d+) callers turned away", told)[1]) >= kinds * (CALLERS // len(say)), told
    job.stop()
    assert [node.wait() for node in nodes] == [0, 0], job.story()
    assert list(job.lives()) == [0]
