"""Whether a command below phalanx.shim has launched anything through Phalanx; told when it ends, where it has not.

The command's own process listens at an abstract socket, which lies on no disk and goes with it; whoever below it
launches says so there. Where the command is no Python, as mpirun, the first of the processes that it starts listens.
"""

import atexit
import os
import sys

from phalanx._launch import surroundings

_ACCELERATE = (
    "accelerate starts the script itself with one process, or with --cpu and no --mpirun_hostfile: give phalanx-run "
    "the script in its place"
)
_MPI = (  # the variables in which a launcher of MPI tells a process its rank, and how many there are
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
)
_LAUNCHED = b"launched"
_MPIRUN = b"mpirun "  # and how many processes it has started
_LEFT = b"left "  # to mpirun, and why
_WORDS_MAX = 1024


def watch():
    """In every Python below the shim: in the command's own process, from now on."""
    if os.environ.get(surroundings.SHIM_PID) != str(os.getpid()):
        processes = _started_by_mpirun(os.environ)
        if processes < 2 or _say(os.environ, _MPIRUN + str(processes).encode()):
            return
        os.environ[surroundings.SHIM_PID] = str(os.getpid())  # nobody listens
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
    _say(environment, _LAUNCHED)


def left_to_mpirun(environment, why):
    """Several processes are about to start, and not through Phalanx."""
    _say(environment, _LEFT + why.encode("utf-8", "replace")[: _WORDS_MAX - len(_LEFT)])


def _say(environment, words):
    """False where nobody listens."""
    pid = environment.get(surroundings.SHIM_PID, "")
    if not pid.isdigit():
        return True  # not below the shim
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
        try:
            sender.sendto(words, _address(int(pid)))
        except BlockingIOError:  # it has been told often enough
            return True
        except OSError:  # the command is no Python, or has ended
            return False
    return True


def _started_by_mpirun(environment):
    """How many processes, in the first of them; 0 in the others, and where no mpirun has started this one."""
    for rank, size in _MPI:
        if environment.get(rank) == "0" and environment.get(size, "").isdigit():
            return int(environment[size])
    return 0


def _address(pid):
    return f"\0phalanx-shim-{os.getuid()}-{pid}"


def _tell(heard, pid):
    if os.getpid() != pid:
        return  # a forked child that ends as its parent would
    words = _all_of(heard)
    heard.close()
    if _LAUNCHED in words:
        return
    name = os.path.basename(sys.argv[0] or "") or "the command"
    processes = [int(word[len(_MPIRUN) :]) for word in words if word.startswith(_MPIRUN)]
    processes = processes or [_started_by_mpirun(os.environ)]
    left = [word[len(_LEFT) :].decode("utf-8", "replace") for word in words if word.startswith(_LEFT)]
    if left:
        why = f"{left[0]}: mpirun has started the ranks"
    elif name == "accelerate":
        why = _ACCELERATE
    elif max(processes) > 1:
        why = (
            f"mpirun has started {max(processes)} processes itself: give phalanx-run the script in its place, "
            "with --nproc-per-node"
        )
    else:
        why = f"{name} has not started torch's launcher"
    sys.stderr.write(f"phalanx.shim: nothing was launched through Phalanx: {why}\n")


def _all_of(heard):
    words = []
    while True:
        try:
            words.append(heard.recv(_WORDS_MAX))
        except OSError:
            return words
