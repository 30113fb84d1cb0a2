"""phalanx.elastic_launch(LaunchConfig, entrypoint)(*args): values, failures, what travels and what is refused."""

import json
import os
import pickle
import subprocess
import sys
from types import SimpleNamespace

import phalanx
import pytest
from harness import WORKLOADS, clean_environment
from phalanx._launch import flags, functions

# A caller is given torch's exceptions where there is a torch, at the price of importing it.
WITHOUT_TORCH = {"PHALANX_TEST_WITHOUT_TORCH": "1"}
CHILD_FAILED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError"
OWN_CHILD_FAILED = "phalanx._launch.errors.ChildFailedError"


def launch(job, way, *arguments, env=None, command=None):
    """What the program told of the launch."""
    command = command or [sys.executable, str(WORKLOADS / "functions.py")]
    node = job.run(way, *arguments, command=command, env=env)
    assert node.wait() == 0, job.story()
    return job.wait_events("launched")[0], node


def test_values_of_a_function_of_main(job):
    """By global rank; arguments of classes of __main__ travel, ${local_rank} is filled in; torch is not needed."""
    event, _ = launch(job, "values")
    assert event["values"] == {
        "0": [0, 0, [1, "rank of 0", "x", None]],
        "1": [1, 0, [1, "rank of 1", "x", None]],
    }
    assert not event["torch"]


def test_a_module_as_main(job):
    event, _ = launch(job, "values", command=[sys.executable, "-m", "functions"], env={"PYTHONPATH": WORKLOADS})
    assert sorted(event["values"]) == ["0", "1"]


def test_values_of_the_last_life(job):
    event, _ = launch(job, "restart")
    assert event["values"] == {"0": 1, "1": 1}


def test_large_values(job):
    event, _ = launch(job, "large")
    assert event["values"] == {"0": 64 << 20, "1": 64 << 20}


def test_an_exception_is_recorded(job):
    """As by torch's @record, which need not be there."""
    event, _ = launch(job, "raise")
    assert (event["kind"], event["name"], event["first"]) == (CHILD_FAILED, "raise_error", 1)
    assert event["message"]["message"] == "KeyError: 'the planned error'"
    stack = event["message"]["extraInfo"]["py_callstack"]
    assert "in raise_error" in stack and "_launch" not in stack
    assert int(event["message"]["extraInfo"]["timestamp"]) > 1_700_000_000


@pytest.mark.parametrize(("way", "values"), [("exit-0", {"0": None, "1": None}), ("exit-3", None)])
def test_sys_exit_in_a_function(job, way, values):
    event, _ = launch(job, way, env=WITHOUT_TORCH)
    assert event.get("values") == values
    assert event.get("exitcode") == (None if values else 3)


def test_closures_travel_by_cloudpickle(job):
    event, _ = launch(job, "closure")
    assert event["values"] == {"0": [0, "sent by value"], "1": [1, "sent by value"]}


@pytest.mark.parametrize(
    ("way", "text"),
    [
        ("closure-without-cloudpickle", "with cloudpickle installed"),
        ("argument", "elastic_launch cannot send echo"),
        ("unpicklable", "rank 1: what the function returned cannot be pickled: TypeError"),
    ],
)
def test_what_cannot_travel(job, way, text):
    """One sentence, nothing hangs; and no restart for a value that would be the same again."""
    event, node = launch(job, way, env=WITHOUT_TORCH)
    assert event["kind"] == "PicklingError"
    assert text in event["text"]
    assert "restart 1" not in node.stderr


def test_a_rank_that_returns_nothing(job):
    event, _ = launch(job, "leave", env=WITHOUT_TORCH)
    assert event["kind"] == "RuntimeError"
    assert event["text"].startswith("rank 1 ended with 0 and returned nothing")


