"""Meetings of ranks by name. The folder's name is DLRover's."""

from dlrover.offered import BETTER, getter
from dlrover.python.elastic_agent.master_client import MasterClient

OFFERED = {
    "SyncClient": (BETTER, "waits are told by the store of the round, and nothing is asked again and again"),
}
__getattr__ = getter(__name__, {})

_WAIT_S = 3600


class SyncClient:
    """All ranks of the round have one."""

    def __init__(self, client=None):
        self._client = MasterClient.singleton_instance() if client is None else client

    def join_sync(self, sync_name):
        return self._client.join_sync(sync_name)

    def wait_sync_finished(self, sync_name, timeout=_WAIT_S):
        """Until all ranks have joined; False behind `timeout` seconds."""
        return self._client.wait_sync(sync_name, timeout)

    def barrier(self, barrier_name, timeout=_WAIT_S):
        """Until notify_barrier() of any rank; False behind `timeout` seconds."""
        return self._client.wait_barrier(barrier_name, timeout)

    def notify_barrier(self, barrier_name):
        return self._client.barrier(barrier_name, notify=True)
