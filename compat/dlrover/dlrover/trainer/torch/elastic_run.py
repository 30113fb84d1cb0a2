"""dlrover-run on phalanx-run: DLRover's flags and variables in, those of phalanx-run out.

from dlrover.trainer.torch.elastic_run import main
main(["--standalone", "--nproc-per-node=2", "train.py"])  # as phalanx.run.main
"""

import os
import socket
import sys

from dlrover.offered import BETTER, DIFFERS, getter
from dlrover.python.common.constants import ConfigPath, NodeEnv
from dlrover.trainer.torch import run_flags

OFFERED = {
    "main": (BETTER, "as phalanx.run.main: the job runs in a phalanx-run below the calling program"),
    "parse_args": (DIFFERS, "dlrover-run's flags as a Namespace, for reading; main() takes words"),
}
REFUSED = {
    "run": "call main() with the words of the command line",
    "ElasticLaunch": "use phalanx.elastic_launch",
}
__getattr__ = getter(__name__, REFUSED)

ROLE = "dlrover-trainer"  # by which scripts know that an agent stores their checkpoints
_ANSWER_S = 3.0
_MEETING = ("--rdzv-endpoint", "--rdzv-backend", "--master-addr", "--master-port", "--standalone", "--check-only")
_MEETING_VARIABLES = (
    "PET_RDZV_ENDPOINT",
    "PET_RDZV_BACKEND",
    "PET_MASTER_ADDR",
    "PET_STANDALONE",
    "PHALANX_MASTER_ADDR",
    "SLURM_STEP_ID",
)
_UNUSED_VARIABLES = {
    "DLROVER_EXTENSION_DYNAMIC_FAILOVER": "no code of yours runs in the agent; --check-program may leave a node out",
    "FAILURE_NODE_ERRORS": "--watch finds what explains a failure, and --check-program may leave a node out",
    "NODE_RANK": "phalanx-master gives nodes their places, those of the last round the same again",
}


class UsageError(Exception):
    """The text says which flag or variable, and what would be right."""


class Plan:
    """What phalanx-run is started with: `arguments`, `variables` beside its environment (None: not in it), `notices`
    for people."""

    def __init__(self):
        self.arguments, self.variables, self.notices = [], {}, []


def planned(words, environment, answers):
    """The Plan for a command line. `answers(address)`: whether a master is there. UsageError."""
    line, plan = run_flags.Line(words), Plan()
    _refuse_service(environment)
    plan.notices += [
        f"{name} is set, and has no effect: {why}" for name, why in _UNUSED_VARIABLES.items() if environment.get(name)
    ]
    left_out = _leave_out(line, environment, plan)
    address = environment.get(NodeEnv.DLROVER_MASTER_ADDR, "")
    if address and line.given("--standalone"):
        if answers(address):
            left_out.append("--standalone")
        else:
            plan.notices.append(f"DLROVER_MASTER_ADDR={address}: nobody answers there: --standalone counts")
            address = ""
    if address:
        plan.variables.setdefault("PHALANX_MASTER_ADDR", environment.get("PHALANX_MASTER_ADDR") or address)
    else:
        _must_have_meeting_point(line, environment)
    before = _before(line, environment, plan, left_out)
    plan.arguments = [*before, *line.words(left_out)]
    plan.variables.update(_of_workers(line, environment))
    return plan


def _refuse_service(environment):
    service = environment.get(NodeEnv.DLROVER_MASTER_SERVICE_TYPE, "grpc")
    if service != "grpc":
        raise UsageError(
            f"{NodeEnv.DLROVER_MASTER_SERVICE_TYPE}={service}: expected grpc, or none: phalanx-master is spoken to by "
            "gRPC alone"
        )


