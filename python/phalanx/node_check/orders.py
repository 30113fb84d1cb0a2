"""Lines of an agent: what is asked, checked at the door."""

import json
import os
import re
from typing import NamedTuple, Optional

MOST_LINE_BYTES = 1 << 20
MOST_PROGRAMS = 32
MOST_PAIRS = 255  # and their count is a value, too
MOST_NICS = 16
_MOST_CHARACTERS = 4096
_MOST = 1 << 31
_KINDS = ("alone", "pair", "all")
_SOURCES = ("tool:", "file:")
_WITH_OTHERS = ("tcp", "all_reduce", "all_reduce_nccl")
_NIC = re.compile(r"[A-Za-z0-9_.-]{1,15}\Z")  # as the names of values, and no longer than the kernel's


class Refused(Exception):
    """An order that cannot be carried out."""


class Garbage(Exception):
    """A line that is none of this protocol."""


class Switchbox(NamedTuple):
    source: str
    pairs: list
    min_bandwidth_mb_s: int
    min_channels: int


class Order(NamedTuple):
    id: int
    kind: str
    group_rank: int
    group_size: int
    store: Optional[tuple]  # (host, port)
    prefix: str
    address: str
    peers: list
    limit_ms: int
    directory: str
    programs: list
    nics: list
    switchbox: Optional[Switchbox]
    text: str  # the line it came as

    def named(self, check):
        """A check, and with whom it is."""
        if check.partition(":")[0] not in _WITH_OTHERS or self.kind == "alone":
            return check
        if self.kind == "pair":
            return f"{check} with {self.partner()}"
        return f"{check} of {self.group_size} nodes" if self.group_size > 1 else check

    def partner(self):
        return self.name_of(1 - self.group_rank)

    def name_of(self, rank):
        return self.peers[rank] if self.peers else f"group rank {rank}"


def read_line(line):
    """A message, whose type and id are there."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Garbage(f"a line is no JSON: {error}") from None
    if not isinstance(message, dict) or message.get("type") not in ("order", "cancel"):
        raise Garbage("a line is neither an order nor a cancel")
    if not _is_number(message.get("id")):
        raise Garbage(f"an {message['type']} has no id")
    return message


def read_order(message):
    """The order of a message. Raises Refused with a sentence."""
    kind = message.get("kind")
    if kind not in _KINDS:
        raise Refused(f"kind is {kind!r}; it is one of {', '.join(_KINDS)}")
    size, rank = _number(message, "group_size"), _number(message, "group_rank")
    if rank >= size or (kind == "pair" and size != 2):
        raise Refused(f"group_rank {rank} of group_size {size} is none of kind {kind}")
    peers = _texts(message, "peers")
    if peers and len(peers) != size:
        raise Refused(f"peers has {len(peers)} names for group_size {size}")
    programs = _texts(message, "programs")
    if len(programs) > MOST_PROGRAMS or not all(map(os.path.isabs, programs)):
        raise Refused(f"programs has more than {MOST_PROGRAMS} paths, or one that is not absolute")
    nics = _texts({"nics": [], **message}, "nics")
    if len(nics) > MOST_NICS or len(set(nics)) < len(nics) or not all(map(_NIC.match, nics)):
        raise Refused(f"nics is {nics}; it is up to {MOST_NICS} names of network interfaces, each once")
    store = _store(message.get("store"))
    if store is None and kind != "alone":
        raise Refused(f"kind {kind} has no store to meet at")
    address = _text(message, "address")
    if not address:
        raise Refused("address is empty; it is this node's own")
    limit_ms = _number(message, "limit_ms")
    if limit_ms == 0:
        raise Refused("limit_ms is 0; it is the time that the order may take")
    return Order(
        id=message["id"],
        kind=kind,
        group_rank=rank,
        group_size=size,
        store=store,
        prefix=_text({"prefix": "", **message}, "prefix"),
        address=address,
        peers=peers,
        limit_ms=limit_ms,
        directory=_text(message, "directory"),
        programs=programs,
        nics=nics,
        switchbox=_switchbox(message.get("switchbox")),
        text=json.dumps(message, separators=(",", ":")),
    )


def _is_number(value):
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _number(message, name):
    value = message.get(name)
    if not _is_number(value) or value > _MOST:
        raise Refused(f"{name} is no integer from 0 to {_MOST}")
    return value


def _is_text(value):
    return isinstance(value, str) and len(value) <= _MOST_CHARACTERS and "\0" not in value


def _text(message, name):
    if not _is_text(message.get(name)):
        raise Refused(f"{name} is no text of at most {_MOST_CHARACTERS} characters")
    return message[name]


def _texts(message, name):
    value = message.get(name)
    if not isinstance(value, list) or not all(map(_is_text, value)):
        raise Refused(f"{name} is no array of texts of at most {_MOST_CHARACTERS} characters")
    return value


def _store(value):
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or not _is_text(value[0]) or not _is_number(value[1]):
        raise Refused("store is neither [host, port] nor null")
    if not 0 < value[1] < 1 << 16:
        raise Refused(f"store has port {value[1]}")
    return tuple(value)


def _switchbox(value):
    if value is None:
        return None
    if not isinstance(value, dict):
        raise Refused("switchbox is neither an object nor null")
    source, pairs = _text(value, "source"), value.get("pairs")
    if source != "nvidia" and not (source.startswith(_SOURCES) and os.path.isabs(source[len(_SOURCES[0]) :])):
        raise Refused(f"switchbox has source {source!r}; it is nvidia, tool:PATH or file:PATH, with an absolute path")
    if not isinstance(pairs, list) or not 0 < len(pairs) <= MOST_PAIRS or not all(map(_is_pair, pairs)):
        raise Refused(f"switchbox has no pairs [[device, device], ..] of which there are 1 to {MOST_PAIRS}")
    return Switchbox(source, pairs, _number(value, "min_bandwidth_mb_s"), _number(value, "min_channels"))


def _is_pair(pair):
    return isinstance(pair, list) and len(pair) == 2 and all(map(_is_number, pair)) and pair[0] != pair[1]
