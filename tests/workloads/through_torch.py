"""Programs that launch through torch's own Python: <way> ARGUMENTS... Only `install` knows of Phalanx."""

import subprocess
import sys

from report import report


def by_name(arguments):
    """torchrun from PATH, as a program of its own."""
    return {"status": subprocess.run(["torchrun", *arguments]).returncode}


def by_main(arguments):
    from torch.distributed.run import main

    return attempt(lambda: main(arguments))


def by_namespace(arguments):
    import torch.distributed.run as launcher

    return attempt(lambda: launcher.run(launcher.get_args_parser().parse_args(arguments)))


def by_launch(arguments):
    """The deprecated launcher, with its --use-env."""
    from torch.distributed.launch import main

    return attempt(lambda: main(["--use-env", *arguments]))


def by_elastic_launch(arguments):
    from torch.distributed.launcher import elastic_launch
    from torch.distributed.launcher.api import LaunchConfig

    config = LaunchConfig(1, 1, 2, rdzv_backend="c10d", run_id="own", max_restarts=0)
    return attempt(lambda: elastic_launch(config, function)(arguments[0]))


def by_launch_agent(arguments):
    from torch.distributed.launcher import LaunchConfig, launch_agent

    config = LaunchConfig(1, 1, 2, rdzv_backend="c10d", run_id="own", max_restarts=0)
    return attempt(lambda: launch_agent(config, sys.executable, ["-u", *arguments]))


def install(arguments):
    import phalanx.shim

    phalanx.shim.install()
    return by_main(arguments)


def install_late(arguments):
    import torch.distributed.run  # noqa: F401 - before the shim

    return install(arguments)


def install_late_launch(arguments):
    import phalanx.shim
    import torch.distributed.launch as launcher  # before the shim

    phalanx.shim.install()
    return attempt(lambda: launcher.launch(launcher.parse_args(["--use-env", *arguments])))


def function(word):
    import os

    return [word, os.environ["RANK"], "PHALANX_EPOCH" in os.environ]


def attempt(call):
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        return {"values": call()}
    except (ChildFailedError, SystemExit) as error:
        return {"raised": type(error).__name__, "code": getattr(error, "code", None)}


WAYS = (
    by_name,
    by_main,
    by_namespace,
    by_elastic_launch,
    by_launch_agent,
    by_launch,
    install,
    install_late,
    install_late_launch,
)

if __name__ == "__main__":
    way = {way.__name__: way for way in WAYS}[sys.argv[1]]
    report("launched", **way(sys.argv[2:]))
