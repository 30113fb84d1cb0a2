"""Fixtures of the end-to-end tests. `--launcher=torchrun` runs the tests marked dropin against torchrun itself."""

import faulthandler
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import netns
import packages
import pytest
from checkpoint_agent import CheckpointAgent
from harness import Job, command_path
from small_disk import HangingDisk, SmallDisk, why_no_hanging_disk

# Files whose tests run in one process of pytest-xdist, and in which: they share what is slow to start.
IN_ONE_PROCESS = {
    "tests/test_bootstrap_check.py": "a zygote with torch that checks",
    "tests/test_bootstrap_torch.py": "a zygote with torch",
    "tests/test_data_megatron.py": "megatron",
    "tests/test_megatron_functions.py": "a process with megatron-core",
    "tests/test_node_check_programs.py": "two programs with torch that check",
    "tests/test_preprocess_remote.py": "spark",
    "tests/test_preprocess_spark.py": "spark",
    "tests/test_universal_checkpoint.py": "DeepSpeed",
    "tests/test_venv.py": "a Python with pip",
    "tests/test_wheel.py": "build/wheel",
}
WORKER_PROCESSES = pytest.StashKey()
OWN_STDERR = pytest.StashKey()
# Behind a test's own time limit, for its clean-up. Then its process ends, and others take the tests that are left.
GRACE_S = 120
ENDS_WITHIN_S = 60
BUDGETS = Path(__file__).resolve().parent.parent / "tools" / "suite" / "budgets.json"
# Of several nodes, and not about their silence.
PATIENT = {
    *("test_budget.py", "test_checkpoint_dcp.py", "test_checkpoint_files.py", "test_checkpoint_job.py"),
    *("test_checkpoint_leaving.py", "test_checkpoint_lent.py", "test_checkpoint_planned.py"),
    *("test_checkpoint_stock.py", "test_checkpoint_values.py"),
    *("test_elastic.py", "test_elastic_config.py", "test_exit.py", "test_failures.py", "test_garbage.py"),
    *("test_node_check.py", "test_node_check_network.py", "test_node_watch.py", "test_rescale.py", "test_signals.py"),
    "test_watch_ranks.py",
}
# What their files need, which the environments of ./run test --callers have.
CALLERS = {
    "test_fabric_checkpoint.py": ("lightning",),
    "test_framework_checkpoints.py": ("transformers", "lightning"),
    "test_frameworks.py": ("transformers", "lightning"),
    "test_huggingface_checkpoint.py": ("transformers", "peft"),
    "test_lightning_io.py": ("lightning",),
    "test_ms_swift.py": ("swift",),
}
collect_ignore = [file for file, needs in CALLERS.items() if not all(map(importlib.util.find_spec, needs))]


def pytest_addoption(parser):
    parser.addoption("--launcher", choices=["phalanx-run", "torchrun"], default="phalanx-run")
    parser.addoption("--kills", type=int, default=0, help="at random times; 0: a few, by each test's own measure")
    parser.addoption("--seed", type=int, help="of all that tests choose; not given: another one each time")
    parser.addoption("--slice", type=int, default=0, help="so many quick tests of each file, evenly spread; 0: all")
    parser.addoption("--journal", help="a file that has each test's outcome at once, should this process crash")
    parser.addoption("--long", action="store_true", help="also tests marked long")
    parser.addoption("--grace", type=float, default=GRACE_S, help="seconds behind a test's time limit to its crash")


