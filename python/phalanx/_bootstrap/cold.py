"""A cold worker's way to its request."""

import os

from phalanx._bootstrap import linux, runner, wire


def serve(fd, request_fd):
    """What runner.run wants. Ends the process, silently, where the agent is gone or wants it no more."""
    parent_pid = os.getppid()
    if os.getsid(0) != os.getpid():
        try:
            os.setsid()
        except OSError:
            pass  # a group leader already
    if not linux.die_with_parent(parent_pid):
        os._exit(0)
    channel = wire.Channel(fd)
    if request_fd is not None:
        with open(request_fd, "rb") as file:
            return channel, wire.message_of(file.read()), []
    try:
        channel.send({"type": "spare", "pid": os.getpid()})
    except OSError:
        os._exit(0)
    request, fds = runner.wait_for_request(channel)
    return channel, request, fds
