"""What workers ask DLRover's master: here it is the store of the round, at MASTER_ADDR and MASTER_PORT, that answers.

Bytes and counters alone, nothing is pickled. What is kept there ends with the round: a new life begins with none of it.
"""

import contextlib
import os
import threading
from datetime import timedelta

from dlrover.offered import DIFFERS, getter
from dlrover.python.common import env_utils

OFFERED = {
    "build_master_client": (DIFFERS, "a MasterClient of this round's store"),
    "MasterClient": (
        DIFFERS,
        "kv_store_set, kv_store_get, kv_store_add, join_sync, sync_finished, barrier and report_global_step, for "
        "workers; each other call of DLRover's is an AttributeError with a sentence",
    ),
}
REFUSED = dict.fromkeys(
    ("GrpcMasterClient", "HttpMasterClient", "RayMasterClient", "MasterServiceType"),
    "use build_master_client(): workers speak to the store of their round",
)
__getattr__ = getter(__name__, REFUSED)

_PREFIX = "dlrover"
_CONNECT_S = 60
_INSTEAD = {
    "report_heart_beat": "the agent has a lease at phalanx-master",
    "join_rendezvous": "phalanx-run does it",
    "get_comm_world": "RANK, WORLD_SIZE, GROUP_RANK and GROUP_WORLD_SIZE say it",
    "num_nodes_waiting": "phalanx.on_rescale is called before nodes join",
    "report_failures": "phalanx-run reports each worker's end",
    "get_task": "ShardingClient has it",
    "report_task_result": "ShardingClient.report_batch_done() does it",
    "report_dataset_shard_params": "ShardingClient does it",
}


class MasterClient:
    """May be used by any thread; calls of one client come one after another."""

    _instance = None
    _instance_lock = threading.Lock()

    @classmethod
    def singleton_instance(cls):
        with cls._instance_lock:
            if cls._instance is None:
                cls._instance = build_master_client()
            return cls._instance

    def __init__(self, store, rank, world_size):
        """`store`: a torch.distributed.Store that all ranks reach."""
        self._store, self._rank, self._world_size = store, rank, world_size
        self._lock = threading.Lock()

    # --- keys

    def kv_store_set(self, key, value):
        """`value`: bytes, or a text."""
        with self._lock:
            self._store.set(f"kv/{key}", value)
        return True

    def kv_store_get(self, key):
        """Its bytes; b"" where nobody has set it."""
        with self._lock:
            return self._store.get(f"kv/{key}") if self._store.check([f"kv/{key}"]) else b""

    def kv_store_add(self, key, amount):
        """The sum, once."""
        with self._lock:
            return self._store.add(f"kv/{key}", amount)

    # --- meetings

    def join_sync(self, sync_name):
        """This rank has come. Once, however often it says so."""
        with self._lock:
            mine = f"sync/{sync_name}/{self._rank}"
            if self._store.add(mine, 1) == 1 and self._store.add(f"sync/{sync_name}", 1) == self._world_size:
                self._store.set(f"sync/{sync_name}/all", b"1")
        return True

    def sync_finished(self, sync_name):
        """Whether all ranks of the world have come."""
        with self._lock:
            return self._store.check([f"sync/{sync_name}/all"])

    def wait_sync(self, sync_name, timeout_s):
        """Whether they have, at most so much later."""
        return self._wait(f"sync/{sync_name}/all", timeout_s)

    def barrier(self, barrier_name, notify=False):
        """With `notify` the barrier is open from here on. Whether it is."""
        with self._lock:
            if notify:
                self._store.set(f"barrier/{barrier_name}", b"1")
            return self._store.check([f"barrier/{barrier_name}"])

    def wait_barrier(self, barrier_name, timeout_s):
        """Whether it is open, at most so much later."""
        return self._wait(f"barrier/{barrier_name}", timeout_s)

    def _wait(self, key, timeout_s):
        from torch.distributed import DistStoreError

        with self._lock, contextlib.suppress(DistStoreError):
            self._store.wait([key], timedelta(seconds=timeout_s))
            return True
        return False

    # --- telling

    def report_global_step(self, global_step, timestamp=None, elapsed_time_per_step=0):
        """As phalanx.step(global_step)."""
        import phalanx

        phalanx.step(global_step)

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        instead = _INSTEAD.get(name, "docs/dlrover.md lists what a MasterClient has here")
        raise AttributeError(f"phalanx-dlrover does not offer MasterClient.{name}: {instead}")


def build_master_client(master_addr=None, timeout=_CONNECT_S):
    """`master_addr`: not needed: the store of the round is where MASTER_ADDR and MASTER_PORT say."""
    from torch.distributed import PrefixStore, TCPStore

    host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if not host or not port.isdecimal():
        raise RuntimeError(
            "phalanx-dlrover: MASTER_ADDR and MASTER_PORT are not set; expected a worker of dlrover-run or phalanx-run"
        )
    store = TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout))
    return MasterClient(PrefixStore(_PREFIX, store), env_utils.get_rank(), env_utils.get_world_size())
