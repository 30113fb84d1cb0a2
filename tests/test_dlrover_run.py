"""dlrover-run of compat/dlrover: DLRover's command line starts phalanx-run, and its master's phalanx-master."""

import os
import re
import signal
import socket
import sys

import pytest
from dlrover_jobs import COMPAT, dlrover_run, said, with_compat
from harness import WORKLOADS, command_path

sys.path.insert(0, str(COMPAT))

from dlrover.python.master import main as master
from dlrover.trainer.torch import elastic_run, run_flags

# The usage that ms-swift's page on elastic training shows.
USAGE = """usage: dlrover-run [-h] [--nnodes NNODES] [--nproc-per-node NPROC_PER_NODE] [--rdzv-backend RDZV_BACKEND]
[--rdzv-endpoint RDZV_ENDPOINT] [--rdzv-id RDZV_ID] [--rdzv-conf RDZV_CONF] [--standalone]
[--max-restarts MAX_RESTARTS] [--monitor-interval MONITOR_INTERVAL] [--start-method {spawn,fork,forkserver}]
[--role ROLE] [-m] [--no-python] [--run-path] [--log-dir LOG_DIR] [-r REDIRECTS] [-t TEE]
[--local-ranks-filter LOCAL_RANKS_FILTER] [--node-rank NODE_RANK] [--master-addr MASTER_ADDR]
[--master-port MASTER_PORT] [--local-addr LOCAL_ADDR] [--logs-specs LOGS_SPECS] [--precheck {0,1,2}]
[--node_unit NODE_UNIT] [--auto_config] [--auto_tunning] [--exclude-straggler] [--save_at_breakpoint]
[--accelerator {nvidia.com/gpu,ascend-npu}] [--training_port TRAINING_PORT] [--switchbox-check]
[--box-pairs PAIR [PAIR ...]] [--min-bandwidth MIN_BANDWIDTH] [--min-channels MIN_CHANNELS] [--numa-affinity]
[--network-check] [--comm-perf-test] [--ucp_device_type UCP_DEVICE_TYPE] training_script"""


def nobody(address):
    return False


def planned(*words, answers=nobody, **environment):
    return elastic_run.planned(list(words), environment, answers)


def refusal(*words, **environment):
    with pytest.raises(elastic_run.UsageError) as error:
        planned(*words, **environment)
    return str(error.value)


# --- flags in, flags out


def test_the_help_is_that_of_the_guide():
    done = said("--help")
    assert done.returncode == 0, done.stderr
    usage = done.stdout.split("\n\n")[0]
    assert usage.split() == USAGE.split()
    for spellings, *_ in run_flags.ROWS:
        assert re.search(rf"^  .*{spellings[-1]}\b", done.stdout, re.MULTILINE), spellings


def test_every_flag_is_one_of_phalanx_run():
    """And its arity is the one that phalanx-run reads it with."""
    done = said("--help-table", module="phalanx.run")
    assert done.returncode == 0, done.stderr
    theirs = {}
    for spelling in re.findall(r"^\| `([^`]*)`", done.stdout, re.MULTILINE):
        name = re.search(r"--[\w-]+", spelling)[0]
        theirs[name] = spelling.split(name)[1].strip() != ""
    ours = {flag for _, _, flag, _ in run_flags.ROWS if flag} | {"--help", "--ucp-device-type"}
    ours |= run_flags.PHALANX_SWITCHES | run_flags.PHALANX_VALUED
    assert ours == set(theirs)
    for name, has_value in theirs.items():
        assert (run_flags._ARITIES[name] != 0) == has_value, name


def test_words_are_handed_on():
    words = [
        "--nnodes=1:2",
        "--rdzv_endpoint",
        "h:1",
        "--box-pairs",
        "0:1",
        "2:3",
        "--hang-timeout",
        "9",
        "-r3",
        "t.py",
    ]
    plan = planned(*words, "--nnodes", "7", "--help")
    assert plan.arguments == ["--role=dlrover-trainer", "--rdzv-backend=c10d", *words, "--nnodes", "7", "--help"]
    assert plan.notices == []
    assert plan.variables["NODE_NUM"] == plan.variables["WORKER_NUM"] == "2", "the script's own --nnodes is none"


def test_a_role_and_a_backend_that_are_given_stay():
    plan = planned("--role=r", "--rdzv-backend=static", "--rdzv-endpoint=h:1", "t.py")
    assert plan.arguments == ["--role=r", "--rdzv-backend=static", "--rdzv-endpoint=h:1", "t.py"]


