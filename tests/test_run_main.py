"""phalanx.run.main(args) in a program: what it returns and raises, signals, and the caller's own death."""

import contextlib
import json
import os
import signal
import sys
import tempfile

import pytest
from harness import WORKLOADS, wait_ends, workload
from phalanx._launch import errors, process, report

TORCH = "torch.distributed.elastic.multiprocessing"
OWN = "phalanx._launch.errors"


def call(job, *arguments, way="main-without-torch", nproc=2, env=None):
    """A program that runs a job in-process. (`main` has torch's exceptions, at the price of importing it.)"""
    line = ["--standalone", f"--nproc-per-node={nproc}", *(workload(word) for word in arguments)]
    return job.run(*line, command=[sys.executable, str(WORKLOADS / "calling.py"), way], env=env, name=way)


def called(job):
    return job.wait_events("called")[0]


def test_success_returns_none_and_needs_no_torch(job):
    node = call(job, "tell.py", "--lr", "0.1", way="main")
    assert node.wait() == 0, job.story()
    event = called(job)
    assert (event["returned"], event["torch"]) == (None, False)
    assert event["handlers_are_back"]
    told = job.wait_events("told", 2)
    assert {tuple(one["argv"][1:]) for one in told} == {("--lr", "0.1")}
    assert not any(name.startswith("PHALANX_PARENT") for one in told for name in one["env"])


def test_failed_workers_are_named(job):
    """torch's own exception, with every failed worker by its global rank."""
    call(job, "--max-restarts=0", "tell.py", "--exit", "7", "--exit-rank", "1", way="main").wait()
    event = called(job)
    assert event["raised"] == f"{TORCH}.errors.ChildFailedError"
    failure = event["failures"]["1"]
    pid = job.wait_events("told", rank=1)[0]["pid"]
    assert (failure["local_rank"], failure["exitcode"], failure["pid"]) == (1, 7, pid)
    assert failure["error_file"] == "<N/A>"
    assert event["name"].endswith("tell.py")
    assert "exitcode  : 7" in event["text"]


def test_a_killed_worker_and_what_was_recorded(job):
    """The exception's text, its traceback, its time and the file that it lies in, as @record left it."""
    call(job, "--max-restarts=0", "recorded.py", way="main").wait()
    event = called(job)
    failure = event["failures"]["1"]
    assert failure["message"]["message"] == "ValueError: the planned error"
    assert "in inner" in failure["message"]["extraInfo"]["py_callstack"]
    assert failure["timestamp"] == int(failure["message"]["extraInfo"]["timestamp"])
    assert report.read_record(open(failure["error_file"]).read())[0] == failure["error_file_data"]
    assert event["first"] == 1 and event["text"].count("in inner") >= 1


def test_end_by_a_signal_has_its_number(job):
    call(job, "--max-restarts=0", "light_steps.py", "--fault=0:0:import:kill", nproc=1).wait()
    failure = called(job)["failures"]["0"]
    assert failure["exitcode"] == -signal.SIGKILL
    assert "SIGKILL" in failure["message"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_to_the_caller_end_the_job_gracefully(job, number):
    """Workers get the signal and their time; the caller gets torch's exception, or one of the same shape
    where there is no torch, and its handlers back."""
    way = "main" if number == signal.SIGTERM else "main-without-torch"
    node = call(job, "signals.py", "save", way=way)
    job.wait_events("main", 2)
    node.signal(number)
    assert node.wait() == 0, job.story()
    event = called(job)
    assert event["raised"] == (f"{TORCH}.api" if way == "main" else OWN) + ".SignalException"
    assert event["sigval"] == number
    assert event["handlers_are_back"]
    assert len(job.found("saved")) == 2


def test_an_interrupt_at_the_terminal_counts_once(job):
    """A terminal sends SIGINT to the caller's whole process group. A second one would mean "at once"."""
    node = call(job, "signals.py", "save")
    job.wait_events("main", 2)
    os.killpg(node.pid, signal.SIGINT)
    assert node.wait() == 0, job.story()
    assert len(job.found("saved")) == 2
    assert called(job)["sigval"] == signal.SIGINT


def test_user_signals_reach_the_workers(job):
    node = call(job, "signals.py", "end")
    job.wait_events("main", 2)
    node.signal(signal.SIGUSR1)
    job.wait_events("signal", 2, signal=signal.SIGUSR1)
    node.signal(signal.SIGTERM)
    assert node.wait() == 0, job.story()


@pytest.mark.parametrize("way", ["main-without-torch", "main-thread"])
def test_nothing_outlives_a_caller_that_is_killed(job, way):
    """Workers that ignore every signal included; the rest is for Job.close to find."""
    node = call(job, "signals.py", "ignore", way=way)
    pids = [event["pid"] for event in job.wait_events("main", 2)]
    node.signal(signal.SIGKILL)
    assert node.wait() == -signal.SIGKILL
    assert wait_ends(pids, 20) == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        *((["--no-such-flag", "x.py"], 2), ([], 2), (["--help"], 0), (["--version"], 0), (["--help-table"], 0)),
        (["--nnodes=1", "--print-completion", "bash"], 0),
    ],
)
def test_usage(job, arguments, code):
    """SystemExit, as argparse does; phalanx-run has said why. Callers that expect torch's ValueError get it as well."""
    assert issubclass(errors.UsageError, ValueError)
    node = job.run(*arguments, command=[sys.executable, str(WORKLOADS / "calling.py"), "main-without-torch"])
    node.wait()
    event = called(job)
    assert event["raised"] == (f"{OWN}.UsageError" if code else "builtins.SystemExit")
    assert event["code"] == code
    assert ("usage" in node.stderr) == (code == 2)


