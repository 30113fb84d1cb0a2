"""How the ranks of a job without an agent tell each other what became of a save: by gloo, in a thread, so that no
training is held. The process group is none that the script knows: it works on where the script destroys its own."""

import datetime
import json
import secrets

import torch
import torch.distributed as dist

MEET_S = 60  # that ranks wait for each other at their first save
_EXCHANGE = datetime.timedelta(minutes=30)  # a disk may be slow; a rank that has died is noticed at once
_BYTES = 4096  # of what a rank tells
_GO = b"go"
_REASON_CHARS = 512  # each is six bytes at most


class Apart(Exception):
    """Not all ranks are there, or they do not save the same; the text says which."""


def meet(here, name):
    """A group of all ranks, which call it together with the same name; None for a rank alone. Raises Apart where one
    does not come within MEET_S, on all that come, and RuntimeError where there is no process group to begin with."""
    if here.world_size == 1:
        return None
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            f"phalanx.checkpoint: without phalanx-run the {here.world_size} ranks agree by a process group: call "
            "torch.distributed.init_process_group() before save()"
        )
    store = dist.PrefixStore(f"phalanx.checkpoint/{name}", dist.distributed_c10d._get_default_store())
    decision = _decide(store, here)
    if decision != _GO:
        raise Apart(decision.decode("utf-8", "replace"))
    try:
        own = dist.PrefixStore(_new_name(here), store)
        return dist.ProcessGroupGloo(own, here.rank, here.world_size, _EXCHANGE)
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
    return str(name.item())


def _decide(store, here):
    """What the first of all says who knows: so no rank goes on to a group to which another does not come."""
    store.set(f"here/{here.rank}", b"1")
    names = {rank: f"here/{rank}" for rank in range(here.world_size)}
    try:
        if here.rank == 0:
            store.wait(list(names.values()), datetime.timedelta(seconds=MEET_S))
            return store.compare_set("decision", "", _GO.decode())
        store.wait(["decision"], datetime.timedelta(seconds=MEET_S + 5))
        return store.get("decision")
    except RuntimeError:
        late = [str(rank) for rank, name in names.items() if not store.check([name])] or ["0"]
        who = f"rank {late[0]} has" if len(late) == 1 else f"ranks {', '.join(late[:20])} have"
        text = f"{who} not called save() within {MEET_S} s: every rank saves the same steps"
        return store.compare_set("decision", "", text)


class Group:
    """Of one thread at a time."""

    def __init__(self, here, group):
        self._here, self._group = here, group
        self.broken = None  # why nothing can be exchanged any more

    def exchange(self, value):
        """What each rank tells, by rank. Raises Apart, from then on always, where one is gone."""
        if self._group is None:
            return [value]
        if self.broken is None:
            try:
                return self._gathered(value)
            except (RuntimeError, ValueError) as error:
                self.broken = f"the ranks have lost each other: {_line(error)}"
        raise Apart(self.broken)

    def _gathered(self, value):
        data = json.dumps(value).encode("ascii")
        mine = torch.frombuffer(bytearray(data.ljust(_BYTES)), dtype=torch.uint8)
        all_of_them = [torch.empty_like(mine) for _ in range(self._here.world_size)]
        self._group.allgather([all_of_them], [mine]).wait()
        return [json.loads(bytes(tensor.tolist())) for tensor in all_of_them]


def reason(text):
    """Cut to what a rank can tell."""
    return text if len(text) <= _REASON_CHARS else text[:_REASON_CHARS] + ".."


def _line(error):
    return reason(str(error).partition("\n")[0])