def test_nobody_else_can_read_a_call(job):
    event, _ = launch(job, "where")
    mode, modes = event["values"]["0"]
    assert mode == 0o700
    assert set(modes.values()) == {0o600} and "call.pickle" in modes
    assert not list(job.folder.glob("phalanx-*")), "folders are left behind"


@pytest.mark.parametrize(("where", "mode"), [("folder", 0o755), ("file", 0o622)])
def test_a_call_that_others_could_have_written_is_not_unpickled(tmp_path, where, mode):
    trace = tmp_path / "unpickled"

    class Trap:
        def __reduce__(self):
            return (open, (str(trace), "w"))

    folder = tmp_path / "call"
    folder.mkdir(mode=0o700)
    functions.write_private(str(folder / functions.CALL), pickle.dumps(Trap()))
    command = [sys.executable, functions.WORKER_FILE, str(folder)]
    trapped = subprocess.run(command, capture_output=True)
    assert trapped.returncode == 1 and trace.exists()  # what the checks are for
    trace.unlink()
    (folder if where == "folder" else folder / functions.CALL).chmod(mode)
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment())
    assert done.returncode == 1
    assert ("0700" if where == "folder" else "no call of this user") in done.stderr
    assert not trace.exists()


def test_launching_while_main_is_imported(job):
    """A main module without its guard would launch itself for ever."""
    script = job.folder / "unguarded.py"
    script.write_text(
        "import phalanx\n\ndef f():\n    pass\n\n"
        "phalanx.elastic_launch(phalanx.LaunchConfig(1, 1, 1, max_restarts=0), f)()\n"
    )
    node = job.run(command=[sys.executable, str(script)])
    assert node.wait() == 1
    assert 'Expected the call below if __name__ == "__main__":' in node.stderr


@pytest.mark.parametrize(("way", "argument"), [("script", str(WORKLOADS / "tell.py")), ("module", "tell")])
def test_python_commands_are_scripts(job, way, argument):
    """What torchrun itself makes of a script starts as phalanx-run's own scripts do: warm, where they can."""
    event, _ = launch(job, way, argument, env={"PYTHONPATH": WORKLOADS})
    assert event["values"] == {"0": None, "1": None}
    told = job.wait_events("told", 2)
    assert {tuple(one["argv"][1:]) for one in told} == {("--a", "b") if way == "script" else ("--a",)}
    assert all(one["name"] == "__main__" for one in told)


def test_programs(job):
    event, node = launch(job, "program")
    assert event["values"] == {"0": None, "1": None}
    assert node.stdout == "hihi"


def test_a_program_that_fails(job):
    event, _ = launch(job, "program-fails", env=WITHOUT_TORCH)
    assert (event["kind"], event["name"], event["exitcode"]) == (OWN_CHILD_FAILED, "/bin/false", 1)


def test_torch_config(job):
    """torch's LaunchConfig and DefaultLogsSpecs as they are."""
    logs = job.folder / "logs"
    event, _ = launch(job, "torch", str(logs))
    assert event["values"] == {"0": ["own", "0", "trainer"], "1": ["own", "0", "trainer"]}
    assert list(logs.glob("own_*/attempt_0/1/stdout.log")) and not list(logs.glob("own_*/attempt_0/0/stdout.log"))


def test_refused_by_phalanx_run(job):
    event, node = launch(job, "etcd", env=WITHOUT_TORCH)
    assert event["kind"] == "UsageError" and "--rdzv-backend=etcd" in event["text"]
    assert "needs no etcd" in node.stderr


def test_a_field_without_effect_is_said_once(job):
    _, node = launch(job, "metrics")
    assert node.stderr.count("LaunchConfig.metrics_cfg has no effect") == 1


def test_pet_variables_do_not_count(job):
    """torch's Python interface does not look at them."""
    event, _ = launch(job, "pet", env={"PET_NO_PYTHON": "1", "PET_MAX_RESTARTS": "7", "PET_NPROC_PER_NODE": "5"})
    assert sorted(event["values"]) == ["0", "1"]


