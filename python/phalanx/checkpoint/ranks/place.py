"""Which rank of which life this process is. Read from the environment, once for each Checkpointer."""

import os

import torch.distributed as dist

from phalanx._bootstrap import memory

_JOB_IDS = ("PHALANX_JOB_ID", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")


class Place:
    """As phalanx-run, torchrun and plain Python (rank 0 of a world of one) say it; where there is no agent, as the
    process group does, if there is one already."""

    def __init__(self, environment, has_agent=True):
        def number(name, otherwise):
            text = environment.get(name, "")
            return int(text) if text.isdigit() else otherwise

        self.rank = number("RANK", 0)
        self.world_size = number("WORLD_SIZE", 1)
        self.epoch = number("PHALANX_EPOCH", 0)
        job_ids = (environment.get(name) for name in _JOB_IDS)
        self.job_id = next(filter(None, job_ids), "")
        # LOCAL_RANK is 0 on all ranks under --virtual-local-rank; the board's slot is never shared.
        slot = environment.get("PHALANX_BOARD", "").rpartition(":")[2]
        self.local_rank = int(slot) if slot.isdigit() else number("LOCAL_RANK", 0)
        self.local_world_size = max(1, number("LOCAL_WORLD_SIZE", 1))
        # The first of the ranks that share what is written once: those of a node by its memory, all of them by a disk.
        self.first_rank = self.rank - self.local_rank
        self.first_rank_of_node = self.first_rank
        if not has_agent:
            self.first_rank = 0
            if is_together():
                self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    @property
    def leads(self):
        """Whether this rank saves what it shares with others."""
        return self.rank == self.first_rank


def here():
    return Place(os.environ, agent_fd() >= 0)


def by_itself():
    """As a rank that saves for itself, whatever others there are: the only one of its world."""
    return Place({name: os.environ[name] for name in _JOB_IDS if name in os.environ})


def is_together():
    """Whether there is a process group."""
    return dist.is_available() and dist.is_initialized()


def agent_fd():
    """The checkpoint socket, -1 where this process has no agent."""
    return memory.socket_fd()
