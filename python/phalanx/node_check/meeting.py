"""Meeting the other nodes of an order at a c10d store."""

import itertools
import json
from datetime import timedelta

from phalanx.node_check import interfaces, sockets
from phalanx.node_check.results import Failed
from phalanx.node_check.texts import clean, first_line, joined, of_errno, place, seconds

# Of the time that is left: checks that come behind a meeting need some, too.
_SHARE = 0.75
_NAMED = 8
_ASK_S = 1
_DIAL_PART = 2.5  # a client of torch's dials up to twice as long as it is told, and pauses in between


class Meeting:
    """One for all checks of an order: who does not come is waited for once."""

    def __init__(self, order, torch, deadline):
        self._order, self._torch, self._deadline = order, torch, deadline
        self._store, self._failure, self._stage = None, None, None
        self._prefix = f"node_check/{order.prefix}"
        self.nodes_with_cuda = 0  # known when all have come

    def expect_behind(self, name):
        """The next `join` also waits for all nodes to have come so far."""
        self._stage = name

    def join(self):
        """The store, below this order's prefix, once all nodes have come to it. Raises Failed who has not."""
        torch = self._torch.needed()
        if self._failure is not None:
            raise Failed(self._failure)
        if self._store is None:
            try:
                self._store = self._join(torch.distributed)
            except Failed as failed:
                self._failure = str(failed)
                raise
        stage, self._stage = self._stage, None
        if stage is not None:
            try:
                self._await_stage(stage)
            except Failed as failed:
                self._failure = str(failed)
                raise
        return self._store

    def nic_of_partner(self, nic):
        """Of a pair that has met: the other node's address on that interface; None: it does not check one of that
        name. Raises Failed, also where that interface has none."""
        key = f"nics/{1 - self._order.group_rank}"
        try:
            found = json.loads(self._store.get(key))
        except RuntimeError as error:
            raise Failed(f"the store says: {first_line(error)}") from None
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise Failed(f"the store has no addresses of network interfaces under {key}")
        if nic not in found:
            return None
        address, why = found[nic] if _is_address(found[nic]) else ("", "it says nothing of its address")
        if not address:
            raise Failed(f"there: {clean(why)}")
        return address

    def _await_stage(self, name):
        limit_s = self._deadline.left_s(share=_SHARE)
        try:
            if self._store.add(f"behind/{name}", 1) == self._order.group_size:
                self._store.set(f"all_behind/{name}", "1")
            self._store.wait([f"all_behind/{name}"], timedelta(seconds=limit_s))
        except RuntimeError:
            others = (rank for rank in range(self._order.group_size) if rank != self._order.group_rank)
            who = joined([self._order.name_of(rank) for rank in itertools.islice(others, _NAMED)])
            raise Failed(f"no answer within {seconds(limit_s)}: {who} did not come behind {name}") from None

    def _join(self, distributed):
        limit_s = self._deadline.left_s(share=_SHARE)
        where = place(*self._order.store)
        try:
            client = self._client(distributed, limit_s)
        except RuntimeError as error:
            raise Failed(f"the store at {where} cannot be reached: {self._why(error)}") from None
        try:
            return self._meet(distributed.PrefixStore(self._prefix, client), timedelta(seconds=limit_s))
        except RuntimeError as error:
            missing = self._who_is_missing(distributed)
            if missing:
                raise Failed(f"{missing} did not come to the store at {where} within {seconds(limit_s)}") from None
            raise Failed(f"the store at {where} says: {first_line(error)}") from None

    def _client(self, distributed, limit_s):
        host, port = self._order.store
        dial_limit = timedelta(seconds=max(1, limit_s / _DIAL_PART))  # an older torch counts seconds
        client = distributed.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=dial_limit)
        client.set_timeout(timedelta(seconds=limit_s))
        return client

    def _meet(self, store, limit):
        store.add(f"node/{self._order.group_rank}", 1)
        store.add("cuda", 1 if self._torch.devices() else 0)
        if self._order.kind == "pair":
            own = {nic: _address_or_why(nic) for nic in self._order.nics}
            store.set(f"nics/{self._order.group_rank}", json.dumps(own))
        if store.add("came", 1) == self._order.group_size:
            store.set("all", str(store.add("cuda", 0)))
        store.wait(["all"], limit)
        self.nodes_with_cuda = int(store.get("all"))
        return store

    def _who_is_missing(self, distributed):
        """Names; None where the store does not say. Of thousands it asks for few. By a connection of its own: in one of
        an older torch whose time was over, the late answer stands before all others."""
        size, missing = self._order.group_size, []
        try:
            client = self._client(distributed, _ASK_S)
            count = size - client.add(f"{self._prefix}/came", 0)
            others = (rank for rank in range(size) if rank != self._order.group_rank)
            while len(missing) < min(count, _NAMED):
                rank = next(others)
                if client.add(f"{self._prefix}/node/{rank}", 0) == 0:  # an older torch has no check
                    missing.append(self._order.name_of(rank))
        except (RuntimeError, StopIteration):
            return None
        if count <= len(missing):
            return joined(missing) if missing else None
        return f"{', '.join(missing)} and {count - len(missing)} more"

    def _why(self, error):
        """What the system says of the store's address: torch says only that time is over."""
        host, port = self._order.store
        try:
            sockets.dial(host, port, self._order.address, 1).close()
        except OSError as refused:
            return of_errno(refused)
        return first_line(error)


def _address_or_why(nic):
    """(address, ""), or ("", why it has none)."""
    try:
        return interfaces.address_on(nic), ""
    except Failed as failed:
        return "", str(failed)


def _is_address(found):
    return isinstance(found, list) and len(found) == 2 and all(isinstance(each, str) for each in found)