def pytest_configure(config):
    config.stash[OWN_STDERR] = os.dup(2)  # of a test that is captured this is another one
    config.addinivalue_line("markers", "dropin: asks for nothing that torchrun does not do as well")
    config.addinivalue_line("markers", "alone: measures time or needs the machine for itself: runs behind the others")
    config.addinivalue_line("markers", "long: has seeds and minutes; runs with --long, and has a short one beside it")
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            # As shells leave it in background jobs and below nohup. Our children would inherit it, and not end by it.
            signal.signal(number, usual)
    if config.getoption("--journal") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Journal(config.getoption("--journal")))
    given = getattr(config, "workerinput", {}).get("seed", config.getoption("--seed"))
    config.option.seed = random.SystemRandom().randrange(1, 1 << 31) if given is None else given


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling  # not there under every Python of tools/torches.py

    class Scheduler(LoadScopeScheduling):
        """Gives each test to the next process that has nothing to do, and all of a group to one."""

        def _split_scope(self, nodeid):
            return IN_ONE_PROCESS.get(nodeid.partition("::")[0], nodeid)

        def schedule(self):
            """Gives a process that takes the place of another two tests, as all had at first: it begins the first only
            when it knows the next."""
            replaced = self.collection is not None
            super().schedule()
            for node in self.nodes if replaced else ():
                self._reschedule(node)

        def remove_node(self, node):
            """Deals out what a process that ended had still to do, but for the test that crashed it, which is returned.
            pytest-xdist would deal out that one, too, and what is done, behind which a process waits for ever."""
            left = self.assigned_work.pop(node)
            crashed = next((test for unit in left.values() for test, done in unit.items() if not done), None)
            if crashed is None:
                return None
            for unit in left.values():
                unit.update({crashed: True} if crashed in unit else {})
            self.workqueue.update({scope: unit for scope, unit in left.items() if not all(unit.values())})
            for other in self.assigned_work:
                self._reschedule(other)
            return crashed

    return Scheduler(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """One seed for all processes of a run of pytest-xdist."""
    node.workerinput["seed"] = node.config.option.seed


@pytest.hookimpl(optionalhook=True)
def pytest_testnodeready(node):
    node.config.stash.setdefault(WORKER_PROCESSES, []).append(node.gateway._io.popen)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_sessionfinish(session):
    """A process of pytest-xdist that crashes as it ends has failed, as it would have without pytest-xdist."""
    yield
    for process in session.config.stash.get(WORKER_PROCESSES, []):
        code = process.wait(ENDS_WITHIN_S)
        if code not in (0, -signal.SIGKILL):  # by SIGKILL pytest-xdist ends one that takes long to end
            print(f"\na process of tests ended with {code}")
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR


def arm(item):
    """Lets this process crash, with the stacks of all threads, where the test and its time limit do not end. That limit
    is a signal, for which a Python that waits in native code has no ear; this is a thread without Python."""
    marker = item.get_closest_marker("timeout")
    own_s = (marker.args[0] if marker.args else marker.kwargs.get("timeout")) if marker else None
    limit_s = own_s or item.config.getoption("timeout", None) or item.config.getini("timeout")
    if limit_s:
        passed_s = float(limit_s) + item.config.getoption("--grace")
        faulthandler.dump_traceback_later(passed_s, exit=True, file=item.config.stash[OWN_STDERR])


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    arm(item)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item):
    arm(item)  # once more: a failure ends it, so that nobody crashes in the debugger


class Journal:
    """Lines of each test's begin and outcome. With pytest-xdist the controller hears of all tests."""

    def __init__(self, path):
        self.file = open(path, "w", buffering=1)

    def pytest_runtest_logstart(self, nodeid):
        self.file.write(f"began {nodeid}\n")

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or not report.passed:
            self.file.write(f"{report.outcome} {report.nodeid}\n")


def pytest_report_header(config):
    return f"seed: --seed={config.option.seed}"


