"""Whether a command below phalanx.shim has launched anything through Phalanx; told when it ends, where it has not.

The command's own process listens at an abstract socket, which lies on no disk and goes with it; whoever below it
launches says so there.
"""

import atexit
import os
import sys

from phalanx._launch import surroundings

_ACCELERATE = (
    "accelerate starts the script itself with --cpu, MULTI_CPU or one process: give phalanx-run the script in its place"
)


def watch():
    """In every Python below the shim: in the command's own process, from now on."""
    if os.environ.get(surroundings.SHIM_PID) != str(os.getpid()):
        return
    import socket  # here alone: every Python below the shim imports this module

    heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        heard.bind(_address(os.getpid()))
    except OSError:  # without it nothing is told
        heard.close()
        return
    atexit.register(_tell, heard, os.getpid())


def launched(environment):
    """Something goes through Phalanx. `environment`: with the shim's variables."""
    pid = environment.get(surroundings.SHIM_PID, "")
    if not pid.isdigit():
        return
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
        try:
            sender.sendto(b"launched", _address(int(pid)))
        except OSError:  # the command is no Python, has ended, or has been told often enough
            pass


def _address(pid):
    return f"\0phalanx-shim-{os.getuid()}-{pid}"


def _tell(heard, pid):
    if os.getpid() != pid:
        return  # a forked child that ends as its parent would
    try:
        heard.recv(16)
    except OSError:
        name = os.path.basename(sys.argv[0] or "") or "the command"
        why = f": {_ACCELERATE}" if name == "accelerate" else f": {name} has not started torch's launcher"
        sys.stderr.write(f"phalanx.shim: nothing was launched through Phalanx{why}\n")
    finally:
        heard.close()
