"""This node's own address: can it be bound, reached, and spoken through?"""

import os
import socket
import statistics
import time

from phalanx.node_check import sockets
from phalanx.node_check.results import Failed, value
from phalanx.node_check.texts import of_errno, place, seconds

_ANSWER_S = 5
_TRIPS = 30
_BLOCK_BYTES = 16 << 10  # less than a socket takes while nobody reads: there is one thread


def echo(address):
    try:
        with sockets.listen(address, _ANSWER_S) as listener:
            port = listener.getsockname()[1]
            dialled = sockets.dial(address, port, address, _ANSWER_S)
            with dialled as near, sockets.far_end(listener, near, _ANSWER_S) as far:
                far.settimeout(_ANSWER_S)
                sockets.send_at_once(near, far)
                times_us = [_trip(near, far, b"p") for _ in range(_TRIPS)]
                _trip(near, far, os.urandom(_BLOCK_BYTES))
    except socket.timeout:
        raise Failed(f"no answer within {seconds(_ANSWER_S)} ({address})") from None
    except OSError as error:
        raise Failed(f"{of_errno(error)} ({address})") from None
    latency_us = statistics.median(times_us)
    return f"{place(address, port)} answers", [value("loopback_latency", "us", latency_us, "less")]


def _trip(near, far, data):
    """There and back, in us."""
    began_ns = time.monotonic_ns()
    near.sendall(data)
    there = sockets.receive(far, len(data))
    far.sendall(there)
    back = sockets.receive(near, len(data))
    if back != data:
        raise Failed("other bytes came back than were sent")
    return (time.monotonic_ns() - began_ns) // 1000
