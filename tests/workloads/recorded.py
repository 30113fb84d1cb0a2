"""An exception under torch's @record in one rank, while the other waits for it."""

import os

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


def inner():
    raise ValueError("the planned error")


@record
def main():
    dist.init_process_group("gloo")
    if os.environ["RANK"] == "1":
        inner()
    dist.barrier()


if __name__ == "__main__":
    main()
