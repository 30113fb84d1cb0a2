"""How a rank that trains with torch leaves its group, so that no other rank and no thread of its own makes its end a
failure."""

import atexit
import os

import torch.distributed as dist


def leave_group():
    """Behind the last step, when nothing refers to the group any more; the process ends with 0."""
    dist.barrier()
    dist.destroy_process_group()
    # DDP keeps the group, and so gloo's threads. One that is late to drop the work of a backward asks for the GIL when
    # Python has begun to take itself apart, and ends the process by SIGABRT: under torchrun, too. What is registered
    # last runs first, before that begins.
    atexit.register(os._exit, 0)
