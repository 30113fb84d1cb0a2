"""Shards that the job's master hands out: DLRover's names on phalanx.data.Shards (docs/shards.md)."""

import collections
import json
import multiprocessing
import os
import threading
import weakref

from dlrover.offered import BETTER, getter

OFFERED = {
    "ShardingClient": (
        BETTER,
        "which shards are done outlives ranks, and the master where its disk stays; shuffles are the same each time; a "
        "shard of which an error is reported is given out again, however often. fetch_shard() gives None when all are "
        "given out, and waits for nobody; task_type has no effect, and storage_type is table or text",
    ),
    "IndexShardingClient": (
        BETTER,
        "the same; indices are fetched ahead from the first fetch_sample_index() on, or from the fork of the first "
        "DataLoader worker, so that a checkpoint can be restored before. Batches are counted: with several workers a "
        "record of a shard that is done by that may still be on its way, as with DLRover",
    ),
}
__getattr__ = getter(__name__, {})

_INSTEAD = {
    "reset_dataset": "make a client with another dataset_name, or restore_shard_from_checkpoint() of a first state",
    "clear_shard_queue": "make another client: shards that this one holds are given out again in the next round",
}

_Task = collections.namedtuple("_Task", "task_id task_type shard")
_TaskShard = collections.namedtuple("_TaskShard", "name start end record_indices")
_TaskShard.indices = property(lambda shard: shard.record_indices)


class ShardingClient:
    """`num_epochs` of 0 or less: without end."""

    def __init__(
        self,
        dataset_name,
        batch_size,
        num_epochs,
        dataset_size,
        shuffle=False,
        task_type=None,
        num_minibatches_per_shard=10,
        storage_type="",
    ):
        from phalanx.data import Shards

        if storage_type not in ("", "table", "text"):
            raise ValueError(
                f'storage_type={storage_type!r}: expected "table" or "text"; streams whose size nobody knows are not '
                "handed out by phalanx-dlrover"
            )
        for name, value in (("batch_size", batch_size), ("num_minibatches_per_shard", num_minibatches_per_shard)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r}: expected a number of at least 1")
        self._shards = Shards(
            dataset_name,
            dataset_size,
            batch_size * num_minibatches_per_shard,
            max(0, num_epochs),
            ("records" if storage_type == "text" else True) if shuffle else False,
        )
        self._with_indices = storage_type == "text"
        self._batch_size, self._task_type = batch_size, task_type
        self._lock = threading.Lock()  # of what follows
        self._pending = collections.OrderedDict()  # {task_id: the Shard}
        self._reported = collections.Counter()  # records of it
        self._failed = set()  # task_ids of which an error was reported
        self._tasks = {}  # {task_id: Task}

    @property
    def dataset_name(self):
        return self._shards.name

    def get_minibatch_count_per_epoch(self):
        return self._shards.size // self._batch_size

    def get_total_sample_num(self):
        return self._shards.size * self._shards.epochs

    def get_current_epoch(self):
        """Of the shard that this rank was given last, from 0."""
        return self._shards.epoch

    def get_current_task(self):
        """The first that is not done."""
        with self._lock:
            return self._tasks[next(iter(self._pending))] if self._pending else None

    def get_task(self):
        """None when all shards are given out."""
        shard = self._shards.fetch()
        if shard is None:
            return None
        indices = list(shard.records()) if self._with_indices else []
        task = _Task(shard.number, self._task_type, _TaskShard(self._shards.name, shard.start, shard.end, indices))
        with self._lock:
            self._pending[shard.number], self._tasks[shard.number] = shard, task
        return task

    def fetch_shard(self):
        """With `name`, `start`, `end` and, of text, `indices`. None when all are given out."""
        task = self.get_task()
        return None if task is None else task.shard

    def report_batch_done(self, batch_size=None, err_msg="", task_ids=()):
        """So many records are trained on, of the shards in the order in which they were fetched, or of `task_ids`.
        Whether a shard is done by that. With `err_msg` such a one is given out again instead."""
        records = batch_size or self._batch_size
        over = []
        with self._lock:
            for task_id in list(task_ids) or list(self._pending):
                if records <= 0 or task_id not in self._pending:
                    continue
                left = len(self._pending[task_id]) - self._reported[task_id]
                self._reported[task_id] += min(left, records)
                records -= left
                if err_msg:
                    self._failed.add(task_id)
                if records >= 0:
                    over.append(task_id)
            failed = [self._forget(task_id) for task_id in over if task_id in self._failed]
            done = [self._forget(task_id) for task_id in over if task_id in self._pending]
        self._tell(failed, done)
        return bool(over)

    def report_all_task_error(self, err_msg):
        """Others are given what this rank was given and has not reported done."""
        with self._lock:
            failed = [self._forget(task_id) for task_id in list(self._pending)]
        self._tell(failed, [])

    def get_shard_checkpoint(self):
        """Which shards are done, of all ranks, as a text."""
        return json.dumps(self._shards.state_dict())

    def restore_shard_from_checkpoint(self, shard_checkpoint):
        """All ranks do so before any fetches."""
        if not shard_checkpoint:
            return False
        try:
            state = json.loads(shard_checkpoint)
        except ValueError:
            raise ValueError(f"no checkpoint of shards: {shard_checkpoint[:200]!r}") from None
        self._shards.load_state_dict(state)
        with self._lock:
            self._pending.clear()
            self._tasks.clear()
            self._reported.clear()
            self._failed.clear()
        return True

    def _forget(self, task_id):
        del self._tasks[task_id], self._reported[task_id]
        self._failed.discard(task_id)
        return self._pending.pop(task_id)

    def _tell(self, failed, done):
        if failed:
            self._shards.give_back(failed)
        if done:
            self._shards.done(done)

    def __getattr__(self, name):
        if name.startswith("_") or name not in _INSTEAD:
            raise AttributeError(f"{type(self).__name__} of phalanx-dlrover has no {name}")
        raise AttributeError(f"phalanx-dlrover does not offer {type(self).__name__}.{name}: {_INSTEAD[name]}")


