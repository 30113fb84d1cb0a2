"""What a worker tells its test: one JSON datagram an event, sent when the call returns, so that no kill can lose it."""

import json
import os
import socket
import time


def report(event, **fields):
    message = {
        "ev": event,
        "t": time.monotonic(),
        "pid": os.getpid(),
        "rank": int(os.environ.get("RANK", -1)),
        "local_rank": int(os.environ.get("LOCAL_RANK", -1)),
        "life": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", -1)),
        "world": int(os.environ.get("WORLD_SIZE", -1)),
        **fields,
    }
    name = os.environ["PHALANX_TEST_SOCKET"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(json.dumps(message).encode(), name if name.startswith("/") else f"\0{name}")
