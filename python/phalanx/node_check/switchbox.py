"""The bandwidth of pairs of devices that a switchbox joins. Pairs that have enough are channels."""

import json
import time

from phalanx.node_check import programs
from phalanx.node_check.results import Failed, Skipped, is_integer, mb_per_s, value
from phalanx.node_check.texts import last_line, of_errno

_BYTES = 256 << 20
_COPIES = 3
_MOST_FILE_BYTES = 64 << 10
_UNIT = "MB/s"


def check(order, torch):
    asked = order.switchbox
    rates = _rates(order, torch, asked)
    below = [f"{a}-{b} has {rate} MB/s" for (a, b), rate in zip(asked.pairs, rates) if rate < asked.min_bandwidth_mb_s]
    channels = len(rates) - len(below)
    values = [value(name_of(a, b), _UNIT, rate, "more") for (a, b), rate in zip(asked.pairs, rates)]
    values.append(value("channels", "count", channels, "more"))
    sentence = f"{channels} of {len(rates)} pairs have {asked.min_bandwidth_mb_s} MB/s or more"
    if below:
        sentence += f"; below it: {', '.join(below)}"
    if channels < asked.min_channels:
        raise Failed(f"{sentence}; {asked.min_channels} channels are wanted", values)
    return sentence, values


def name_of(a, b):
    return f"switchbox_{a}_{b}"


def _rates(order, torch, asked):
    """MB/s of each pair, in their order."""
    source, _, path = asked.source.partition(":")
    if source == "nvidia":
        return _of_devices(torch, asked.pairs)
    found = _of_file(path) if source == "file" else _of_tool(order, path)
    rates = [found.get(name_of(a, b)) for a, b in asked.pairs]
    missing = [f"{a}-{b}" for (a, b), rate in zip(asked.pairs, rates) if rate is None]
    if missing:
        raise Failed(f"{path} has no MB/s of {', '.join(missing)}")
    return rates


def _of_tool(order, path):
    _, values = programs.run(order, path)
    return {each["name"]: each["value"] for each in values if each["unit"] == _UNIT}


def _of_file(path):
    try:
        with open(path, "rb") as file:
            text = file.read(_MOST_FILE_BYTES + 1)
    except OSError as error:
        raise Failed(f"{of_errno(error)} ({path})") from None
    if len(text) > _MOST_FILE_BYTES:
        raise Failed(f"{path} has more than {_MOST_FILE_BYTES >> 10} KiB")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Failed(f"{path} is no JSON: {last_line(error)}") from None
    if not isinstance(found, dict) or not all(is_integer(rate) and rate >= 0 for rate in found.values()):
        raise Failed(f'{path} is no object of integers such as {{"0:1": 12000}}')
    return {f"switchbox_{pair.replace(':', '_')}": rate for pair, rate in found.items()}


def _of_devices(torch, pairs):
    try:
        module = torch.needed()
    except Skipped as skipped:
        raise Failed(f"CUDA devices cannot be asked: {skipped}") from None
    count = torch.devices()
    highest = max(max(pair) for pair in pairs)
    if highest >= count:
        raise Failed(f"a pair names CUDA device {highest}, and there are {count} devices to see")
    return [min(_copy_rate(module, a, b), _copy_rate(module, b, a)) for a, b in pairs]


def _copy_rate(torch, a, b):
    source = torch.ones(_BYTES, dtype=torch.uint8, device=f"cuda:{a}")
    target = torch.zeros(_BYTES, dtype=torch.uint8, device=f"cuda:{b}")
    times_s = []
    for _ in range(1 + _COPIES):
        torch.cuda.synchronize(a)
        torch.cuda.synchronize(b)
        began = time.monotonic()
        target.copy_(source)
        torch.cuda.synchronize(a)
        torch.cuda.synchronize(b)
        times_s.append(time.monotonic() - began)
    if int(target.min()) != 1:
        raise Failed(f"a copy from CUDA device {a} to {b} has other bytes")
    return mb_per_s(_BYTES, min(times_s[1:]))