def test_the_device_of_universal_checkpoints():
    assert planned("--ucp_device_type", "cpu", "t.py").arguments == ["--role=dlrover-trainer", "t.py"]
    assert planned("t.py", PET_UCP_DEVICE_TYPE="cpu").variables["PET_UCP_DEVICE_TYPE"] is None
    assert "--ucp_device_type=npu: expected cpu" in refusal("--ucp-device-type=npu", "t.py")
    assert "--ucp_device_type=npu: expected cpu" in refusal("t.py", PET_UCP_DEVICE_TYPE="npu")


def test_the_master_that_the_variable_names():
    plan = planned("--nnodes=1:4", "t.py", DLROVER_MASTER_ADDR="m:50001", ELASTIC_JOB_NAME="job")
    assert plan.variables["PHALANX_MASTER_ADDR"] == "m:50001"
    assert plan.arguments == ["--role=dlrover-trainer", "--rdzv-id=job", "--nnodes=1:4", "t.py"]
    plan = planned("--rdzv-id=other", "t.py", DLROVER_MASTER_ADDR="m:50001", ELASTIC_JOB_NAME="job")
    assert plan.arguments == ["--role=dlrover-trainer", "--rdzv-id=job", "t.py"]
    assert plan.notices == ["--rdzv-id=other: ELASTIC_JOB_NAME=job names the job"]


def test_standalone_counts_where_nobody_answers():
    plan = planned("--standalone", "t.py", DLROVER_MASTER_ADDR="m:50001")
    assert "--standalone" in plan.arguments and "PHALANX_MASTER_ADDR" not in plan.variables
    assert "nobody answers" in plan.notices[0]
    plan = planned("--standalone", "t.py", answers=lambda address: address == "m:50001", DLROVER_MASTER_ADDR="m:50001")
    assert "--standalone" not in plan.arguments and plan.variables["PHALANX_MASTER_ADDR"] == "m:50001"


