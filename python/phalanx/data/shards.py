"""Shards of a dataset, which the job's master hands out to whichever rank asks: docs/shards.md."""

import collections
import dataclasses
import itertools
import threading

from phalanx import _door as door
from phalanx._bootstrap import memory
from phalanx.data.permutation import Permutation

_ORDERS = {False: "none", True: "shards", "records": "records"}
_RECORDS_MAX = 1 << 48
_SHARDS_MAX = 1 << 52
_NAME_BYTES_MAX = 256
_SEED_MAX = 1 << 53
_PACKET_BYTES_MAX = 60_000  # of the numbers in it
_AT_ONCE_MAX = 64
_UNDONE_MAX = 8_192  # as the master has it
_FORMAT = 1

# Of this process: a request that is said again must not be taken for another one.
_requests = itertools.count(1)
_requests_lock = threading.Lock()


class ShardsError(RuntimeError):
    """The master hands out nothing, or the agent is gone. The text says why."""


@dataclasses.dataclass(frozen=True)
class Shard:
    """Records `start` to `end` - 1, or, where records are shuffled, those of `indices`."""

    number: int
    epoch: int
    start: int
    end: int
    indices: tuple = None

    def __len__(self):
        return self.end - self.start

    def records(self):
        """The records' numbers."""
        return range(self.start, self.end) if self.indices is None else self.indices