@pytest.mark.slow
def test_workers_start_warm(job):
    """What the caller's main module uses is imported once, before the workers are forked."""
    event, _ = launch(job, "warm")
    assert event["values"] == [{"0": True, "1": True}] * 2


def test_the_function_is_named(job):
    """In events and in the failure box, not the file that calls it."""
    _, node = launch(job, "events")
    events = [json.loads(line) for line in node.stderr.splitlines() if line.startswith("{")]
    assert {json.loads(event["metadata"]["metadata"])["entry_point"] for event in events} == {"echo"}
    _, node = launch(job, "raise", env=WITHOUT_TORCH)
    assert "raise_error FAILED" in node.stderr and "function_worker.py FAILED" not in node.stderr


def test_a_function_without_a_name(job):
    """What stands for its name may be long, and have lines."""
    event, _ = launch(job, "odd-name")
    assert sorted(event["values"]) == ["0", "1"]


def test_libraries_are_imported_ahead_of_time(job):
    """By a flag, which nobody inherits; a variable that the caller was given stays as it is, spaces and all."""
    event, _ = launch(job, "preload")
    assert event["values"] == {"0": [None, True], "1": [None, True]}
    own = "json , cloudpickle"
    node = job.run("preload", command=[sys.executable, str(WORKLOADS / "functions.py")], env={"PHALANX_PRELOAD": own})
    assert node.wait() == 0, job.story()
    assert job.wait_events("launched", 2)[1]["values"] == {"0": [own, True], "1": [own, True]}


def test_a_report_that_could_not_be_written(job):
    """The values are in nobody's hands then; the caller goes on, with a sentence."""
    event, node = launch(job, "spoil", env=WITHOUT_TORCH)
    assert event["kind"] == "LaunchError"
    assert "has ended well, but which ranks ran here is not known" in event["text"]
    assert "report.json: cannot be opened" in node.stderr


def test_a_node_that_ends_as_a_spare(job):
    """The job was good; this caller's node had no rank in it."""
    fifo = job.folder / "fifo"
    os.mkfifo(fifo)
    for index in (0, 1):
        command = [sys.executable, str(WORKLOADS / "functions.py"), "one-of-two", str(index), str(job.port), str(fifo)]
        node = job.run(command=command, env={"XDG_STATE_HOME": job.folder / f"state{index}"})
        if index == 0:
            job.wait_events("main")
        else:
            node.wait_line("this node waits as a spare")
    fifo.write_text("done")
    assert [node.wait() for node in job.nodes] == [0, 0], job.story()
    values = [event["values"] for event in job.wait_events("launched", 2)]
    assert sorted(values, key=len) == [{}, {"0": "done"}]


def test_two_nodes(job):
    """Each caller gets the values of its own ranks; each made its own call."""
    for index in (0, 1):
        command = [sys.executable, str(WORKLOADS / "functions.py"), "node", str(index), str(job.port)]
        job.run(command=command, env={"XDG_STATE_HOME": job.folder / f"state{index}"})
    assert [node.wait() for node in job.nodes] == [0, 0], job.story()
    values = [event["values"] for event in job.wait_events("launched", 2)]
    together = {rank: value for one in values for rank, value in one.items()}
    assert sorted(together) == ["0", "1", "2", "3"]
    assert all(len({value[2][0] for value in one.values()}) == 1 for one in values), "of one caller each"


# --- flags, by table


