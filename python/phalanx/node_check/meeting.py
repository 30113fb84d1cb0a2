"""Meeting the other nodes of an order at a c10d store."""

from datetime import timedelta

from phalanx.node_check import sockets
from phalanx.node_check.results import Failed
from phalanx.node_check.texts import first_line, joined, of_errno, place, seconds

# Of the time that is left: checks that come behind a meeting need some, too.
_SHARE = 0.75
_NAMED = 8
_DIAL_PART = 2.5  # a client of torch's dials up to twice as long as it is told, and pauses in between


class Meeting:
    """One for all checks of an order: who does not come is waited for once."""

    def __init__(self, order, torch, deadline):
        self._order, self._torch, self._deadline = order, torch, deadline
        self._store, self._failure = None, None
        self.nodes_with_cuda = 0  # known when all have come

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
        return self._store

    def _join(self, distributed):
        limit_s = self._deadline.left_s(share=_SHARE)
        host, port = self._order.store
        limit = timedelta(seconds=limit_s)
        dial_limit = timedelta(seconds=limit_s / _DIAL_PART)
        try:
            client = distributed.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=dial_limit)
        except RuntimeError as error:
            raise Failed(f"the store at {place(host, port)} cannot be reached: {self._why(error)}") from None
        store = distributed.PrefixStore(f"node_check/{self._order.prefix}", client)
        store.set_timeout(limit)
        try:
            return self._meet(store, limit)
        except RuntimeError as error:
            missing = self._who_is_missing(store, limit_s)
            raise Failed(missing or f"the store at {place(host, port)} says: {first_line(error)}") from None

    def _meet(self, store, limit):
        store.set(f"node/{self._order.group_rank}", "1")
        store.add("cuda", 1 if self._torch.devices() else 0)
        if store.add("came", 1) == self._order.group_size:
            store.set("all", str(store.add("cuda", 0)))
        store.wait(["all"], limit)
        self.nodes_with_cuda = int(store.get("all"))
        return store

    def _who_is_missing(self, store, limit_s):
        """A sentence; None where the store does not say. Of thousands it asks for few."""
        size, missing = self._order.group_size, []
        try:
            count = size - store.add("came", 0)
            others = (rank for rank in range(size) if rank != self._order.group_rank)
            while len(missing) < min(count, _NAMED):
                rank = next(others)
                if not store.check([f"node/{rank}"]):
                    missing.append(self._order.name_of(rank))
        except (RuntimeError, StopIteration):
            return None
        if not missing:
            return None
        names = joined(missing) if count == len(missing) else f"{', '.join(missing)} and {count - len(missing)} more"
        return f"{names} did not come to the store at {place(*self._order.store)} within {seconds(limit_s)}"

    def _why(self, error):
        """What the system says of the store's address: torch says only that time is over."""
        host, port = self._order.store
        try:
            sockets.dial(host, port, self._order.address, 1).close()
        except OSError as refused:
            return of_errno(refused)
        return first_line(error)