def test_who_answers(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert elastic_run.answers(f"127.0.0.1:{port}")
    assert not elastic_run.answers(f"127.0.0.1:{port}")
    with pytest.raises(elastic_run.UsageError, match="expected HOST:PORT"):
        elastic_run.answers("nowhere")


def test_nodes_that_do_not_know_where_to_meet():
    assert "set DLROVER_MASTER_ADDR" in refusal("--nnodes=1:2", "t.py")
    assert planned("--nnodes=1", "t.py") and planned("--nnodes=1:2", "--rdzv-endpoint=h:1", "t.py")
    assert planned("--nnodes=1:2", "t.py", SLURM_STEP_ID="0")


def test_what_has_no_meaning_is_said():
    assert "expected grpc" in refusal("t.py", DLROVER_MASTER_SERVICE_TYPE="ray")
    (notice,) = planned("t.py", FAILURE_NODE_ERRORS="#x#").notices
    assert notice.startswith("FAILURE_NODE_ERRORS is set, and has no effect: ")


def test_refusals_end_with_2():
    for words, sentence in (
        (["--nnodes=1:2", "t.py"], "dlrover-run: error: --nnodes=1:2: the nodes do not know where to meet"),
        (["--auto_tunning", "t.py"], "--auto-tunning"),
        (["--training_port=60000", "t.py"], "--training-port"),
        (["--logs-specs=x", "t.py"], "--logs-specs"),
        (["--accelerator=ascend-npu", "t.py"], "--accelerator"),
    ):
        done = said(*words)
        assert done.returncode == 2 and sentence in done.stderr.replace("_", "-"), done.stderr


# --- jobs


def test_a_job_survives_a_kill(job):
    """Light steps, started as the guide does, with the flags of its example."""
    words = ["--standalone", "--nnodes=1", "--nproc_per_node=2", "--max_restarts=3", "--save_at_breakpoint"]
    node = dlrover_run(job, *words, WORKLOADS / "light_steps.py")
    job.wait(lambda _: len([1 for event in job.found("step") if event["n"] == 3]) == 2, "steps")
    os.kill(job.pid(1, 0), signal.SIGKILL)
    job.wait_stepping(life=1, world=2)
    job.stop()
    assert node.wait() == 0, job.story()
    assert {event["life"] for event in job.found("done")} == {1}
    assert "restart 1 of 3" in node.stderr


def test_what_workers_find(job):
    node = dlrover_run(
        job, "--standalone", "--nproc-per-node=1", WORKLOADS / "tell.py", env={"RUNTIME_METRICS_PATH": "/m"}
    )
    assert node.wait() == 0, job.story()
    env = job.found("told")[0]["env"]
    assert env["ROLE_NAME"] == "dlrover-trainer" and env["NODE_NUM"] == env["WORKER_NUM"] == "1"
    assert env["DLROVER_PARAL_CONFIG_PATH"] == "./dlrover/auto_paral_config.json"
    assert env["RUNTIME_METRICS_PATH"] == "/m", "what is set stays"


def test_ranks_meet_by_their_clients(job):
    node = dlrover_run(job, "--standalone", "--nproc-per-node=2", WORKLOADS / "dlrover_meeting.py")
    assert node.wait() == 0, job.story()
    told = sorted(job.found("met"), key=lambda event: event["rank"])
    assert [event["rank"] for event in told] == [0, 1]
    for event in told:
        assert (event["early"], event["met"], event["opened"]) == (False, True, True)
        assert bytes.fromhex(event["value"]) == b"\x00value" and event["missing"] == ""
        assert event["finished"] == [True, False]
        assert event["nodes"] == [0, 1, 2]
    assert sorted(event["sum"] for event in told) == [1, 2]


def test_the_functions_of_the_module(job):
    """elastic_run.main() runs a job below the calling program."""
    line = [sys.executable, "-c", "import sys; from dlrover.trainer.torch.elastic_run import main; main(sys.argv[1:])"]
    words = [f"--state-dir={job.folder / 'state'}", "--standalone", "--nproc-per-node=1", WORKLOADS / "tell.py"]
    node = job.run(*words, command=line, env=with_compat())
    assert node.wait() == 0, job.story()
    assert job.found("told")[0]["env"]["ROLE_NAME"] == "dlrover-trainer"
    parsed = elastic_run.parse_args(["--nnodes=1:2", "--box-pairs", "0:1", "2:3", "-m", "train", "--lr", "1"])
    assert (parsed.nnodes, parsed.box_pairs, parsed.module) == ("1:2", ["0:1", "2:3"], True)
    assert (parsed.training_script, parsed.training_script_args) == ("train", ["--lr", "1"])


# --- the master


def test_a_job_with_a_master_of_its_own(job):
    """Two nodes find it by DLROVER_MASTER_ADDR, and one of them is killed."""
    words = ["--platform", "local", "--job_name", job.id, "--port", "0", "--node_num", "2"]
    command = [sys.executable, "-m", "dlrover.python.master.main"]
    env = with_compat({"PHALANX_TOKEN": "0123456789abcdef0123456789abcdef"})
    job.master = job.run(*words, command=command, env=env, name="master")
    port = job.master.wait_line("^ready ", stream="stdout").split()[1]
    given = {"DLROVER_MASTER_ADDR": f"127.0.0.1:{port}", "ELASTIC_JOB_NAME": job.id, **env}
    nodes = []
    for index in range(2):
        words = ["--nnodes=1:2", "--nproc-per-node=1", f"--local-addr=127.0.0.{index + 1}"]
        nodes.append(
            job.run(
                f"--state-dir={job.folder / f'state{index}'}",
                *words,
                WORKLOADS / "light_steps.py",
                env=given,
                command=[sys.executable, "-m", "dlrover.trainer.torch.main"],
            )
        )
    job.wait(lambda _: {event["world"] for event in job.found("step")} >= {2}, "steps of both")
    last = max(event["life"] for event in job.found("step"))
    nodes[1].signal(signal.SIGKILL)
    job.killed_by_test = True
    job.wait(lambda _: any(e["world"] == 1 and e["life"] > last for e in job.found("step")), "steps of one")
    job.stop_file.touch()
    assert nodes[0].wait() == 0, job.story()
    assert job.master.wait() == 0, job.story()


def test_the_masters_arguments():
    given = ["--job_name=j", "--node_num=4", "--hang_detection=1", "--pre_check_ops=[]", "--namespace", "dlrover"]
    expected = ["--job-id=j", "--host=0.0.0.0", "--port=50001", "--spec-from-hello", "--ready-fd=1"]
    assert master.arguments_for([*given, "--port=50001", "--platform=local"], {"HOST_PORTS": "7,8"}) == expected
    assert "--port=7" in master.arguments_for(given, {"HOST_PORTS": "7,8"})
    assert "--port=0" in master.arguments_for(given, {})
    for word, sentence in (
        ("--platform=pyk8s", "--platform=pyk8s: expected local: phalanx-master starts no pods"),
        ("--hang_detection=2", "give dlrover-run --hang-timeout=SECONDS"),
        ("--enable_dashboard=true", "phalanx status, phalanx events and phalanx ledger show the job"),
        ("--service_type=http", "agents speak gRPC"),
        ("--dynamic_failover_extension=a::B", "no code of the user's"),
        ("--group-affinity={0:1}", "placement"),
        ("--port=x", "--port=x: expected a whole number from 0 to 65535"),
    ):
        with pytest.raises(master.UsageError) as error:
            master.arguments_for([*given, word], {})
        assert sentence in str(error.value)
    done = said("--job_name=j", "--platform=k8s", module="dlrover.python.master.main")
    assert done.returncode == 2 and "starts no pods" in done.stderr
    assert command_path("phalanx-master")
