"""Steps by all_reduce; a rank that is cut off tries to get back in by every way it knows, reports each, and waits."""

import os
import signal
import socket
import struct
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from leaving import leave_group
from report import report

CURRENT_STORE = Path(os.environ["PHALANX_TEST_STOP"]).with_name("current_store")
ADDRESS = os.environ["PHALANX_TEST_NODE_ADDRESS"]


def attempt(name, function):
    try:
        result = function()
    except (RuntimeError, OSError, ValueError) as error:
        report("attempt", way=name, worked=False, how=f"{type(error).__name__}: {error}"[:200])
    else:
        report("attempt", way=name, worked=bool(result), how=str(result))


def ping(host, port):
    """Speaks to a c10d store from this node's own address; true where it answers."""
    with socket.create_connection((host, port), timeout=5, source_address=(ADDRESS, 0)) as connection:
        connection.sendall(b"\0" + struct.pack("<I", 0x3C85F7CE) + b"\x0d" + struct.pack("<I", 4711))
        return connection.recv(4) == struct.pack("<I", 4711)


def try_everything(store):
    here = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    now = CURRENT_STORE.read_text().split()
    attempt("write with the old client", lambda: store.add("fenced", 1))  # set() asks for no answer
    attempt("old store", lambda: ping(*here))
    attempt("new store", lambda: ping(now[0], int(now[1])))
    attempt("old group", lambda: dist.all_reduce(torch.ones(1)) or True)
    report("tried")


def main():
    report("main", store=[os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])])
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=timedelta(seconds=5)
    )
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    attempt("ping as a member", lambda: ping(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
    flag = torch.zeros(1)
    step = 0
    try:
        while not flag.item():
            flag[0] = os.path.exists(os.environ["PHALANX_TEST_STOP"])
            dist.all_reduce(flag)
            step += 1
            if step == 1:
                report("step", n=step)
            time.sleep(0.02)
    except RuntimeError as error:
        report("cut off", how=str(error)[:200])
        try_everything(store)
        while True:
            signal.pause()
    leave_group()
    report("done")


if __name__ == "__main__":
    main()
