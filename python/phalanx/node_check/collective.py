"""A sum over all nodes of an order, which must be right."""

import os
import statistics
import time
from datetime import timedelta

from phalanx.node_check import interfaces
from phalanx.node_check.results import Failed, Skipped, mb_per_s, value
from phalanx.node_check.texts import first_line, seconds

ANSWER_S = 10
_GLOO_BYTES, _NCCL_BYTES = 4 << 20, 64 << 20
_ROUNDS = 3  # behind one that warms up
_PATTERN = 251
# A group that is taken apart waits for its partners. These end with the process.
_kept = []


def gloo(order, torch, meeting, deadline):
    store = meeting.join()
    module = torch.needed()
    distributed = module.distributed

    def make(limit):
        kind = distributed.ProcessGroupGloo
        options = kind._Options()
        options._devices = [kind.create_device(hostname=order.address)]
        options._timeout = limit
        below = distributed.PrefixStore("gloo", store)
        return kind(below, order.group_rank, order.group_size, options)

    return _reduce(order, module, make, deadline, "all_reduce", _GLOO_BYTES, "cpu")


def nccl(order, torch, meeting, deadline):
    store = meeting.join()
    module = torch.needed()
    if meeting.nodes_with_cuda < order.group_size:
        raise Skipped(f"{order.group_size - meeting.nodes_with_cuda} of {order.group_size} nodes have no CUDA device")
    distributed = module.distributed
    if not distributed.is_nccl_available():
        raise Skipped("this torch has no NCCL")
    if "NCCL_SOCKET_IFNAME" not in os.environ:
        os.environ["NCCL_SOCKET_IFNAME"] = f"={interfaces.of_address(order.address)}"
    # A partner that is silent is an exception here, and does not end this process.
    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"

    def make(limit):
        kind = distributed.ProcessGroupNCCL
        options = kind.Options()
        options._timeout = limit
        below = distributed.PrefixStore("nccl", store)
        return kind(below, order.group_rank, order.group_size, options)

    module.cuda.set_device(0)
    return _reduce(order, module, make, deadline, "all_reduce_nccl", _NCCL_BYTES, "cuda:0")


def _reduce(order, torch, make, deadline, name, count, device):
    limit_s = deadline.left_s(ANSWER_S)
    until = time.monotonic() + limit_s
    try:
        group = make(timedelta(seconds=limit_s))
        _kept.append(group)
        own_s = [_round(order, torch, group, count, device) for _ in range(1 + _ROUNDS)][1:]
        took_s = _together_s(torch, group, own_s, device)
    except RuntimeError as error:
        said = first_line(error)
        if time.monotonic() >= until - 0.5 or "timed out" in said.lower() or "timeout" in said.lower():
            raise Failed(f"no answer within {seconds(limit_s)}: {said}") from None
        raise Failed(said) from None
    values = [value(f"{name}_time", "us", took_s * 1e6, "less")]
    if order.kind == "all":
        values.append(value(f"{name}_bandwidth", "MB/s", mb_per_s(count, took_s), "more"))
    return f"{count >> 20} MiB of {order.group_size} nodes in {took_s * 1000:.1f} ms", values


def _round(order, torch, group, count, device):
    """Seconds of one sum. Small integers, which floats hold exactly, another at each place."""
    base = torch.arange(count // 4, dtype=torch.float32, device=device).remainder_(_PATTERN)
    tensor = base + order.group_rank
    size = order.group_size
    expected = base.mul_(size).add_(size * (size - 1) // 2)
    _finish(torch, device)
    began = time.monotonic()
    group.allreduce([tensor]).wait()
    _finish(torch, device)
    took_s = time.monotonic() - began
    wrong = int((tensor != expected).sum())
    if wrong:
        raise Failed(f"{wrong} of {count // 4} numbers of the sum are wrong")
    return took_s


def _together_s(torch, group, own_s, device):
    """The median of what the sums took, the same on all ranks. Who comes first waits for who comes last, and would be
    called slow for it: of each sum counts what it took the last."""
    last_s = torch.tensor(own_s, dtype=torch.float64, device=device)
    least = torch.distributed.AllreduceOptions()
    least.reduceOp = torch.distributed.ReduceOp.MIN
    group.allreduce([last_s], least).wait()
    return statistics.median(last_s.tolist())


def _finish(torch, device):
    if device != "cpu":
        torch.cuda.synchronize(device)
