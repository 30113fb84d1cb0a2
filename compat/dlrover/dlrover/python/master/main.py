"""python -m dlrover.python.master.main: this process becomes phalanx-master.

python -m dlrover.python.master.main --platform local --job_name job7 --port 50001
"""

import argparse
import os
import sys

from phalanx._launch import process

from dlrover.offered import DIFFERS

OFFERED = {"main": (DIFFERS, "phalanx-master: the arguments are those of the table below")}

_NODES_SAY = "no effect: the first node says it, by its dlrover-run's flags"
_PLATFORMS = ("local", "pyk8s", "k8s", "ray")


class UsageError(Exception):
    """The text says which argument, and what would be right."""


def _whole(name, least, most):
    def check(value):
        if not (value.isdecimal() and least <= int(value) <= most):
            raise UsageError(f"{name}={value}: expected a whole number from {least} to {most}")
        return value

    return check


def _only(name, right, why):
    def check(value):
        if value not in right:
            raise UsageError(f"{name}={value}: expected {' or '.join(right)}: {why}")
        return value

    return check


_NO_PODS = "phalanx-master starts no pods and no actors; start dlrover-run on each node, with DLROVER_MASTER_ADDR"
_NO_DASHBOARD = "phalanx status, phalanx events and phalanx ledger show the job"
_HANG = "give dlrover-run --hang-timeout=SECONDS, after which a life without a step ends as a failure does"

# (name, metavar, check or None, what it is here)
ROWS = (
    ("--job_name", "NAME", None, "the job's id, which nodes name by ELASTIC_JOB_NAME or --rdzv-id"),
    ("--port", "PORT", _whole("--port", 0, 65535), "0: the first of HOST_PORTS, else any free one, which is printed"),
    (
        "--platform",
        "NAME",
        _only("--platform", ("local",), _NO_PODS),
        "local, also where it is not given; pyk8s, k8s and ray are refused: phalanx-master starts no pods",
    ),
    ("--namespace", "NAME", None, "no effect"),
    ("--node_num", "N", _whole("--node_num", 1, 1_000_000), _NODES_SAY),
    (
        "--service_type",
        "NAME",
        _only("--service_type", ("grpc",), "agents speak gRPC to it"),
        "grpc; http is refused",
    ),
    ("--pending_timeout", "S", None, "no effect: dlrover-run --rdzv-conf=join_timeout=S"),
    ("--pending_fail_strategy", "N", None, "no effect: there are no pods that it starts"),
    ("--pre_check_ops", "LIST", None, "no effect: dlrover-run --precheck checks nodes"),
    (
        "--hang_detection",
        "0|1|2",
        _only("--hang_detection", ("0", "1"), _HANG),
        "0 and 1: a hang is told of, always; 2 is refused: dlrover-run --hang-timeout=S ends it",
    ),
    ("--hang_downtime", "MIN", None, "no effect: a hang is told of after 12 s"),
    ("--max_hang_downtime", "MIN", None, "no effect"),
    ("--xpu_type", "NAME", None, "no effect: nothing here depends on the accelerator"),
    (
        "--task_process_timeout",
        "S",
        None,
        "no effect: a shard is given out again when the round of its rank ends, and no earlier",
    ),
    (
        "--training_elastic_mode",
        "base|ucp",
        _only("--training_elastic_mode", ("base", "ucp"), "there are no others"),
        "no effect: HfDeepSpeedCheckpointer makes a universal checkpoint behind each save where the engine wants one",
    ),
    (
        "--dynamic_failover_extension",
        "MODULE::CLASS",
        _only("--dynamic_failover_extension", ("",), "no code of the user's runs in master or agent"),
        "refused",
    ),
    (
        "--enable_dashboard",
        "BOOL",
        _only("--enable_dashboard", ("false", "False", "0"), _NO_DASHBOARD),
        "false; true is refused: phalanx status, events and ledger show the job",
    ),
    ("--dashboard_port", "PORT", None, "no effect"),
    (
        "--group-affinity",
        "MAP",
        _only("--group-affinity", ("",), "ranks go by phalanx-master's own placement"),
        "refused",
    ),
)


def parser():
    found = argparse.ArgumentParser(
        prog="python -m dlrover.python.master.main", description=__doc__.splitlines()[0], allow_abbrev=False
    )
    for name, metavar, _, text in ROWS:
        spellings = {name, f"--{name[2:].replace('_', '-')}", f"--{name[2:].replace('-', '_')}"}
        names = sorted(spellings, key=lambda spelling: spelling != name)
        found.add_argument(*names, dest=name, metavar=metavar, help=text, required=name == "--job_name")
    return found


def arguments_for(words, environment):
    """Those of phalanx-master. UsageError, or SystemExit of argparse."""
    given = vars(parser().parse_args(words))
    for name, _, check, _ in ROWS:
        if given[name] is not None and check is not None:
            check(given[name])
    port = given["--port"] or "0"
    if port == "0":
        port = environment.get("HOST_PORTS", "").split(",")[0].strip() or "0"
        _whole("HOST_PORTS", 0, 65535)(port)
    # On all addresses, as DLRover's: nodes are elsewhere. The first node says how many there are to be.
    return [
        f"--job-id={given['--job_name']}",
        "--host=0.0.0.0",
        f"--port={port}",
        "--spec-from-hello",
        "--ready-fd=1",
    ]


def main(words=None):
    """Returns only where it cannot become phalanx-master: the exit status."""
    try:
        arguments = arguments_for(sys.argv[1:] if words is None else words, os.environ)
    except UsageError as error:
        sys.stderr.write(f"dlrover.python.master.main: error: {error}\n")
        return 2
    command = process.find_command("phalanx-master")
    if command is None:
        sys.stderr.write("dlrover.python.master.main: there is no phalanx-master; is Phalanx's wheel installed?\n")
        return 2
    sys.stdout.flush()
    os.execve(command, [command, *arguments], process.environment_for(command, os.environ))


if __name__ == "__main__":
    sys.exit(main())
