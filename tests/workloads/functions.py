"""A program that launches functions of its __main__ and tells what comes of it: <way>. Run as a script or with -m."""

import functools
import glob
import os
import pickle
import stat
import sys
import threading

import phalanx
from report import report


def life():
    return int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def rank():
    return int(os.environ["RANK"])


class Payload:
    def __init__(self, value):
        self.value = value


def echo(*arguments):
    return rank(), life(), [one.value if isinstance(one, Payload) else one for one in arguments]


def die_once(_):
    if rank() == 1 and life() == 0:
        os.kill(os.getpid(), 9)
    return life()


def payload(size):
    return Payload(bytes(size))


def raise_error():
    report("main")
    if rank() == 1:
        raise KeyError("the planned error")


def unpicklable():
    return open(os.devnull) if rank() == 1 else 0


def leave():
    if rank() == 1:
        os._exit(0)


def leave_orderly(code):
    sys.exit(code)


def where_it_lies():
    folder = sys.orig_argv[-1] if hasattr(sys, "orig_argv") else None
    modes = {name: stat.S_IMODE(os.lstat(os.path.join(folder, name)).st_mode) for name in os.listdir(folder)}
    return stat.S_IMODE(os.lstat(folder).st_mode), modes


def warmth():
    """Whether torch was there before this process was forked."""
    from phalanx._bootstrap import places

    names = list(sys.modules)
    last = places.last_preloaded
    return last is not None and "torch" in names and names.index("torch") <= names.index(last)


def preloaded():
    """What a nested launch would read, and whether a library of the caller's main module is there without an import."""
    return os.environ.get("PHALANX_PRELOAD"), "cloudpickle" in sys.modules


def spoil_the_report():
    """phalanx-run finds a folder where it should leave its report."""
    if rank() == 0:
        (path,) = glob.glob(os.path.join(os.environ["TMPDIR"], "phalanx-*", "report.json"))
        os.remove(path)
        os.mkdir(path)


def wait_for_word(fifo):
    report("main")
    with open(fifo) as file:
        return file.read()


def variables(*names):
    return [os.environ.get(name) for name in names]


def config(**fields):
    fields = {"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 2, "max_restarts": 0, **fields}
    return phalanx.LaunchConfig(**fields)


def launch(function, *arguments, **fields):
    return phalanx.elastic_launch(config(**fields), function)(*arguments)


def attempt(function, *arguments, **fields):
    try:
        return {"values": launch(function, *arguments, **fields)}
    except phalanx.ChildFailedError as error:
        first, failure = error.get_first_failure()
        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        shown = {"first": first, "message": failure.message, "exitcode": failure.exitcode}
        return {"kind": kind, "name": error.name, "ranks": list(error.failures), **shown}
    except (ValueError, RuntimeError, pickle.PicklingError) as error:
        return {"kind": type(error).__name__, "text": str(error)}


def without_cloudpickle(function, *arguments):
    sys.modules["cloudpickle"] = None
    return attempt(function, *arguments)


def torch_way():
    """Everything of torch's own: LaunchConfig, DefaultLogsSpecs; a function that it defines."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.launcher.api import LaunchConfig

    specs = DefaultLogsSpecs(log_dir=sys.argv[2], redirects={1: Std.ALL}, local_ranks_filter={0, 1})
    own = LaunchConfig(1, 1, 2, logs_specs=specs, run_id="own", rdzv_backend="c10d", max_restarts=0, role="trainer")
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_MAX_RESTARTS", "ROLE_NAME")
    return {"values": phalanx.elastic_launch(own, variables)(*names)}


WAYS = {
    "values": lambda: attempt(echo, 1, "rank of ${local_rank}", Payload("x"), None),
    "restart": lambda: attempt(die_once, None, max_restarts=1),
    "large": lambda: {"values": {k: len(v.value) for k, v in launch(payload, 64 << 20).items()}},
    "raise": lambda: attempt(raise_error),
    "closure": lambda: attempt(lambda word: (rank(), word), "sent by value"),
    "closure-without-cloudpickle": lambda: without_cloudpickle(lambda: 0),
    "argument": lambda: attempt(echo, threading.Lock()),
    "unpicklable": lambda: attempt(unpicklable, max_restarts=3),
    "leave": lambda: attempt(leave),
    "exit-0": lambda: attempt(leave_orderly, 0),
    "exit-3": lambda: attempt(leave_orderly, 3),
    "where": lambda: attempt(where_it_lies),
    "script": lambda: {"values": phalanx.elastic_launch(config(), sys.executable)("-u", sys.argv[2], "--a", "b")},
    "module": lambda: {"values": phalanx.elastic_launch(config(), sys.executable)("-u", "-m", sys.argv[2], "--a")},
    "program": lambda: {"values": phalanx.elastic_launch(config(), "/bin/echo")("-n", "hi")},
    "program-fails": lambda: attempt("/bin/false"),
    "torch": torch_way,
    "etcd": lambda: attempt(echo, rdzv_backend="etcd"),
    "metrics": lambda: attempt(echo, metrics_cfg={"a": "b"}),
    "pet": lambda: attempt(echo),
    "spoil": lambda: attempt(spoil_the_report),
    "preload": lambda: attempt(preloaded),
    "events": lambda: attempt(echo, event_log_handler="console"),
    "odd-name": lambda: attempt(functools.partial(echo, "line\n" * 100)),
    "warm": lambda: {"values": [launch(warmth) for _ in range(2)]},
}


def node(index, port):
    """One of two nodes, with two ranks each."""
    endpoint = {"rdzv_endpoint": f"127.0.0.1:{port}", "run_id": "two", "local_addr": f"127.0.0.{index + 1}"}
    return {"values": launch(echo, index, min_nodes=2, max_nodes=2, **endpoint)}


def one_of_two(index, port, fifo):
    """A job of one node, and another node that comes to it."""
    endpoint = {"rdzv_endpoint": f"127.0.0.1:{port}", "run_id": "one", "local_addr": f"127.0.0.{index + 1}"}
    return attempt(wait_for_word, fifo, nproc_per_node=1, **endpoint)


def come_to_it():
    if sys.argv[1] == "node":
        return node(int(sys.argv[2]), sys.argv[3])
    if sys.argv[1] == "one-of-two":
        return one_of_two(int(sys.argv[2]), *sys.argv[3:])
    return WAYS[sys.argv[1]]()


if __name__ == "__main__":
    if "PHALANX_TEST_WITHOUT_TORCH" in os.environ:
        sys.modules["torch"] = None  # what Python itself keeps for a module that must not be imported
    if sys.argv[1] == "preload":
        import cloudpickle  # noqa: F401 - a library that this module has
    if "torch" in sys.argv[1:] or sys.argv[1] == "warm":
        import torch  # noqa: F401 - so that this module has it, as a training script has
    report("launched", torch=sys.modules.get("torch") is not None, **come_to_it())