class Shards:
    """All ranks make one with the same arguments. May be used by any thread of the rank's own process.

    `epochs`: passes over all `size` records; 0: without end. `shuffle`: True for the order of shards, "records" for
    that of all records. Nothing is asked of the master before the first fetch().
    """

    def __init__(self, name, size, shard_size, epochs=1, shuffle=False, seed=0):
        if not isinstance(name, str) or not 1 <= _utf8_bytes(name) <= _NAME_BYTES_MAX:
            raise ValueError(f"name={name!r}: expected a text of 1 to {_NAME_BYTES_MAX} bytes of UTF-8")
        for argument, value, least, most in (
            ("size", size, 1, _RECORDS_MAX),
            ("shard_size", shard_size, 1, _RECORDS_MAX),
            ("epochs", epochs, 0, _SHARDS_MAX),
            ("seed", seed, 0, _SEED_MAX),
        ):
            if not _is_number(value, most) or value < least:
                raise ValueError(f"{argument}={value!r}: expected a number from {least} to {most}")
        if not isinstance(shuffle, (bool, str)) or shuffle not in _ORDERS:
            raise ValueError(f'shuffle={shuffle!r}: expected False, True or "records"')
        self.name, self.size, self.shard_size, self.epochs = name, size, shard_size, epochs
        self.shuffle, self.seed = shuffle, seed
        self.shards_per_epoch = -(-size // shard_size)
        if epochs * self.shards_per_epoch > _SHARDS_MAX:
            raise ValueError(
                f"epochs={epochs}: that is {epochs * self.shards_per_epoch} shards; expected at most {_SHARDS_MAX}"
            )
        self.epoch = 0  # of the shard that this rank was given last
        self._permutation = None
        self._lock = threading.Lock()  # of what follows
        self._begun = False
        self._unanswered = collections.deque()  # fetches that were given up: the next ones take their place

    # --- handing out

    def fetch(self, timeout=None):
        """The next Shard for this rank, or None: all were given out. It never waits for other ranks, only for the
        master, where that is away; raises TimeoutError where it is so for longer than `timeout` seconds,
        ShardsError behind the join timeout."""
        self._begin(timeout)
        with self._lock:
            request = self._unanswered.popleft() if self._unanswered else _next_request()
        try:
            answer = self._ask("take", timeout, request)
        except BaseException:  # also where it is interrupted: the master may have given a shard by it
            with self._lock:
                self._unanswered.append(request)
            raise
        return None if answer["shard"] is None else self._shard(answer["shard"])

    def done(self, shard, timeout=None):
        """This rank has trained on it, or on all of a list. When it returns, no rank will be given it again."""
        self._report("done", shard, timeout)

    def give_back(self, shard, timeout=None):
        """It is not done: the next rank that asks is given it."""
        self._report("back", shard, timeout)

    def __iter__(self):
        """Each shard for this rank; it is done when the next one is asked for."""
        while True:
            shard = self.fetch()
            if shard is None:
                return
            yield shard
            self.done(shard)

    # --- states

    def state_dict(self, timeout=None):
        """Which shards are done, of all ranks: numbers and texts alone, for a checkpoint or JSON."""
        self._begin(timeout)
        answer = self._ask("read", timeout)
        return {
            "phalanx_shards": _FORMAT,
            "name": self.name,
            "size": self.size,
            "shard_size": self.shard_size,
            "shuffle": _ORDERS[self.shuffle],
            "seed": self.seed,
            "next": answer["next"],
            "undone_gaps": answer["undone_gaps"],
        }

    def load_state_dict(self, state, timeout=None):
        """All ranks go back to that state, before any of them fetches. `epochs` may be another one."""
        if not isinstance(state, dict) or state.get("phalanx_shards") != _FORMAT:
            raise ValueError(f"no state of shards: {str(state)[:200]}; expected what state_dict() has returned")
        own = {"name": self.name, **self._spec()}
        for field in ("name", "size", "shard_size", "seed"):
            if state.get(field) != own[field]:
                raise ValueError(f"the state is of {field}={state.get(field)!r}; expected {own[field]!r}")
        if state.get("shuffle") != own["order"]:
            raise ValueError(f"the state is of shuffle={state.get('shuffle')!r}; expected {own['order']!r}")
        gaps = state.get("undone_gaps")
        numbers = [state.get("next"), *(gaps if isinstance(gaps, list) else [None])]
        if not all(_is_number(number, _SHARDS_MAX) for number in numbers):
            raise ValueError("the state's next and undone_gaps are no numbers")
        if len(gaps) > _UNDONE_MAX or sum(len(str(gap)) + 1 for gap in gaps) > _PACKET_BYTES_MAX:
            raise ValueError(f"the state has {len(gaps)} shards that are not done; expected fewer")
        self._ask("restore", timeout, next=state["next"], undone_gaps=gaps, **self._spec())
        with self._lock:
            self._begun = True

    # --- within

    def _spec(self):
        return {
            "size": self.size,
            "shard_size": self.shard_size,
            "passes": self.epochs,
            "order": _ORDERS[self.shuffle],
            "seed": self.seed,
        }

    def _begin(self, timeout):
        with self._lock:
            begun = self._begun
        if begun:
            return
        self._ask("open", timeout, **self._spec())
        with self._lock:
            self._begun = True

    def _report(self, ask, shards, timeout):
        numbers = [shard.number for shard in ([shards] if isinstance(shards, Shard) else shards)]
        for first in range(0, len(numbers), _AT_ONCE_MAX):
            self._ask(ask, timeout, shards=numbers[first : first + _AT_ONCE_MAX])

    def _ask(self, ask, timeout, request=None, **fields):
        number = _next_request() if request is None else request
        try:
            return _door().ask("shards", timeout, ask=ask, dataset=self.name, request=number, **fields)
        except door.Refusal as error:
            raise ShardsError(str(error)) from None
        except door.Gone as error:
            raise ShardsError(f"dataset '{self.name}': {error}") from None

    def _shard(self, number):
        self.epoch, place = divmod(number, self.shards_per_epoch)
        if self.shuffle is True:
            place = self._permutation_of(self.epoch, self.shards_per_epoch)(place)
        start = place * self.shard_size
        end = min(start + self.shard_size, self.size)
        indices = None
        if self.shuffle == "records":
            permutation = self._permutation_of(self.epoch, self.size)
            indices = tuple(permutation(i) for i in range(start, end))
        return Shard(number, self.epoch, start, end, indices)

    def _permutation_of(self, epoch, n):
        made = self._permutation
        if made is None or made[0] != epoch:
            made = self._permutation = (epoch, Permutation(n, self.seed, epoch))
        return made[1]


def _is_number(value, most):
    """True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _utf8_bytes(text):
    """How many; 0 where it has a character that is none."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return 0


def _next_request():
    with _requests_lock:
        return next(_requests)


_doors = {}  # {the socket's descriptor: Door}, of this process


def _door():
    fd = memory.socket_fd()
    if fd < 0:
        raise ShardsError(
            "the job's master hands out shards, and this process has no way to it: start the script by phalanx-run, "
            "and fetch in the rank's own process, not in one that it has forked"
        )
    with _requests_lock:
        if fd not in _doors:
            _doors[fd] = door.Door(fd)
        return _doors[fd]
