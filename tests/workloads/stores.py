"""Uses the store of its round in every way that scripts do, and dies once so that the next life does it again."""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from leaving import leave_group
from report import report

address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def own_client():
    """A TCPStore that the script makes for itself on MASTER_ADDR:MASTER_PORT."""
    agent_store = os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True"
    host_it = rank == 0 and not agent_store
    return dist.TCPStore(
        address, port, world, host_it, timedelta(seconds=20), wait_for_workers=False, multi_tenant=True
    )


def use(store):
    store.set(f"mine/{rank}", f"value {rank}")
    store.wait([f"mine/{other}" for other in range(world)], timedelta(seconds=20))
    assert store.get(f"mine/{(rank + 1) % world}").decode() == f"value {(rank + 1) % world}"
    store.add("count", 1)


def all_reduce():
    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item()


report("main", port=port, address=address)
if sys.argv[1] == "env":
    dist.init_process_group("gloo", init_method="env://")
elif sys.argv[1] == "tcp":
    dist.init_process_group("gloo", init_method=f"tcp://{address}:{port}", rank=rank, world_size=world)
else:
    kept = own_client()
    use(kept)
    dist.init_process_group("gloo")
report(
    "used",
    total=all_reduce(),
    launched=dist.is_torchelastic_launched(),
    agent_store=os.environ["TORCHELASTIC_USE_AGENT_STORE"],
)
if sys.argv[1] != "own":
    use(own_client())
dist.barrier()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and rank == 1:
    os._exit(3)
leave_group()
