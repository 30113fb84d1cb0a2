"""Which checks an order asks for, in their order."""

import os

from phalanx.node_check import collective, compute, disk, interfaces, loopback, programs, switchbox, tcp
from phalanx.node_check.deadline import Deadline
from phalanx.node_check.meeting import Meeting
from phalanx.node_check.texts import clean

_MOST_NAME_CHARACTERS = 128


def of(order, torch):
    """Yields (name, function). What stands behind a check may depend on what that one has found."""
    if order.kind == "alone":
        yield from _alone(order, torch)
    else:
        yield from _together(order, torch, Deadline(order.limit_ms))
    for path in order.programs:
        name = clean(os.path.basename(path), _MOST_NAME_CHARACTERS) or "program"
        yield name, lambda path=path: programs.run(order, path)
    if order.switchbox is not None:
        yield "switchbox", lambda: switchbox.check(order, torch)


def _alone(order, torch):
    yield "matmul", lambda: compute.matmul(torch)
    yield "memory_bandwidth", compute.memory_bandwidth
    yield "host_to_device", lambda: compute.host_to_device(torch)
    yield "device_memory", lambda: compute.device_memory(torch)
    yield "disk_write", lambda: disk.write(order.directory)
    yield "loopback", lambda: loopback.echo(order.address)
    if order.nics:
        yield "nics", lambda: interfaces.check(order.nics)


def _together(order, torch, deadline):
    meeting = Meeting(order, torch, deadline)
    if order.kind == "pair":
        yield "tcp", lambda: tcp.check(order, meeting, deadline)
        for nic in sorted(order.nics):  # the same order on both, whatever each was told
            yield f"tcp:{nic}", lambda nic=nic: tcp.check_nic(order, meeting, deadline, nic)
        yield "matmul", lambda: compute.matmul(torch)
        # One may have many devices to look at: sums begin when both have.
        meeting.expect_behind("matmul")
    yield "all_reduce", lambda: collective.gloo(order, torch, meeting, deadline)
    if meeting.nodes_with_cuda:
        yield "all_reduce_nccl", lambda: collective.nccl(order, torch, meeting, deadline)
