"""Sockets at addresses that are given, never guessed."""

import contextlib
import errno
import hmac
import os
import selectors
import socket
import time

# Callers that have not shown the token yet. The one that is waited for calls once, and shows it at once: for who comes
# behind so many the one that has been heard for longest goes.
CALLERS_MAX = 256
GREETING_S = 1
# Who is waited for comes behind all strangers that are there already. The kernel lowers it to net.core.somaxconn.
_QUEUE = 1 << 16


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
        listener.listen(_QUEUE)
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


def far_end(listener, near, limit_s):
    """The end here of a connection that this process has made to the listener itself. Whoever else has called is sent
    away."""
    until, own = time.monotonic() + limit_s, near.getsockname()
    while (left_s := until - time.monotonic()) > 0:
        listener.settimeout(left_s)
        far, caller = listener.accept()
        if caller == own:
            return far
        far.close()
    raise socket.timeout


def meet(listener, token, until):
    """The connection of the caller that shows the token, with what is left until then (time.monotonic()) as its limit;
    socket.timeout where none does. All are heard at the same time: one that says nothing, or a byte a second, holds up
    nobody."""
    with _Callers(listener, token) as callers:
        while time.monotonic() < until:
            found = callers.hear(until)
            if found is not None:
                found.settimeout(max(0.01, until - time.monotonic()))
                return found
    raise socket.timeout


class _Callers:
    """Who has called, and not shown all of the token yet."""

    def __init__(self, listener, token):
        self.listener, self.token = listener, token
        self.shown = {}  # link -> bytes, and when its time is over
        self.selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self.selector.register(listener, selectors.EVENT_READ)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for link in self.shown:
            link.close()
        self.selector.close()

    def hear(self, until):
        """What comes until then, or until one's time is over. The one that has shown the token, or None."""
        over = min([until, *(over for _, over in self.shown.values())])
        ready = [key.fileobj for key, _ in self.selector.select(max(0, over - time.monotonic()))]
        for link in ready:
            if link is not self.listener and self._shows(link):
                return link
        if self.listener in ready:  # behind them: the one that goes for it has been heard by then
            self._take()
        for link in [link for link, (_, over) in self.shown.items() if over <= time.monotonic()]:
            self._forget(link).close()
        return None

    def _take(self):
        try:
            link, _ = self.listener.accept()
        except OSError:
            return  # it has gone again
        if len(self.shown) == CALLERS_MAX:
            self._forget(next(iter(self.shown))).close()
        link.setblocking(False)
        self.shown[link] = (b"", time.monotonic() + GREETING_S)
        self.selector.register(link, selectors.EVENT_READ)

    def _shows(self, link):
        before, over = self.shown[link]
        try:
            chunk = link.recv(len(self.token) - len(before))
        except BlockingIOError:
            return False
        except OSError:
            chunk = b""
        now = before + chunk
        self.shown[link] = (now, over)
        if chunk and len(now) < len(self.token):
            return False
        self._forget(link)
        if hmac.compare_digest(now, self.token):
            return True
        link.close()
        return False

    def _forget(self, link):
        self.selector.unregister(link)
        del self.shown[link]
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
