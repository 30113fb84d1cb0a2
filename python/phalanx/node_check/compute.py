"""This node's processors, devices and memory. A device that is slow is a node that holds up all others."""

import time

from phalanx.node_check.results import Failed, Skipped, mb_per_s, value

_CPU_SIZE, _CUDA_SIZE = 512, 4096
_ROUNDS = 8  # behind one that warms up
_COPY_BYTES = 128 << 20  # more than caches hold
_PINNED_BYTES = 64 << 20
_COPIES = 3
_SMALLEST = 5  # entries are integers below it: sums of them are exact, also in TF32
FREE_PERCENT = 70


def matmul(torch):
    module = torch.needed()
    count = torch.devices()
    if count == 0:
        took_us = _product_us(module, "cpu", _CPU_SIZE)
        sentence = f"{_CPU_SIZE} x {_CPU_SIZE} on the CPU in {took_us} us"
        return sentence, [value("matmul_time", "us", took_us, "less")]
    times_us = [_product_us(module, f"cuda:{index}", _CUDA_SIZE) for index in range(count)]
    slowest = max(range(count), key=times_us.__getitem__)
    sentence = (
        f"{_CUDA_SIZE} x {_CUDA_SIZE} on {count} CUDA devices, the slowest is {slowest} with {times_us[slowest]} us"
    )
    if count == 1:
        sentence = f"{_CUDA_SIZE} x {_CUDA_SIZE} on CUDA device 0 in {times_us[0]} us"
    return sentence, [value("matmul_time", "us", times_us[slowest], "less")]


def _product_us(torch, device, size):
    """The least time of a product, which must be right: a row of sums proves it. A median would be that of whatever
    else runs on this node just now."""
    numbers = torch.arange(size * size, device=device, dtype=torch.int64)
    left = (numbers * 7 // 3 % _SMALLEST).reshape(size, size).to(torch.float32)
    right = (numbers * 5 // 2 % _SMALLEST).reshape(size, size).to(torch.float32)
    del numbers
    times_us = []
    for _ in range(1 + _ROUNDS):
        _finish(torch, device)
        began_ns = time.monotonic_ns()
        product = left @ right
        _finish(torch, device)
        times_us.append((time.monotonic_ns() - began_ns) // 1000)
    ones = torch.ones(size, device=device, dtype=torch.float64)
    expected = left.double() @ (right.double() @ ones)
    if not torch.equal(product.double() @ ones, expected):
        raise Failed(f"a wrong result on {device}")
    del left, right, product, ones, expected
    if device != "cpu":
        torch.cuda.empty_cache()
    return min(times_us[1:])


def _finish(torch, device):
    if device != "cpu":
        torch.cuda.synchronize(device)


def memory_bandwidth():
    # Not a map of the kernel's page of zeros: bytes of this process's own.
    source, target = bytearray(b"\1" * _COPY_BYTES), bytearray(_COPY_BYTES)
    best_s = min(_copy_s(source, memoryview(target)) for _ in range(1 + _COPIES))
    rate = mb_per_s(_COPY_BYTES, best_s)
    return f"a copy of {_COPY_BYTES >> 20} MiB at {rate} MB/s", [value("memory_bandwidth", "MB/s", rate, "more")]


def _copy_s(read, written):
    began = time.monotonic()
    written[:] = read
    return time.monotonic() - began


def host_to_device(torch):
    module, count = _devices(torch)
    pinned = module.ones(_PINNED_BYTES, dtype=module.uint8).pin_memory()
    rates = []
    for index in range(count):
        device = f"cuda:{index}"
        target = module.empty(_PINNED_BYTES, dtype=module.uint8, device=device)
        times_s = []
        for _ in range(1 + _COPIES):
            module.cuda.synchronize(device)
            began = time.monotonic()
            target.copy_(pinned, non_blocking=True)
            module.cuda.synchronize(device)
            times_s.append(time.monotonic() - began)
        rates.append(mb_per_s(_PINNED_BYTES, min(times_s[1:])))
        del target
    module.cuda.empty_cache()
    slowest = min(range(count), key=rates.__getitem__)
    values = [value(f"host_to_device_{index}", "MB/s", rate, "more") for index, rate in enumerate(rates)]
    return f"{rates[slowest]} MB/s to CUDA device {slowest}, the slowest of {count}", values


def device_memory(torch):
    module, count = _devices(torch)
    values, short = [], []
    for index in range(count):
        free, total = module.cuda.mem_get_info(index)
        values.append(value(f"device_memory_free_{index}", "MiB", free >> 20, "more"))
        if free * 100 < total * FREE_PERCENT:
            short.append(f"CUDA device {index} has {(total - free) >> 20} of {total >> 20} MiB in use")
    if short:
        raise Failed(f"{'; '.join(short)}; at most {100 - FREE_PERCENT} % may be", values)
    return f"{count} CUDA devices have {FREE_PERCENT} % of their memory free, or more", values


def _devices(torch):
    module, count = torch.needed(), torch.devices()
    if count == 0:
        raise Skipped("there is no CUDA device")
    return module, count
