"""What the variables of a worker say. A variable that is there and no number is a ValueError that names it."""

import os

from dlrover.offered import SAME, getter
from dlrover.python.common.constants import NodeEnv

_TEXT = "of the variables that a worker has"
OFFERED = dict.fromkeys(
    (
        *("get_node_rank", "get_node_id", "get_node_num", "get_node_type", "get_local_rank", "get_local_world_size"),
        *("get_rank", "get_world_size", "get_group_rank", "get_group_world_size", "get_torch_restart_count"),
        "get_job_name",
    ),
    (SAME, _TEXT),
)
__getattr__ = getter(__name__, {})


def _number(names, default):
    for name in names:
        value = os.environ.get(name, "")
        if not value:
            continue
        try:
            return int(value)
        except ValueError:
            raise ValueError(f"{name} is {value!r}; expected a whole number") from None
    return default


def get_node_rank():
    """Of the pod, where it has one; else this node's place among those that train."""
    return _number((NodeEnv.NODE_RANK, NodeEnv.WORKER_RANK, "GROUP_RANK"), 0)


def get_node_id():
    return _number((NodeEnv.NODE_ID, NodeEnv.NODE_RANK, "GROUP_RANK"), 0)


def get_node_num():
    """The most nodes that the job may have, as dlrover-run knows it; else those that train."""
    return _number((NodeEnv.NODE_NUM, NodeEnv.WORKER_NUM, "GROUP_WORLD_SIZE"), 1)


def get_node_type():
    return os.environ.get(NodeEnv.NODE_TYPE) or "worker"


def get_local_rank():
    return _number(("LOCAL_RANK",), 0)


def get_local_world_size():
    return _number(("LOCAL_WORLD_SIZE",), 1)


def get_rank():
    return _number(("RANK",), 0)


def get_world_size():
    return _number(("WORLD_SIZE",), 1)


def get_group_rank():
    return _number(("GROUP_RANK",), 1)  # their default, without a launcher


def get_group_world_size():
    return _number(("GROUP_WORLD_SIZE",), 1)


def get_torch_restart_count():
    return _number(("TORCHELASTIC_RESTART_COUNT",), 0)


def get_job_name():
    return os.environ.get(NodeEnv.JOB_NAME) or os.environ.get(NodeEnv.TORCHELASTIC_RUN_ID) or ""