class IndexShardingClient(ShardingClient):
    """Records one by one. fetch_sample_index() may also be called in forked workers of a DataLoader."""

    def __init__(
        self,
        dataset_name,
        batch_size,
        num_epochs,
        dataset_size,
        shuffle=False,
        task_type=None,
        num_minibatches_per_shard=10,
        storage_type="",
        num_workers=1,
    ):
        super().__init__(
            dataset_name,
            batch_size,
            num_epochs,
            dataset_size,
            shuffle,
            task_type,
            num_minibatches_per_shard,
            storage_type,
        )
        self._owner = os.getpid()
        self._samples = multiprocessing.get_context("fork").Queue(batch_size)
        self._samples.cancel_join_thread()
        self._fetcher = None
        self._fetcher_lock = threading.Lock()
        itself = weakref.ref(self)
        os.register_at_fork(before=lambda: _begin_to_fetch(itself()))

    def fetch_sample_index(self):
        """Raises StopIteration when all are given out."""
        _begin_to_fetch(self)
        index, error = self._samples.get()
        if index is not None:
            return index
        self._samples.put((None, error))  # for whoever asks next
        if error:
            raise RuntimeError(error)
        raise StopIteration

    def restore_shard_from_checkpoint(self, shard_checkpoint):
        if self._fetcher is not None:
            raise RuntimeError(
                "IndexShardingClient.restore_shard_from_checkpoint: indices are being fetched; call it before the "
                "first fetch_sample_index() and before a DataLoader starts its workers"
            )
        return super().restore_shard_from_checkpoint(shard_checkpoint)

    def _fetch_all(self):
        error = ""
        try:
            task = self.get_task()
            while task is not None:
                for index in task.shard.indices or range(task.shard.start, task.shard.end):
                    self._samples.put((index, ""))
                task = self.get_task()
        except (RuntimeError, OSError) as failed:
            error = str(failed)
        finally:  # whatever it is, nobody is to wait for more
            self._samples.put((None, error))


def _begin_to_fetch(client):
    """In the rank's own process, once."""
    if client is None or client._owner != os.getpid():
        return
    with client._fetcher_lock:
        if client._fetcher is None:
            client._fetcher = threading.Thread(target=client._fetch_all, name="fetch_sample_indices", daemon=True)
            client._fetcher.start()