def config(**fields):
    return phalanx.LaunchConfig(**{"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 2, "run_id": "j", **fields})


USUAL = [
    *("--nnodes=1:1", "--nproc-per-node=2", "--role=default_role", "--max-restarts=3"),
    *("--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT", "--rdzv-backend=c10d", "--rdzv-id=j"),
    "--rdzv-endpoint=localhost:0",
]


@pytest.mark.parametrize(
    ("fields", "more"),
    [
        ({}, []),
        ({"shutdown_timeout": 30}, []),  # torch's own default, which is no wish
        ({"shutdown_timeout": 0}, ["--shutdown-timeout=0"]),
        ({"shutdown_timeout": 5}, ["--shutdown-timeout=5"]),
        ({"monitor_interval": 0.1, "start_method": "spawn"}, []),
        ({"start_method": "fork"}, ["--start-method=fork"]),
        ({"event_log_handler": "console"}, ["--event-log-handler=console"]),
        ({"rdzv_configs": {"timeout": 900, "is_host": True}}, ["--rdzv-conf=timeout=900,is_host=True"]),
        ({"rdzv_timeout": 7}, ["--rdzv-conf=timeout=7"]),
        ({"duplicate_stdout_filters": ["a,b", "c"]}, ["--duplicate-stdout-filters=a,,b,c"]),
        ({"virtual_local_rank": True}, ["--virtual-local-rank"]),
        ({"local_addr": "node1"}, ["--local-addr=node1"]),
        ({"numa_options": SimpleNamespace(affinity_mode=SimpleNamespace(value="node"))}, ["--numa-binding=node"]),
        ({"logs_specs": phalanx.LogsSpecs("/logs", 3, {0: 1, 11: 2}, {1, 0})}, [
            *("--log-dir=/logs", "--redirects=3", "--tee=0:1,11:2", "--local-ranks-filter=0,1"),
        ]),
    ],
)  # fmt: skip
def test_flags_of_a_config(fields, more):
    assert sorted(flags.from_config(config(**fields), {})) == sorted([*USUAL, *more])


def test_a_static_rendezvous():
    fields = {"rdzv_backend": "static", "rdzv_endpoint": "node1:29501", "rdzv_configs": {"rank": 1}}
    found = flags.from_config(config(**fields, max_nodes=2), {})
    assert {"--rdzv-backend=static", "--rdzv-endpoint=node1:29501", "--node-rank=1"} <= set(found)
    assert not any(flag.startswith("--rdzv-conf") for flag in found)


def test_the_words_of_a_function():
    assert flags.from_function("train", ["numpy", "torch"], ["w.py", "/f"]) == [
        *("--script-name=train", "--preload=numpy,torch", "--", "w.py", "/f")
    ]
    assert flags.from_function("", [], ["w.py"]) == ["--", "w.py"]
    assert flags.from_function("a\nb" * 100, [], [])[0] == "--script-name=" + "a?b" * 20


def test_what_cannot_be_said_is_refused_by_name():
    with pytest.raises(ValueError, match=r"rdzv_configs\['a'\] = 'b,c'"):
        flags.from_config(config(rdzv_configs={"a": "b,c"}), {})
    with pytest.raises(ValueError, match="logs_specs = SimpleNamespace"):
        flags.from_config(config(logs_specs=SimpleNamespace()), {})
    with pytest.raises(ValueError, match="health_check_server"):
        phalanx.elastic_launch(config(), print, health_check_server=object())
    with pytest.raises(ValueError, match="entrypoint=None"):
        phalanx.elastic_launch(config(), None)()


@pytest.mark.parametrize(
    ("entrypoint", "arguments", "words"),
    [
        ("/py", ["-u", "x.py", "-u", 1], ["--", "x.py", "-u", "1"]),
        ("/py", ["-u", "-m", "x", "--", "a"], ["--module", "--", "x", "--", "a"]),
        ("/py", ["x.py"], ["--no-python", "--", "/py", "x.py"]),  # not -u: the interpreter is asked for as it is
        ("/py", ["-u", "-c", "pass"], ["--no-python", "--", "/py", "-u", "-c", "pass"]),
        ("python", ["x.py"], ["--no-python", "--", "python", "x.py"]),
    ],
)
def test_words_of_a_command(entrypoint, arguments, words):
    assert flags.from_command(entrypoint, arguments, {"/py"}) == words
