"""A node's hardware is watched while it trains: real agents, a tree like /sys, and an NVML of fake_nvml.c. What is a
fact, and what explains an end, is in src/agent/watch/*_test.cc; what the master does with it, in src/master/core."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from harness import WORKLOADS, descends_from, is_running, name_of, wait_ends

TRAIN = "light_steps.py"
PORT = "class/infiniband/mlx5_0/ports/1"


class Machine:
    """A tree like /sys, and GPUs."""

    def __init__(self, folder, library):
        self.sysfs, self.nvml, self.library = folder / "sys", folder / "nvml", library
        self.nvml.mkdir()
        self.write("class/net/lo/carrier_changes", "0")

    def write(self, name, text):
        path = self.sysfs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")  # in its place: the agent has it open

    def add_gpus(self, count):
        (self.sysfs / "module/nvidia").mkdir(parents=True)
        (self.nvml / "gpus").write_text(f"{count}")
        os.mkfifo(self.nvml / "events")
        self._events = os.open(self.nvml / "events", os.O_RDWR)

    def raise_xids(self, *xids):
        """[(gpu, number)]: as a driver tells of them."""
        for gpu, number in xids:
            os.write(self._events, f"{gpu} {number}\n".encode())

    def add_port(self):
        self.write(f"{PORT}/state", "4: ACTIVE")
        self.write(f"{PORT}/counters/link_downed", 7)
        self.write(f"{PORT}/counters/symbol_error", 1000)

    @property
    def env(self):
        return {"PHALANX_SYSFS_ROOT": self.sysfs, "FAKE_NVML": self.nvml, "LD_LIBRARY_PATH": self.library}


def build_library(folder, *flags):
    command = ["cc", "-shared", "-fPIC", "-O2", "-Wl,-soname,libnvidia-ml.so.1", "-o", folder / "libnvidia-ml.so.1"]
    subprocess.run([*command, *flags, WORKLOADS.parent / "fake_nvml.c"], check=True)
    return folder


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def machine(tmp_path, library):
    return Machine(tmp_path, library)


def start(job, machine, *flags, nproc=2, script=TRAIN):
    return job.standalone(script, nproc=nproc, flags=["--watch=0.2", "--no-warm", *flags], env=machine.env)


def helper_of(job, node):
    """The process that asks NVML."""
    return [pid for pid in job.processes() if "phalanx.node_watch" in name_of(pid) and descends_from(pid, node.pid)]


def facts(job, **fields):
    told = job.phalanx("events", "--json", f"--state-dir={job.folder / 'state'}").stdout
    rows = [json.loads(line) for line in told.splitlines()]
    rows = [row for row in rows if row["kind"] == "node-fact"]
    return [row for row in rows if all(row["detail"].get(name) == value for name, value in fields.items())]


def kill_rank(job, rank, life=0):
    os.kill(job.pid(rank, life), signal.SIGKILL)


def test_a_death_after_an_xid_is_blamed_on_it(job, machine):
    """In the failure box, the report for programs, the reason, the record and `phalanx why`."""
    machine.add_gpus(8)
    report = job.folder / "report.json"
    node = start(job, machine, "--max-restarts=0", f"--report-file={report}")
    job.wait_stepping(0, 2)
    job.wait(lambda _: helper_of(job, node), "the helper")
    machine.raise_xids((3, 79))
    line = node.wait_line("XID 79")
    assert line == "phalanx-run: XID 79 on GPU 3: GPU has fallen off the bus (NVML)\n"
    kill_rank(job, 1)
    assert node.wait() == 1, job.story()
    box = node.stderr[node.stderr.index("First cause: rank 1") :]
    blame = r"XID 79 \(GPU has fallen off the bus\) on GPU 3, \d+\.\d s before"
    assert re.search(f"\n  blame: {blame}\n", box), job.story()
    after = r"rank 1 died \(SIGKILL\) on node \S+, \d+\.\d s after XID 79 \(GPU has fallen off the bus\) on GPU 3"
    assert re.search(f"FAILED: {after}", node.stderr), job.story()
    assert re.fullmatch(blame, json.loads(report.read_text())["failures"][0]["blamed_on"])
    assert re.search(after, job.phalanx("why", f"--state-dir={job.folder / 'state'}").stdout)
    (fact,) = facts(job, kind="xid")
    assert fact["reason"] == "XID 79 on GPU 3: GPU has fallen off the bus"
    assert fact["detail"]["device"] == "GPU 3" and fact["detail"]["grave"] == 1 and fact["detail"]["source"] == "NVML"
    exited = job.phalanx("events", "--json", f"--state-dir={job.folder / 'state'}").stdout
    assert re.search(f'"blamed_on": ?"{blame}"', exited)


def test_it_is_named_where_the_job_begins_again(job, machine):
    machine.add_gpus(1)
    node = start(job, machine, "--max-restarts=1")
    job.wait_stepping(0, 2)
    machine.raise_xids((0, 94))
    node.wait_line("XID 94")
    kill_rank(job, 0)
    node.wait_line(r"s after XID 94 \(contained uncorrectable ECC error\) on GPU 0, restart 1 of 1")
    job.wait_stepping(1, 2)
    assert helper_of(job, node), "it outlives a round"
    job.stop()
    assert node.wait() == 0, job.story()


def test_an_xid_of_the_programs_own_explains_nothing(job, machine):
    machine.add_gpus(1)
    node = start(job, machine, "--max-restarts=0")
    job.wait_stepping(0, 2)
    machine.raise_xids((0, 31), (0, 43))
    job.wait(lambda _: len(facts(job, kind="xid")) == 2, "both in the record")
    kill_rank(job, 1)
    assert node.wait() == 1, job.story()
    assert "blame" not in node.stderr and "XID" not in node.stderr


def test_a_flood_of_xids_is_told_few_times(job, machine):
    machine.add_gpus(2)
    node = start(job, machine, "--max-restarts=0")
    job.wait_stepping(0, 2)
    machine.raise_xids(*[(1, 74)] * 5000)
    node.wait_line("XID 74 on GPU 1: NVLink error, [0-9]{4} times by now")
    assert len(re.findall("XID 74", node.stderr)) <= 13, job.story()
    assert len(facts(job, kind="xid")) <= 13
    job.stop()
    assert node.wait() == 0, job.story()


@pytest.mark.alone  # a reading at a death is waited for for 200 ms
def test_a_link_that_goes_down_at_the_time_of_a_death(job, machine):
    """The reading that a death brings about finds it; the base line is old, and no fact."""
    machine.add_port()
    node = job.standalone(TRAIN, flags=["--watch=600", "--no-warm", "--max-restarts=0"], env=machine.env)
    job.wait_stepping(0, 2)
    machine.write(f"{PORT}/counters/link_downed", 8)
    machine.write(f"{PORT}/state", "1: DOWN")
    kill_rank(job, 0)
    assert node.wait() == 1, job.story()
    assert re.search(
        r"\n  blame: .*down.* on mlx5_0 port 1, at most \d+\.\d s before\n",
        node.stderr[node.stderr.index("First cause: rank 0") :],
    ), job.story()
    assert re.search(r"phalanx-run: a link that is down on mlx5_0 port 1: .*/ports/1/state\)\n", node.stderr)


def test_a_link_that_flaps_and_counters_that_are_reset(job, machine):
    machine.add_port()
    node = start(job, machine)
    job.wait_stepping(0, 2)
    for times in range(1, 9):
        machine.write(f"{PORT}/state", "1: DOWN")
        machine.write(f"{PORT}/counters/link_downed", 7 + times)
        wait_told(job, node, sum(amount <= times for amount in (1, 2, 4, 8)))
        machine.write(f"{PORT}/state", "4: ACTIVE")
    machine.write(f"{PORT}/counters/symbol_error", 0)
    machine.write(f"{PORT}/counters/link_downed", 7 + 16)
    wait_told(job, node, 5)  # so the reset was read
    machine.write(f"{PORT}/counters/symbol_error", 50)
    machine.write(f"{PORT}/counters/link_downed", 7 + 32)
    wait_told(job, node, 6)
    job.stop()
    assert node.wait() == 0, job.story()
    assert len(re.findall("times that the link went", node.stderr)) == 6, job.story()
    assert all("symbol" not in fact["reason"] for fact in facts(job))


def wait_told(job, node, lines):
    job.wait(lambda _: len(re.findall("times that the link went", node.stderr)) >= lines, f"{lines} lines")


def test_what_gpus_count_is_read(job, machine):
    machine.add_gpus(2)
    (machine.nvml / "1.ecc").write_text("5")
    (machine.nvml / "1.slowed").write_text("0")
    (machine.nvml / "0.remap_failed").write_text("0")
    node = start(job, machine, "--max-restarts=0")
    job.wait_stepping(0, 2)
    job.wait(lambda _: helper_of(job, node), "the helper")
    # A reading is the base line; which one has been taken nobody is told, so the counter goes on until it is.
    count = 5
    deadline = time.monotonic() + 120
    while "uncorrectable ECC errors on GPU 1" not in node.stderr:
        count += 1
        (machine.nvml / "1.ecc").write_text(f"{count}")
        node.process.poll()
        assert time.monotonic() < deadline, job.story()
        job.wait_events("step", len(job.found("step")) + 4)
    (machine.nvml / "1.slowed").write_text("64")
    (machine.nvml / "0.remap_failed").write_text("1")
    node.wait_line("a failed row remapping on GPU 0")
    job.wait(lambda _: facts(job, kind="throttling", device="GPU 1"), "what holds for two readings")
    job.stop()
    assert node.wait() == 0, job.story()


def test_a_driver_that_hangs_holds_nothing_up(job, machine):
    machine.add_gpus(1)
    (machine.nvml / "hang").touch()
    node = start(job, machine, "--max-restarts=1")
    job.wait_stepping(0, 2)
    node.wait_line(r"NVML has not answered for \d+ s")
    kill_rank(job, 1)
    job.wait_stepping(1, 2)
    (helper,) = helper_of(job, node)
    job.stop()
    began = time.monotonic()
    assert node.wait() == 0, job.story()
    assert time.monotonic() - began < 25
    assert not wait_ends([helper], 60)


def test_a_file_that_hangs_stops_only_the_watch(job, machine):
    machine.write("devices/system/cpu/cpu0/thermal_throttle/package_throttle_count", 0)
    (machine.sysfs / "devices/system/cpu/cpu0/topology").mkdir()
    os.mkfifo(machine.sysfs / "devices/system/cpu/cpu0/topology/physical_package_id")
    node = start(job, machine, "--max-restarts=1")
    job.wait_stepping(0, 2)
    node.wait_line(r"has not answered for \d+ s: what the kernel counts is not watched till it does")
    kill_rank(job, 1)
    job.wait_stepping(1, 2)
    job.stop()
    assert node.wait() == 0, job.story()
    assert node.stderr.count("has not answered") == 1


def test_an_agent_that_stood_still_blames_no_driver_for_it(job, machine):
    machine.add_gpus(1)
    node = start(job, machine, "--watch=0.8")
    job.wait_stepping(0, 2)
    job.wait(lambda _: helper_of(job, node), "the helper")
    node.signal(signal.SIGSTOP)
    time.sleep(10)  # longer than what makes a driver late
    node.signal(signal.SIGCONT)
    steps = len(job.found("step"))
    job.wait_events("step", steps + 20)
    machine.raise_xids((0, 79))
    node.wait_line("XID 79")
    job.stop()
    assert node.wait() == 0, job.story()
    assert "NVML has not answered" not in node.stderr, job.story()


class Helper:
    """The helper alone, with an end of its stdin that this test holds. docs/formats/node-watch.md has its lines."""

    def __init__(self, machine, every_ms=100):
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", "phalanx.node_watch", f"{every_ms}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **machine.env},
        )

    def line(self, start, within=10_000):
        """The next line that begins so."""
        for _ in range(within):
            line = self.process.stdout.readline()
            assert line, "it has ended"
            if line.startswith(start):
                return line.rstrip("\n")
        raise AssertionError(f"no {start!r} among {within} lines")

    def end(self):
        self.process.stdin.close()
        rest = self.process.stdout.read()
        assert self.process.wait() == 0
        return rest


def test_behind_a_lost_gpu_the_others_xids_are_heard(machine):
    machine.add_gpus(3)
    helper = Helper(machine)
    assert helper.line("gpus") == "gpus 3 events"
    helper.line("read")
    (machine.nvml / "1.lost").touch()
    helper.line("value 1 gpu_lost 1")
    machine.raise_xids((2, 79))
    assert helper.line("xid") == "xid 2 79 1"
    assert "deaf" not in helper.end()


def test_a_driver_that_fails_to_tell_of_xids_is_said_to_be_deaf_once(machine):
    machine.add_gpus(2)
    helper = Helper(machine)
    helper.line("read")
    (machine.nvml / "deaf").touch()
    assert helper.line("deaf") == "deaf nvmlEventSetWait_v2 answers 999"
    helper.line("read")
    helper.line("read")
    assert "deaf" not in helper.end()


def test_where_all_gpus_are_lost_nothing_is_listened_to(machine):
    machine.add_gpus(1)
    helper = Helper(machine)
    helper.line("read")
    (machine.nvml / "0.lost").touch()
    assert helper.line("deaf") == "deaf no GPU takes nvmlDeviceRegisterEvents"
    helper.line("value 0 gpu_lost 1")
    helper.end()


def test_a_driver_that_cannot_wait_for_events_announces_none(machine, tmp_path):
    machine.library = build_library(tmp_path, "-DWITHOUT_WAIT")
    machine.add_gpus(2)
    helper = Helper(machine)
    assert helper.line("gpus") == "gpus 2 -"
    helper.line("read")
    helper.end()


def test_people_are_told_that_xids_are_heard_no_more(job, machine):
    machine.add_gpus(1)
    (machine.nvml / "deaf").touch()
    node = start(job, machine)
    node.wait_line(r"XIDs are heard no more \(nvmlEventSetWait_v2 answers 999\); counters of GPUs are watched alone")
    job.stop()
    assert node.wait() == 0, job.story()


def test_the_helper_ends_with_its_agent(job, machine):
    machine.add_gpus(1)
    node = start(job, machine)
    job.killed_by_test = True
    job.wait_stepping(0, 2)
    (helper,) = job.wait(lambda _: helper_of(job, node), "the helper")
    node.signal(signal.SIGKILL)
    assert not wait_ends([helper], 60)


def test_a_helper_that_dies_is_told_of(job, machine):
    machine.add_gpus(1)
    node = start(job, machine, "--watch=2")
    job.wait_stepping(0, 2)
    (helper,) = job.wait(lambda _: helper_of(job, node), "the helper")
    os.kill(helper, signal.SIGKILL)
    node.wait_line("GPUs are not watched: the program that asks NVML has ended: SIGKILL")
    job.stop()
    assert node.wait() == 0, job.story()


def test_a_driver_without_its_library_is_told_of(job, machine):
    (machine.sysfs / "module/nvidia").mkdir(parents=True)
    node = job.standalone(TRAIN, flags=["--no-warm"], env={"PHALANX_SYSFS_ROOT": machine.sysfs})
    node.wait_line("GPUs are not watched: libnvidia-ml.so.1: cannot open shared object file")
    job.stop()
    assert node.wait() == 0, job.story()


@pytest.mark.alone  # the same
@pytest.mark.parametrize("flag", ["--watch=on", "--watch=off"])
def test_without_a_driver_nothing_is_started_or_said(job, machine, flag):
    machine.add_port()
    node = job.standalone(TRAIN, flags=[flag, "--no-warm", "--max-restarts=0"], env=machine.env)
    job.wait_stepping(0, 2)
    assert not helper_of(job, node)
    machine.write(f"{PORT}/counters/link_downed", 8)
    kill_rank(job, 0)
    assert node.wait() == 1, job.story()
    assert "not watched" not in node.stderr
    assert ("  blame: " in node.stderr) == (flag == "--watch=on"), job.story()


def test_a_node_that_is_to_blame_is_checked_before_it_trains_again(job, machine):
    machine.add_gpus(1)
    flags = ["--network-check", "--check-timeout=20", "--watch=0.2", "--no-warm", "--rdzv-conf=last_call_timeout=60"]
    nodes = [job.node(index, TRAIN, flags=flags, env=machine.env if index == 1 else None) for index in range(2)]
    job.wait_world(2)
    life = job.found("step")[-1]["life"]
    machine.raise_xids((0, 79))
    nodes[1].wait_line("XID 79")
    kill_rank(job, rank_on(job, nodes[1], life), life)
    nodes[0].wait_line("its hardware explains a failure: it is checked first")
    job.wait(lambda _: len(re.findall("node check: 2 nodes", nodes[0].stderr)) == 2, "the second check")
    job.wait_world(2, after=life)
    job.stop()
    assert [node.wait() for node in nodes] == [0, 0], job.story()


def rank_on(job, node, life):
    return next(rank for rank, pid in job.lives()[life].items() if is_running(pid) and descends_from(pid, node.pid))
