"""A process group without torch: ranks meet through the round's store and hold a connection to each other.

As with gloo, every rank notices the death of any other at once, in the collective that it is in or comes to, and ends
with a RuntimeError that says what the system said: the launcher tells by it who is a victim of somebody else's death.
"""

import os
import select
import socket
import struct

from c10d_client import Store, receive

RANK = struct.Struct("<I")
NUMBER = struct.Struct("<d")


def join():
    """The group of all ranks of this life. Returns when all of them have come."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = Store.of_the_round()
    family = socket.AF_INET6 if ":" in store.own_host else socket.AF_INET
    with socket.create_server((store.own_host, 0), family=family, backlog=size) as listener:
        store.set(f"peers/{rank}", "{} {}".format(*listener.getsockname()).encode())
        connections = {}
        for peer in range(rank):
            host, port = store.get(f"peers/{peer}").split()
            connections[peer] = socket.create_connection((host.decode(), int(port)))
            connections[peer].sendall(RANK.pack(rank))
        while len(connections) < size - 1:
            connection, _ = listener.accept()
            connections[RANK.unpack(receive(connection, RANK.size))[0]] = connection
    return Group(rank, size, store, connections)


class Group:
    """All ranks of a life. Collectives come in the same order, with payloads of the same length, on all of them."""

    def __init__(self, rank, size, store, connections):
        self.rank, self.size = rank, size
        self._store = store  # open as long as the group, as torch's client is
        self._connections = connections
        self._names = {peer: "[{}]:{}".format(*one.getpeername()) for peer, one in connections.items()}
        for connection in connections.values():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setblocking(False)

    def all_gather(self, payload):
        """The payloads of all ranks, by rank."""
        unsent = {peer: memoryview(payload) for peer in self._connections if payload}
        received = {peer: bytearray() for peer in self._connections if payload}
        missing = set(received)
        while unsent or missing:
            readable = {self._connections[peer]: peer for peer in missing}
            writable = {self._connections[peer]: peer for peer in unsent}
            ready = select.select(list(readable), list(writable), [])
            for peer in [readable[one] for one in ready[0]]:
                received[peer] += self._receive(peer, len(payload) - len(received[peer]))
                if len(received[peer]) == len(payload):
                    missing.remove(peer)
            for peer in [writable[one] for one in ready[1]]:
                unsent[peer] = unsent[peer][self._send(peer, unsent[peer]) :]
                if not unsent[peer]:
                    del unsent[peer]
        return [bytes(received[rank]) if rank != self.rank else bytes(payload) for rank in range(self.size)]

    def all_reduce(self, number):
        """The sum of all ranks' numbers."""
        return sum(NUMBER.unpack(one)[0] for one in self.all_gather(NUMBER.pack(number)))

    def barrier(self):
        self.all_reduce(0)

    def begin_all_gather(self, payload):
        """Sends half of it to everybody, as a rank that will not come to the other half."""
        for connection in self._connections.values():
            connection.setblocking(True)
            connection.sendall(payload[: len(payload) // 2])

    def close(self):
        for connection in self._connections.values():
            connection.close()
        self._store.close()

    def _receive(self, peer, count):
        try:
            data = self._connections[peer].recv(min(count, 1 << 20))
        except OSError as error:
            raise self._is_gone(peer, error.strerror) from None
        if not data:
            raise self._is_gone(peer, "Connection closed by peer")
        return data

    def _send(self, peer, data):
        try:
            return self._connections[peer].send(data)
        except OSError as error:
            raise self._is_gone(peer, error.strerror) from None

    def _is_gone(self, peer, how):
        return RuntimeError(f"{how} {self._names[peer]}, which is rank {peer}")
