"""A script that brings its own address, as older ones do: <way> URL.

`group`: init_process_group(init_method=URL); a sum over all ranks, reported; rank 1 fails in its first life.
`client`: a client of the store by PyTorch's TCPStore, as torch before 2.15 makes one for each rank.
`lingering`: as `client`, but the first life of rank 1 does not end when its round does: it knocks at the endpoint until
it is killed, and tells each time whether it was let in.
"""

import os
import signal
import socket
import sys
from urllib.parse import urlparse

from report import report

KNOCK = b"\x00\xce\xf7\x85\x3c\x0d\x01\x02\x03\x04"  # VALIDATE and PING
FIRST_LIFE = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def group(url):
    import torch
    import torch.distributed as dist
    from leaving import leave_group

    dist.init_process_group("gloo", init_method=url, rank=RANK, world_size=WORLD)
    total = torch.ones(1)
    dist.all_reduce(total)
    report("used", total=int(total))
    if FIRST_LIFE and RANK == 1:
        os._exit(1)
    leave_group()


def client(url):
    from torch.distributed import TCPStore

    where = urlparse(url)
    store = TCPStore(where.hostname, where.port, WORLD, is_master=False)
    report("used", total=WORLD, keys=store.add("here", 1))
    store.set(f"reported/{RANK}", "x")
    store.wait([f"reported/{rank}" for rank in range(WORLD)])
    if FIRST_LIFE and RANK == 0:
        os._exit(1)
    if FIRST_LIFE:
        store.wait(["never"])


def lingering(url):
    if not FIRST_LIFE or RANK != 1:
        return client(url)
    # Whichever it notices first: that its round is over, or that the store of it is closed.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        client(url)
    except RuntimeError:
        knock_for_ever(urlparse(url))


def knock_for_ever(where):
    while True:
        with socket.create_connection((where.hostname, where.port)) as connection:
            connection.sendall(KNOCK)
            try:
                answer = connection.recv(4)
            except ConnectionResetError:
                answer = b""
        report("knocked", let_in=answer == KNOCK[6:])


if __name__ == "__main__":
    {"group": group, "client": client, "lingering": lingering}[sys.argv[1]](sys.argv[2])
