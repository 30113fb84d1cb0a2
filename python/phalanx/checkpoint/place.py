"""Which rank of which life this process is. Read from the environment, once for each Checkpointer."""

import os

from phalanx._bootstrap import memory


class Place:
    """As phalanx-run, torchrun and plain Python (rank 0 of a world of one) say it."""

    def __init__(self, environment):
        def number(name, otherwise):
            text = environment.get(name, "")
            return int(text) if text.isdigit() else otherwise

        self.rank = number("RANK", 0)
        self.world_size = number("WORLD_SIZE", 1)
        self.epoch = number("PHALANX_EPOCH", 0)
        self.job_id = environment.get("PHALANX_JOB_ID") or environment.get("TORCHELASTIC_RUN_ID") or ""
        # LOCAL_RANK is 0 on all ranks under --virtual-local-rank; the board's slot is never shared.
        slot = environment.get("PHALANX_BOARD", "").rpartition(":")[2]
        self.local_rank = int(slot) if slot.isdigit() else number("LOCAL_RANK", 0)
        self.local_world_size = max(1, number("LOCAL_WORLD_SIZE", 1))


def here():
    return Place(os.environ)


def agent_fd():
    """The checkpoint socket, -1 where this process has no agent."""
    return memory.socket_fd()
