"""An S3 server on a free port of this machine: `python tests/s3_server.py`, in the environment of
tools/hadoop_servers.py. It says its address on stdout, keeps all objects in memory, and ends with its stdin."""

import sys

from moto.server import ThreadedMotoServer

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
print(f"http://{host}:{port}", flush=True)
sys.stdin.read()
