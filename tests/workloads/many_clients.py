"""Opens more connections to the round's store than the agent's limit of open files would have let in."""

import os
import resource
import socket
import struct

from report import report

VALIDATE = b"\x00" + struct.pack("<I", 0x3C85F7CE)
PING = b"\x0d" + struct.pack("<I", 7)

soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
clients = [socket.create_connection(place) for _ in range(100)]
for client in clients:
    client.sendall(VALIDATE + PING)
report("connected", soft=soft, answers=[struct.unpack("<I", client.recv(4))[0] for client in clients])
