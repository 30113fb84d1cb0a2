"""A plain connection between two nodes: how long a byte takes, how many go, and how far apart the clocks are.

Group rank 0 listens, rank 1 dials and shows the token that rank 0 has put into the store. Then each leads once, rank 1
first: the one that leads asks, the other answers. Both come to know both directions.
"""

import hmac
import json
import os
import socket
import statistics
import struct
import time
from datetime import timedelta

from phalanx.node_check import sockets
from phalanx.node_check.results import Failed, mb_per_s, value
from phalanx.node_check.texts import first_line, of_errno, place, seconds

ANSWER_S = 10
_TOKEN_BYTES = 32
_TRIPS, _CLOCKS = 30, 10
_SIZES = (64 << 10, 256 << 10, 1 << 20, 4 << 20, 8 << 20)
_TIME_S = 0.2  # of all sizes together, but for the first
_PING, _CLOCK, _BLOCK, _OVER = b"p", b"c", b"b", b"e"
_NUMBER = struct.Struct("<q")


def check(order, meeting, deadline):
    store = meeting.join()
    limit_s = deadline.left_s(ANSWER_S, share=0.5)  # others come behind it
    where = [""]  # the place that is spoken with, for sentences
    try:
        link = _accept(order, store, limit_s, where) if order.group_rank == 0 else _dial(order, store, limit_s, where)
        with link:
            return _measure(order, link, where[0])
    except socket.timeout:
        raise Failed(f"no answer within {seconds(limit_s)} ({where[0]})") from None
    except OSError as error:
        raise Failed(f"{of_errno(error)} ({where[0] or order.address})") from None
    except RuntimeError as error:  # of the store
        raise Failed(f"no answer within {seconds(limit_s)}: {first_line(error)}") from None


def _accept(order, store, limit_s, where):
    until = time.monotonic() + limit_s
    token = os.urandom(_TOKEN_BYTES)
    with sockets.listen(order.address, limit_s) as listener:
        port = listener.getsockname()[1]
        where[0] = place(order.address, port)
        store.set("tcp", json.dumps([order.address, port, token.hex()]))
        while True:
            listener.settimeout(max(0.01, until - time.monotonic()))
            link, _ = listener.accept()
            try:
                link.settimeout(max(0.01, min(1, until - time.monotonic())))
                if hmac.compare_digest(sockets.receive(link, _TOKEN_BYTES), token):
                    link.settimeout(max(0.01, until - time.monotonic()))
                    return link
            except OSError:
                pass  # a stranger that says nothing, or too little
            link.close()


def _dial(order, store, limit_s, where):
    store.wait(["tcp"], timedelta(seconds=limit_s))
    address, port, token = _invitation(store.get("tcp"))
    where[0] = place(address, port)
    link = sockets.dial(address, port, order.address, limit_s)
    try:
        link.sendall(token)
    except OSError:
        link.close()
        raise
    return link


def _invitation(text):
    """(address, port, token). The store is another's: what it says is looked at."""
    try:
        address, port, token = json.loads(text)
        token = bytes.fromhex(token)
        if isinstance(address, str) and isinstance(port, int) and 0 < port < 1 << 16 and len(token) == _TOKEN_BYTES:
            return address, port, token
    except (ValueError, TypeError):
        pass
    raise Failed("the store has no address, port and token under tcp")


def _measure(order, link, where):
    sockets.send_at_once(link)
    if order.group_rank == 1:
        led = _lead(link)
        followed = _follow(link)
    else:
        followed = _follow(link)
        led = _lead(link)
    latency_us, offset_us, there_mb_s = led
    values = [
        value("tcp_latency", "us", latency_us, "less"),
        value("tcp_bandwidth_to", "MB/s", there_mb_s, "more"),
        value("tcp_bandwidth_from", "MB/s", followed, "more"),
        value("clock_offset", "us", offset_us),
    ]
    return f"{latency_us} us there and back, {there_mb_s} MB/s to and {followed} MB/s from {order.partner()}", values


def _lead(link):
    """(latency in us, how far the other's clock is ahead in us, MB/s to the other)."""
    times_us = [_ask(link, _PING, 1)[0] for _ in range(_TRIPS)]
    offset_us = min(_clock(link) for _ in range(_CLOCKS))[1]
    best, spent_s = 0, 0.0
    for size in _SIZES:
        block = bytes(size)
        took_s = _ask(link, _BLOCK + _NUMBER.pack(size) + block, 1)[0] / 1e6
        best = max(best, mb_per_s(size, took_s))
        spent_s += took_s
        if spent_s + 4 * took_s > _TIME_S:
            break
    link.sendall(_OVER + _NUMBER.pack(best))
    return int(statistics.median(times_us)), offset_us, best


def _ask(link, data, count):
    """(us until the answer, the answer of so many bytes)."""
    began_ns = time.monotonic_ns()
    link.sendall(data)
    answer = sockets.receive(link, count)
    return (time.monotonic_ns() - began_ns) // 1000, answer


def _clock(link):
    """(us there and back, offset): the quickest trip knows best."""
    before_us = time.time_ns() // 1000
    took_us, answer = _ask(link, _CLOCK, _NUMBER.size)
    return took_us, _NUMBER.unpack(answer)[0] - before_us - took_us // 2


def _follow(link):
    """Answers until the other has led to its end. MB/s from the other."""
    while True:
        asked = sockets.receive(link, 1)
        if asked == _PING:
            link.sendall(_PING)
        elif asked == _CLOCK:
            link.sendall(_NUMBER.pack(time.time_ns() // 1000))
        elif asked == _BLOCK:
            _swallow(link, _NUMBER.unpack(sockets.receive(link, _NUMBER.size))[0])
            link.sendall(_BLOCK)
        elif asked == _OVER:
            return max(0, _NUMBER.unpack(sockets.receive(link, _NUMBER.size))[0])
        else:
            raise Failed(f"the other side sent {asked!r}, which asks for nothing")


def _swallow(link, count):
    if not 0 < count <= _SIZES[-1]:
        raise Failed(f"the other side announced {count} bytes, at most {_SIZES[-1]} are meant")
    room = memoryview(bytearray(min(count, 1 << 20)))
    while count > 0:
        got = link.recv_into(room[: min(count, len(room))])
        if got == 0:
            raise ConnectionResetError("the other side has closed the connection")
        count -= got
