"""How the ranks of a job without an agent tell each other what became of a save: by gloo, in a thread, so that no
training is held. The process group is none that the script knows: it works on where the script destroys its own."""

import contextlib
import ctypes
import datetime
import functools
import json
import secrets

import torch
import torch.distributed as dist

from phalanx.checkpoint import people
from phalanx.checkpoint.ranks import place

MEET_S = 60  # that ranks wait for each other at their first save
NOTICE_S = 15  # who waits for longer says for whom
_EXCHANGE = datetime.timedelta(hours=6)  # a disk may be slow; a rank that has died is noticed before
_BYTES = 4096  # of what ranks tell at once; more takes a round more
_LENGTH_BYTES = 8
_REASON_BYTES = 1024  # of that, as JSON
_GO = b"go"


class Apart(Exception):
    """Not all ranks are there, or they do not save the same; the text says which."""


def meet(here, name, why=None):
    """A Group of all ranks, which call it together with the same name. Raises Apart, on all that come, where one does
    not within MEET_S, or says why it cannot save; and RuntimeError where there is no process group to begin with."""
    if here.world_size == 1:
        if why is not None:
            raise Apart(why)
        return Group(here, None, None)
    if not place.is_together():
        raise RuntimeError(
            f"phalanx.checkpoint: without phalanx-run the {here.world_size} ranks agree by a process group: call "
            "torch.distributed.init_process_group() before save()"
        )
    store = dist.PrefixStore(f"phalanx.checkpoint/{name}", dist.distributed_c10d._get_default_store())
    if why is not None:  # before it is here, and rank 0 decides that all are
        store.compare_set("decision", "", f"rank {here.rank}: {why}")
    decide(store, here, MEET_S, f"save {name}", "called save()", "saves the same steps")
    try:
        own = dist.PrefixStore(_new_name(here), store)
        return Group(here, dist.ProcessGroupGloo(own, here.rank, here.world_size, _EXCHANGE), own)
    except RuntimeError as error:
        raise Apart(f"the ranks cannot reach each other: {_line(error)}") from None


def _new_name(here):
    """Of keys that no earlier life has left in the store. torch's own group, which says it, comes up within MEET_S or
    not at all."""
    name = torch.tensor([secrets.randbits(62) if here.rank == 0 else 0])
    group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=MEET_S))
    try:
        dist.broadcast(name, 0, group=group)
    finally:
        dist.destroy_process_group(group)
        # Before the tensor: torch 2.6 joins gloo's threads here with Python's lock, and a thread takes that lock where
        # the last that it has of an exchange is a tensor that Python has let go.
        del group
    return str(name.item())


def decide(store, here, within_s, name, what, rule):
    """Returns on all ranks, or raises Apart on all that come: what the first of all says who knows, so that no rank
    goes on to a group to which another does not come. `what` has each rank done that comes, and every rank `rule`;
    `name`: of what they meet for, as people know it."""
    names = {rank: f"here/{rank}" for rank in range(here.world_size)}
    store.set(names[here.rank], b"1")

    def absent():
        # Rank 0 would have decided: the others need not look for more, all of them at the same moment.
        looked_for = names if here.rank == 0 else {0: names[0]}
        return [rank for rank, name in looked_for.items() if not store.check([name])]

    try:
        if here.rank == 0:
            wait(functools.partial(store.wait, list(names.values())), within_s, absent, name, what, rule)
            decision = store.compare_set("decision", "", _GO.decode())
        else:
            wait(functools.partial(store.wait, ["decision"]), within_s + 5, absent, name, what, rule)
            decision = store.get("decision")
    except RuntimeError:
        text = late(absent() or [0], f"{what} within {within_s} s", rule)
        decision = store.compare_set("decision", "", text)
    if decision != _GO:
        raise Apart(decision.decode("utf-8", "replace"))


def wait(begin, within_s, absent, name, what, rule):
    """`begin(timedelta)`, which raises RuntimeError where that is over, and may be called again. Where it takes long,
    this rank tells people that those of `absent()` have not done `what`, for `name`, as `rule` says of all."""
    if within_s <= NOTICE_S:
        return begin(datetime.timedelta(seconds=within_s))
    try:
        return begin(datetime.timedelta(seconds=NOTICE_S))
    except RuntimeError:
        ranks = absent()
    if ranks:
        people.say(f"{name}: {late(ranks, f'{what} within {NOTICE_S} s', rule)}. Waiting on")
    return begin(datetime.timedelta(seconds=within_s - NOTICE_S))


def late(ranks, what, rule):
    """That these have not done `what`, which `rule` says of all."""
    names = ", ".join(map(str, ranks[:20]))
    who = f"rank {names} has" if len(ranks) == 1 else f"ranks {names} have"
    return f"{who} not {what}: every rank {rule}"


class Group:
    """Of one thread at a time, but for is_lost."""

    def __init__(self, here, group, store):
        self._here, self._group, self._store = here, group, store
        self._broken = None

    def exchange(self, value):
        """What each rank tells, by rank. Raises Apart, from then on always, where one is gone."""
        if self._group is None:
            return [value]
        if self._broken is None:
            try:
                return self._gathered(value)
            except (RuntimeError, ValueError) as error:
                self.breaks(f"the ranks have lost each other: {_line(error)}")
        raise Apart(self._broken)

    def breaks(self, why):
        """Nothing can be exchanged any more. The others hear of it: they are to meet anew as well."""
        self._broken = why
        if self._store is not None:
            with contextlib.suppress(RuntimeError):  # whose store is gone has no ranks to meet
                self._store.set("lost", b"1")

    def is_lost(self):
        """Whether a rank has found it broken."""
        if self._broken is not None or self._store is None:
            return self._broken is not None
        try:
            return self._store.check(["lost"])
        except RuntimeError:
            return False  # the script has destroyed its group, and the store with it: ours works on

    def _gathered(self, value):
        """In one round where no rank has much to tell, else in two: all know from the first how long the longest is."""
        data = json.dumps(value).encode("ascii")
        first = self._gather(len(data).to_bytes(_LENGTH_BYTES, "little") + data[:_BYTES], _LENGTH_BYTES + _BYTES)
        lengths = [int.from_bytes(each[:_LENGTH_BYTES], "little") for each in first]
        longest = max(lengths)
        whole = [each[_LENGTH_BYTES:] for each in first] if longest <= _BYTES else self._gather(data, longest)
        return [json.loads(each[:length]) for each, length in zip(whole, lengths)]

    def _gather(self, data, length):
        mine = torch.frombuffer(bytearray(data.ljust(length)), dtype=torch.uint8)
        all_of_them = [torch.empty_like(mine) for _ in range(self._here.world_size)]
        self._group.allgather([all_of_them], [mine]).wait()
        return [ctypes.string_at(tensor.data_ptr(), length) for tensor in all_of_them]


def reason(text):
    """Cut to what a rank can tell; None stays None."""
    if text is None or len(json.dumps(text)) <= _REASON_BYTES:
        return text
    while len(json.dumps(text)) > _REASON_BYTES:
        text = text[: len(text) * 3 // 4]
    return text + ".."


def _line(error):
    return reason(str(error).partition("\n")[0])