def test_without_torch(job):
    """Exceptions of the same shape, where torch cannot be imported."""
    call(job, "--max-restarts=0", "tell.py", "--exit", "7", "--exit-rank", "1").wait()
    event = called(job)
    assert event["raised"] == "phalanx._launch.errors.ChildFailedError"
    assert (event["failures"]["1"]["exitcode"], event["first"]) == (7, 1)
    assert "rank 1 (local_rank 1)" in event["text"]


def test_a_job_that_does_not_come_about(job):
    """No worker has failed: there is none. The reason is in the exception."""
    flags = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{job.port}"]
    command = [sys.executable, str(WORKLOADS / "calling.py"), "main-without-torch"]
    node = job.run(*flags, "--rdzv-conf=join_timeout=1", workload("tell.py"), command=command)
    node.wait()
    event = called(job)
    assert event["raised"] == "phalanx._launch.errors.LaunchError"
    assert "phalanx-run ended with 1" in event["text"]


@pytest.mark.slow
def test_a_failure_on_another_node(job):
    """Both callers are told which rank it was, with what it recorded; the file lies on one of them alone."""
    shared = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{job.port}", "--max-restarts=0"]
    for index in (0, 1):
        own = [f"--local-addr=127.0.0.{index + 1}", f"--state-dir={job.folder / f'state{index}'}"]
        own.append(f"--log-dir={job.folder / f'logs{index}'}")
        command = [sys.executable, str(WORKLOADS / "calling.py"), "main-without-torch"]
        job.run(*shared, *own, f"--rdzv-id={job.id}", workload("light_recorded.py"), command=command)
    assert [node.wait() for node in job.nodes] == [0, 0], job.story()
    failures = [event["failures"]["1"] for event in job.wait_events("called", 2)]
    assert {failure["message"]["message"] for failure in failures} == {"ValueError: the planned error"}
    assert sorted(failure["error_file"] == "<N/A>" for failure in failures) == [False, True]


def failure(rank, recorded_at=None, unix_ms=5_000_000):
    record = json.dumps({"message": {"message": "x", "extraInfo": {"timestamp": str(recorded_at)}}})
    fields = {"rank": rank, "local_rank": rank, "pid": 9, "exit_code": 1, "unix_ms": unix_ms, "error_file": ""}
    return report.Failure({**fields, "error_json": record if recorded_at else ""})


def test_an_oom_kill_is_told():
    """A bare signal 9 says nothing of memory; what the node found out about it does."""
    fields = {"rank": 0, "local_rank": 0, "pid": 7, "exit_code": -9, "unix_ms": 1, "error_json": "", "error_file": ""}
    for killed_by in ("", "the out-of-memory killer of its cgroup"):
        failure = report.Failure({**fields, "killed_by": killed_by} if killed_by else fields)
        message = errors.child_failed_error("train.py", [failure]).failures[0].message
        assert "SIGKILL" in message
        assert ("out-of-memory" in message) == bool(killed_by)


def test_what_a_failure_is_blamed_on_is_told():
    fields = {"rank": 0, "local_rank": 0, "pid": 7, "exit_code": -6, "unix_ms": 1, "error_json": "", "error_file": ""}
    blame = "XID 79 (GPU has fallen off the bus) on GPU 3, 0.4 s before"
    failures = [report.Failure({**fields, "blamed_on": blame})]
    assert blame in errors.child_failed_error("train.py", failures).failures[0].message


def test_the_first_cause_is_shown_as_such():
    """Whatever the clocks of others say: torch takes the smallest time for the cause."""
    told = [failure(3), failure(1, recorded_at=4_000), failure(2, recorded_at=4_999)]
    error = errors.child_failed_error("x.py", told)
    assert error.get_first_failure()[0] == 3
    assert sorted(error.failures) == [1, 2, 3]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version": 2}', '{"version": 1}', '{"version": 1, "failures": [{}]}', "\ufffd"]
)
def test_no_report(text):
    assert report.parse_report(text) is None


