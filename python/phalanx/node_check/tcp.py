"""A plain connection between two nodes: how long a byte takes, how many go, and how far apart the clocks are. By the
address of the job, and by each network interface that both are told to check.

Group rank 0 listens, rank 1 dials and shows the token that rank 0 has put into the store. Then each leads once, rank 1
first: the one that leads asks, the other answers. Both come to know both directions.
"""

import json
import os
import socket
import statistics
import struct
import time
from datetime import timedelta
from typing import NamedTuple, Optional

from phalanx.node_check import interfaces, sockets
from phalanx.node_check.results import Failed, Skipped, mb_per_s, value
from phalanx.node_check.texts import first_line, of_errno, place, seconds

ANSWER_S = 10
_TOKEN_BYTES = 32
_TRIPS, _CLOCKS = 30, 10
_SIZES = (64 << 10, 256 << 10, 1 << 20, 4 << 20, 8 << 20)
_TIME_S = 0.2  # of all sizes together, but for the first
_PING, _CLOCK, _BLOCK, _OVER = b"p", b"c", b"b", b"e"
_NUMBER = struct.Struct("<q")
# Of what a time is told, so that a slow interface counts as a slow sum does: as much as an all-reduce sums up.
_TOLD_BYTES = 4 << 20


class Way(NamedTuple):
    key: str  # of the invitation, in the store
    address: str
    nic: Optional[str] = None  # which it is held to


def check(order, meeting, deadline):
    store = meeting.join()
    latency_us, offset_us, there_mb_s, back_mb_s = _speak(order, store, deadline, Way("tcp", order.address))
    values = _values("", latency_us, there_mb_s, back_mb_s)
    values.append(value("clock_offset", "us", offset_us))
    return _sentence(order, latency_us, there_mb_s, back_mb_s), values


def check_nic(order, meeting, deadline, nic):
    """The same by that interface. Raises Skipped where the other node does not check one of that name."""
    store = meeting.join()
    own, other = interfaces.address_on(nic), meeting.nic_of_partner(nic)
    if other is None:
        raise Skipped(f"{order.partner()} checks no network interface {nic}")
    if (":" in own) != (":" in other):
        raise Failed(f"{own} here and {other} there are of different versions of IP")
    way = Way(f"tcp/{nic}", own, nic)
    latency_us, _, there_mb_s, back_mb_s = _speak(order, store, deadline, way)
    values = _values(f":{nic}", latency_us, there_mb_s, back_mb_s)
    took_us = _TOLD_BYTES / max(1, min(there_mb_s, back_mb_s))
    values.append(value(f"tcp_time:{nic}", "us", took_us, "less"))
    return _sentence(order, latency_us, there_mb_s, back_mb_s), values


def _values(of, latency_us, there_mb_s, back_mb_s):
    return [
        value(f"tcp_latency{of}", "us", latency_us, "less"),
        value(f"tcp_bandwidth_to{of}", "MB/s", there_mb_s, "more"),
        value(f"tcp_bandwidth_from{of}", "MB/s", back_mb_s, "more"),
    ]


def _sentence(order, latency_us, there_mb_s, back_mb_s):
    return f"{latency_us} us there and back, {there_mb_s} MB/s to and {back_mb_s} MB/s from {order.partner()}"


def _speak(order, store, deadline, way):
    """(latency in us, how far the other's clock is ahead in us, MB/s to it, MB/s from it)."""
    limit_s = deadline.left_s(ANSWER_S, share=0.5)  # others come behind it
    where = [way.address]  # the place that is spoken with, for sentences
    begin = _accept if order.group_rank == 0 else _dial
    try:
        with begin(way, store, limit_s, where) as link:
            return _measure(order.group_rank, link)
    except socket.timeout:
        raise Failed(f"no answer within {seconds(limit_s)} ({where[0]})") from None
    except OSError as error:
        raise Failed(f"{of_errno(error)} ({where[0]})") from None
    except RuntimeError as error:  # of the store
        raise Failed(f"no answer within {seconds(limit_s)}: {first_line(error)}") from None


def _accept(way, store, limit_s, where):
    until = time.monotonic() + limit_s
    token = os.urandom(_TOKEN_BYTES)
    with sockets.listen(way.address, limit_s, way.nic) as listener:
        port = listener.getsockname()[1]
        where[0] = place(way.address, port)
        store.set(way.key, json.dumps([way.address, port, token.hex()]))
        return sockets.meet(listener, token, until)


def _dial(way, store, limit_s, where):
    store.wait([way.key], timedelta(seconds=limit_s))
    address, port, token = _invitation(store.get(way.key), way.key)
    where[0] = place(address, port)
    link = sockets.dial(address, port, way.address, limit_s, way.nic)
    try:
        link.sendall(token)
    except OSError:
        link.close()
        raise
    return link


def _invitation(text, key="tcp"):
    """(address, port, token). The store is another's: what it says is looked at."""
    try:
        address, port, token = json.loads(text)
        token = bytes.fromhex(token)
        if isinstance(address, str) and isinstance(port, int) and 0 < port < 1 << 16 and len(token) == _TOKEN_BYTES:
            return address, port, token
    except (ValueError, TypeError):
        pass
    raise Failed(f"the store has no address, port and token under {key}")


def _measure(group_rank, link):
    sockets.send_at_once(link)
    if group_rank == 1:
        led = _lead(link)
        followed = _follow(link)
    else:
        followed = _follow(link)
        led = _lead(link)
    return (*led, followed)


def _lead(link):
    """(latency in us, how far the other's clock is ahead in us, MB/s to the other)."""
    times_us = [_ask(link, _PING, 1)[0] for _ in range(_TRIPS)]
    offset_us = min(_clock(link) for _ in range(_CLOCKS))[1]
    rates_mb_s, spent_s = [], 0.0
    for size in _SIZES:
        block = bytes(size)
        took_s = _ask(link, _BLOCK + _NUMBER.pack(size) + block, 1)[0] / 1e6
        rates_mb_s.append(mb_per_s(size, took_s))
        spent_s += took_s
        if spent_s + 4 * took_s > _TIME_S:
            break
    # The first block may go in a burst that a way with a token bucket carries once.
    best = max(rates_mb_s[1:] or rates_mb_s)
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