def sliced(items, count):
    """`count` quick tests of each file, the first among them and the others evenly spread; one at least of each."""
    files = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    chosen = []
    for of_file in files.values():
        together = [item for item in of_file if not item.get_closest_marker("alone")]
        quick = [item for item in together if not item.get_closest_marker("slow")] or together[:1]
        taken = min(count, len(quick))
        chosen += [quick[index * len(quick) // taken] for index in range(taken)]  # none of a file of "alone" tests
    return chosen


def pytest_collection_modifyitems(config, items):
    left = items
    if config.getoption("--launcher") == "torchrun":
        left = [item for item in left if item.get_closest_marker("dropin")]
    if not config.getoption("--long"):
        left = [item for item in left if not item.get_closest_marker("long")]
    if config.getoption("--slice"):
        left = sliced(left, config.getoption("--slice"))
    budgets_s = json.loads(BUDGETS.read_text())
    # Those that take long begin first: at the end all processes have work. The order within a file stays.
    left = sorted(left, key=lambda item: -budgets_s.get(f"tests/{item.path.name}", 0))
    kept = set(left)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = left


def pytest_collection_finish(session):
    """Threads of torch wait busily for each other: several processes of tests would take each other's processors."""
    torch = sys.modules.get("torch")
    if torch is not None and os.environ.get("PYTEST_XDIST_WORKER"):
        torch.set_num_threads(1)


@pytest.fixture
def choose(request):
    """A random.Random for what a test chooses: the same for the same --seed and test, whatever ran before."""
    seed = f"{request.config.option.seed} {request.node.nodeid}"
    print(f"--seed={request.config.option.seed}")
    return random.Random(seed)


@pytest.fixture
def launcher(request):
    name = request.config.getoption("--launcher")
    if name == "phalanx-run":
        command_path(name)  # says how to get it, where it is missing
    return name


@pytest.fixture
def small_disk(tmp_path):
    """A disk that can be filled. A test with a job asks for it before the job, whose processes end first then."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    disk = SmallDisk(tmp_path / "disk")
    yield disk
    disk.unmount()


@pytest.fixture(scope="session")
def java():
    packages.install("java")


@pytest.fixture(scope="session")
def faulty_disk(tmp_path_factory):
    """A library to be preloaded, for a disk that fails: faulty_disk.c says how."""
    path = tmp_path_factory.mktemp("faulty") / "faulty_disk.so"
    source = Path(__file__).resolve().parent / "faulty_disk.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", path, source, "-ldl"], check=True)
    return path


@pytest.fixture
def hanging_disk(tmp_path):
    """A disk that can hang. A test with a job asks for it before the job, whose processes end first then."""
    if os.geteuid() != 0:
        pytest.skip("mounting a disk that can hang needs root")
    reason = why_no_hanging_disk()
    if reason:
        pytest.skip(f"no disk that can hang: {reason}")
    disk = HangingDisk(tmp_path / "disk")
    yield disk
    disk.unmount()


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """Runs of data preparation in one JVM, which starts with the first."""
    from preparation import SparkRuns

    with SparkRuns(tmp_path_factory.mktemp("spark")) as runs:
        yield runs


@pytest.fixture
def agent():
    """The agent's end of a rank's checkpoint socket. (Tests of the bootstrap have another agent.)"""
    from phalanx._bootstrap import memory

    with CheckpointAgent() as agent:
        yield agent
        memory.forget()


@pytest.fixture
def make(agent, monkeypatch, tmp_path):
    """Makes a Checkpointer in the agent's present life; all are closed with the test."""
    from phalanx._bootstrap import memory
    from phalanx.checkpoint import Checkpointer

    made = []

    def make(kind=Checkpointer, **settings):
        monkeypatch.setenv("PHALANX_EPOCH", str(agent.epoch))
        memory.keep(agent.rank_fd)
        made.append(kind(tmp_path / "run", **settings))
        return made[-1]

    yield make
    for checkpointer in made:
        checkpointer.close()


@pytest.fixture
def make_network():
    """A function that makes a netns.Network. A test asks for it before its job, whose processes end first then."""
    reason = netns.why_not()
    if reason:
        pytest.skip(f"no networks can be made here: {reason}")
    networks = []

    def make(hosts):
        networks.append(netns.Network(hosts))
        return networks[-1]

    yield make
    for network in networks:
        network.close()


@pytest.fixture
def make_job(launcher, tmp_path, request):
    """A function that makes a job; every job ends with the test, and the test fails if one left processes behind."""
    jobs = []

    def make(network=None):
        folder = tmp_path / f"job{len(jobs)}"
        folder.mkdir()
        jobs.append(Job(folder, launcher, network))
        jobs[-1].patient = request.path.name in PATIENT
        return jobs[-1]

    yield make
    left = {job.id: job.close() for job in jobs}
    left = {job: names for job, names in left.items() if names}
    assert not left, f"processes left behind: {left}"


@pytest.fixture
def job(make_job):
    return make_job()