@pytest.mark.parametrize(
    "text",
    ["", "garbage", "[1]", '"x"', '{"message": 5}', '{"message": {"extraInfo": 1}}', '{"message": {"message": "x"}}'],
)
def test_what_torch_could_not_read_is_no_record(text):
    assert report.read_record(text) == (None, 0)


def test_a_report_of_somebody_else_is_not_read(tmp_path):
    path = tmp_path / "report.json"
    path.write_text("{}")
    path.chmod(0o666)
    assert report.read_private(str(path)) is None
    path.chmod(0o600)
    assert report.read_private(str(path)) == b"{}"
    (tmp_path / "link").symlink_to(path)
    assert report.read_private(str(tmp_path / "link")) is None


def test_a_parent_that_is_none(job):
    """It may have ended between its start of phalanx-run and now: nothing is begun for nobody."""
    node = job.run("--standalone", "--parent-pid=1", workload("tell.py"))
    assert node.wait() == 1
    assert "--parent-pid=1: expected the process that started phalanx-run" in node.stderr
    assert not job.found("told")


def test_a_report_goes_through_no_link(job):
    """The job is as it would be without one; what could not be written is said."""
    (job.folder / "theirs").write_text("theirs")
    (job.folder / "report").symlink_to(job.folder / "theirs")
    node = job.run("--standalone", f"--report-file={job.folder / 'report'}", workload("tell.py"))
    assert node.wait() == 0, job.story()
    assert (job.folder / "theirs").read_text() == "theirs"
    assert f"--report-file={job.folder / 'report'}: cannot be opened" in node.stderr


SPOIL = """
import glob, os
(path,) = glob.glob(os.path.join(os.environ["TMPDIR"], "phalanx-*", "report.json"))
os.remove(path)
os.mkdir(path)
"""


def test_the_callers_report_that_could_not_be_written(job):
    """The job was good, and the program that ran it goes on; --help is the script's own word here."""
    (job.folder / "spoil.py").write_text(SPOIL)
    node = call(job, str(job.folder / "spoil.py"), "--help", nproc=1)
    assert node.wait() == 0, job.story()
    event = called(job)
    assert event.get("returned", "no") is None and "raised" not in event
    assert "report.json: cannot be opened" in node.stderr


def test_a_report_of_the_callers_own(job):
    """Beside the one that main itself reads."""
    node = call(job, "--max-restarts=0", f"--report-file={job.folder / 'mine'}", "tell.py", "--exit", "7", nproc=1)
    assert node.wait() == 0, job.story()
    assert called(job)["failures"]["0"]["exitcode"] == 7
    assert report.read_report(str(job.folder / "mine")).failures[0].exit_code == 7


LONG_ERROR = """
import json, os, sys
message = {"message": "ValueError: " + "long " * 20_000, "extraInfo": {"timestamp": "1"}}  # as @record does
with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
    json.dump({"message": message}, file)
sys.exit(1)
"""
TELL_LENGTH = """
import sys
sys.modules["torch"] = None
import phalanx, phalanx.run
try:
    phalanx.run.main(sys.argv[1:])
except phalanx.ChildFailedError as error:
    print(len(error.get_first_failure()[1].message["message"]))
"""


def test_an_error_that_is_too_long_to_travel(job):
    """64 KiB of it do; the caller reads the rest where it lies."""
    (job.folder / "long.py").write_text(LONG_ERROR)
    line = ["--standalone", "--max-restarts=0", job.folder / "long.py"]
    node = job.run(*line, command=[sys.executable, "-c", TELL_LENGTH])
    assert node.wait() == 0, job.story()
    assert node.stdout == f"{len('ValueError: ') + 100_000}\n"


def test_no_room_for_a_report(tmp_path, monkeypatch):
    """Said before the job, as a failed launch."""
    monkeypatch.setattr(tempfile, "TemporaryDirectory", lambda prefix: contextlib.nullcontext(str(tmp_path / "gone")))
    with pytest.raises(errors.LaunchError, match=r"gone/report\.json, where phalanx-run leaves its report: No such"):
        process.run_node(["--version"])


def test_a_report_is_for_its_user_alone(job):
    path = job.folder / "report"
    node = job.run("--standalone", "--nproc-per-node=2", "--report-file=report", workload("tell.py"))
    assert node.wait() == 0, job.story()
    assert path.stat().st_mode & 0o777 == 0o600
    told = report.read_report(str(path))
    assert (told.script, told.restart_count, told.rank_base, told.workers) == (workload("tell.py"), 0, 0, 2)
    assert told.failures == []
