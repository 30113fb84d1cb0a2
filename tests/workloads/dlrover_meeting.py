"""Ranks that meet by DLRover's SyncClient and MasterClient (compat/dlrover), and say what they see."""

import os

from dlrover.python.common import env_utils
from dlrover.python.elastic_agent.master_client import MasterClient, build_master_client
from dlrover.python.elastic_agent.sychronization.sync_client import SyncClient
from report import report

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
report("main")
client = MasterClient.singleton_instance()
sync = SyncClient()
early = SyncClient(build_master_client()).wait_sync_finished("late", timeout=0.2)
alone = False
if RANK == 0:
    client.kv_store_set("name", b"\x00value")
    sync.join_sync("start")
    sync.join_sync("start")
    alone = client.sync_finished("start")
    sync.notify_barrier("one has joined")
else:
    sync.barrier("one has joined", timeout=60)
    sync.join_sync("start")
met = sync.wait_sync_finished("start", timeout=60)
if RANK == 1:
    sync.notify_barrier("go")
opened = sync.barrier("go", timeout=60)
report(
    "met",
    early=early or alone,
    met=met,
    opened=opened,
    value=client.kv_store_get("name").hex(),
    missing=client.kv_store_get("other").hex(),
    sum=client.kv_store_add("count", 1),
    finished=[client.sync_finished("start"), client.sync_finished("late")],
    nodes=[env_utils.get_node_rank(), env_utils.get_node_num(), env_utils.get_local_world_size()],
)
sync.join_sync("end")
sync.wait_sync_finished("end", timeout=60)