def _leave_out(line, environment, plan):
    """Flags that phalanx-run is not given, because they say what is so anyway."""
    device = line.value("--ucp-device-type", environment.get("PET_UCP_DEVICE_TYPE", "cpu"))
    if device != "cpu":
        raise UsageError(
            f"--ucp_device_type={device}: expected cpu: universal checkpoints are converted there, behind each save"
        )
    if "PET_UCP_DEVICE_TYPE" in environment:
        plan.variables["PET_UCP_DEVICE_TYPE"] = None
    return ["--ucp-device-type"]


def _must_have_meeting_point(line, environment):
    most = nodes(line, environment)
    if most in (None, 1) or any(map(line.given, _MEETING)) or any(map(environment.get, _MEETING_VARIABLES)):
        return
    raise UsageError(
        f"--nnodes={line.value('--nnodes')}: the nodes do not know where to meet: set DLROVER_MASTER_ADDR=HOST:PORT "
        "(of python -m dlrover.python.master.main, or phalanx-master), or give --rdzv-endpoint=HOST:PORT of one of them"
    )


def _before(line, environment, plan, left_out):
    """Arguments in front of those given, which count more."""
    before = [] if line.given("--role") or environment.get("PET_ROLE") else [f"--role={ROLE}"]
    job = environment.get(NodeEnv.JOB_NAME, "")
    if job:
        if line.value("--rdzv-id", job) != job:
            plan.notices.append(f"--rdzv-id={line.value('--rdzv-id')}: ELASTIC_JOB_NAME={job} names the job")
        left_out.append("--rdzv-id")
        before.append(f"--rdzv-id={job}")
    has_endpoint = line.given("--rdzv-endpoint") or environment.get("PET_RDZV_ENDPOINT")
    if has_endpoint and not (line.given("--rdzv-backend") or environment.get("PET_RDZV_BACKEND")):
        before.append("--rdzv-backend=c10d")
    return before


def nodes(line, environment):
    """The most nodes that the job may have; None where the command line does not say it in numbers."""
    given = line.value("--nnodes", environment.get("PET_NNODES") or "1")
    if line.given("--auto-config") and not line.given("--nnodes"):
        given = environment.get(NodeEnv.NODE_NUM, "")
    most = given.rpartition(":")[2]
    return int(most) if most.isdecimal() and int(most) > 0 else None


def _of_workers(line, environment):
    """Variables that DLRover's workers look at; those that are set stay."""
    most = nodes(line, environment)
    wanted = {ConfigPath.ENV_PARAL_CONFIG: ConfigPath.PARAL_CONFIG}
    wanted[ConfigPath.ENV_RUNTIME_METRICS] = ConfigPath.RUNTIME_METRICS
    if most is not None:
        wanted.update({NodeEnv.NODE_NUM: str(most), NodeEnv.WORKER_NUM: str(most)})
    return {name: value for name, value in wanted.items() if not environment.get(name)}


def answers(address):
    """Whether somebody takes a connection at HOST:PORT."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        raise UsageError(f"DLROVER_MASTER_ADDR={address}: expected HOST:PORT")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S).close()
    except (OSError, OverflowError):
        return False
    return True


def taken_on(words):
    """The arguments for phalanx-run, when this process has the variables for it. None: the help was asked for, and is
    printed. UsageError."""
    if run_flags.Line(words).given("--help"):
        run_flags.parser().print_help()
        return None
    plan = planned(words, os.environ, answers)
    for notice in plan.notices:
        sys.stderr.write(f"dlrover-run: {notice}\n")
    for name, value in plan.variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return plan.arguments


def parse_args(args=None):
    """dlrover-run's flags as a Namespace: texts, as they were given."""
    return run_flags.parser().parse_args(sys.argv[1:] if args is None else args)


def main(args=None):
    """As phalanx.run.main: returns where all workers ended with 0, and raises what it raises."""
    from phalanx import run

    try:
        arguments = taken_on(sys.argv[1:] if args is None else [str(word) for word in args])
    except UsageError as error:
        sys.stderr.write(f"dlrover-run: error: {error}\n")
        raise SystemExit(2) from None
    if arguments is None:
        raise SystemExit(0)
    run.main(arguments)
