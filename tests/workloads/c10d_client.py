"""A client of the round's c10d store, in plain Python: as much of docs/formats/c10d-store.md as a rendezvous needs."""

import os
import socket
import struct

VALIDATE, SET, GET, ADD, WAIT = 0, 1, 3, 4, 6
MAGIC = 0x3C85F7CE


def blob(data):
    return struct.pack("<Q", len(data)) + data


def receive(connection, count):
    """Exactly so many bytes."""
    parts = []
    while count:
        part = connection.recv(min(count, 1 << 20))
        if not part:
            host, port = connection.getpeername()[:2]
            raise ConnectionError(f"Connection closed by peer [{host}]:{port}")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


class Store:
    """One connection to a store. Keys are text, values bytes; torch's own keys begin with a slash, too."""

    def __init__(self, address):
        self.connection = socket.create_connection(address)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection.sendall(struct.pack("<BI", VALIDATE, MAGIC))

    @classmethod
    def of_the_round(cls):
        """The one that the launcher has opened for this life of the job."""
        return cls((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))

    @property
    def own_host(self):
        """This process's address, as the store sees it."""
        return self.connection.getsockname()[0]

    def set(self, key, value):
        self.connection.sendall(struct.pack("<B", SET) + self._key(key) + blob(value))

    def wait(self, *keys):
        """Returns when all of them have been set."""
        self.connection.sendall(struct.pack("<BQ", WAIT, len(keys)) + b"".join(map(self._key, keys)))
        answer = receive(self.connection, 1)
        if answer != b"\0":
            raise ConnectionError(f"the store answered a wait with {answer!r}")

    def get(self, key):
        """The value, once there is one."""
        self.wait(key)
        self.connection.sendall(struct.pack("<B", GET) + self._key(key))
        (length,) = struct.unpack("<Q", receive(self.connection, 8))
        return receive(self.connection, length)

    def add(self, key, delta):
        """The sum."""
        self.connection.sendall(struct.pack("<B", ADD) + self._key(key) + struct.pack("<q", delta))
        return struct.unpack("<q", receive(self.connection, 8))[0]

    def close(self):
        self.connection.close()

    @staticmethod
    def _key(name):
        return blob(b"/" + name.encode())
