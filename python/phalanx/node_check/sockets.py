"""Sockets at addresses that are given, never guessed."""

import contextlib
import errno
import os
import socket


def resolve(address, port):
    """(family, address of it) as sockets want them."""
    family, _, _, _, found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    return family, found


def hold_to(link, nic):
    """What it sends leaves by that interface alone. Linux before 5.7 leaves that to root: for others the kernel chooses
    by the address that it goes to."""
    with contextlib.suppress(PermissionError):
        link.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, nic.encode() + b"\0")


def listen(address, limit_s, nic=None):
    """A listening socket on a port that the kernel chooses."""
    family, found = resolve(address, 0)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.settimeout(limit_s)
        if nic is not None:
            hold_to(listener, nic)
        listener.bind(found)
        listener.listen(8)
    except OSError:
        listener.close()
        raise
    return listener


def dial(address, port, own_address, limit_s, nic=None):
    """A connection that leaves by this node's own address."""
    family, found = resolve(address, port)
    link = socket.socket(family, socket.SOCK_STREAM)
    try:
        link.settimeout(limit_s)
        if nic is not None:
            hold_to(link, nic)
        link.bind(resolve(own_address, 0)[1])
        link.connect(found)
    except OSError:
        link.close()
        raise
    return link


def send_at_once(*links):
    for link in links:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def receive(link, count):
    """So many bytes. Raises ConnectionResetError where the other side has closed."""
    data = bytearray()
    while len(data) < count:
        chunk = link.recv(min(count - len(data), 1 << 20))
        if not chunk:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        data += chunk
    return bytes(data)
