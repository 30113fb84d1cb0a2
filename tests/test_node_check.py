"""Nodes are checked before they train: real agents, real checks. What the helper does by itself is in
test_node_check_programs.py; who is blamed for what, in src/master/rules/suspects_test.cc and core/checks_test.cc."""

import json
import os
import re
import signal
import subprocess
import textwrap

import pytest
from harness import PATIENCE_S, command_path, is_running, name_of, stat_fields, wait_ends
from node_check_agent import Told

GATHER = "--rdzv-conf=last_call_timeout=60"  # all are checked together, however slowly they come
CHECK = ("--network-check", "--check-timeout=20", GATHER)
TRAIN = "light_steps.py"


@pytest.fixture
def program(tmp_path):
    """A function that writes a check program of that name, and returns its flag."""

    def write(name, body):
        path = tmp_path / name
        path.write_text("#!/usr/bin/env python3\nimport json, os, subprocess, sys, time\n" + textwrap.dedent(body))
        path.chmod(0o755)
        return f"--check-program={path}"

    return write


def ask(job, *words):
    """What phalanx answers where the master is: at one address of this machine any node may host it."""
    (hosts,) = {record.parent.parent for record in job.folder.glob("state*/*/events.db")}
    return job.phalanx(*words, f"--state-dir={hosts}").stdout


def verdict(node, timeout_s=PATIENCE_S):
    """The line about the check that every node says."""
    return node.wait_line(r"node check: ", timeout_s=timeout_s)


def test_good_nodes_train_when_they_have_been_checked(job):
    nodes = [job.node(index, TRAIN, nnodes="3", flags=CHECK) for index in range(3)]
    life = job.wait_world(3)
    line = verdict(nodes[2])
    # A third round where a loaded machine let one look slow, or fail, in the second.
    assert re.search(r"node check: 3 nodes, [23] rounds, \d+\.\d s: all good", line), line
    assert life == 0
    checked = json.loads(ask(job, "status", "--check", "--json"))["check"]
    assert [node["verdict"] for node in checked["nodes"]] == ["good"] * 3
    measured = {value["name"] for node in checked["nodes"] for result in node["results"] for value in result["values"]}
    assert {"matmul_time", "memory_bandwidth", "all_reduce_time"} <= measured
    assert all(pair["passed"] for pair in checked["pairs"]) and len(checked["pairs"]) >= 2
    text = ask(job, "status", "--check")
    assert "matmul_time" in text and re.search(r"127\.0\.0\.\d - 127\.0\.0\.\d +passed", text), text
    job.stop()
    assert [node.wait() for node in nodes] == [0] * 3, job.story()


def test_a_node_that_fails_its_check_is_left_out(job, program):
    bad = program("bad_disk", 'print(json.dumps({"passed": False, "sentence": "sector 7 is gone"}))')
    nodes = [job.node(index, TRAIN, nnodes="2:3", flags=[*CHECK, *([bad] if index == 1 else [])]) for index in range(3)]
    job.wait_world(2)
    line = verdict(nodes[0])
    assert "127.0.0.2 failed (bad_disk: sector 7 is gone): left out, 2 train" in line, line
    nodes[1].wait_line("this node is left out for 600 s: bad_disk: sector 7 is gone")
    status = ask(job, "status")
    assert "left out" in status and "sector 7 is gone" in status
    job.stop()
    assert [nodes[0].wait(), nodes[2].wait()] == [0, 0], job.story()


def test_a_check_that_hangs_is_ended_with_all_that_it_has_started(job, program, tmp_path):
    pids = tmp_path / "pids"
    hangs = program(
        "hangs",
        f"""
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        with open({str(pids)!r}, "w") as file:
            file.write(f"{{os.getpid()}} {{child.pid}}")
        time.sleep(1000)
        """,
    )
    flags = ["--network-check", "--check-timeout=20", GATHER]
    nodes = [
        job.node(index, TRAIN, nnodes="2:3", flags=[*flags, *([hangs] if index == 2 else [])]) for index in range(3)
    ]
    job.wait_world(2)
    ended = r"127\.0\.0\.3 failed \(ended after [\d.]+ s \(--check-timeout\) in hangs"
    assert re.search(ended, verdict(nodes[0])), job.story()
    assert not [pid for pid in map(int, pids.read_text().split()) if is_running(pid)]
    job.stop()
    assert [nodes[0].wait(), nodes[1].wait()] == [0, 0], job.story()


@pytest.mark.parametrize("excluded", [False, True])
def test_a_slow_node_is_named_and_left_out_where_that_is_asked_for(job, program, excluded):
    def takes(name, microseconds):
        value = {"name": "probe_time", "unit": "us", "value": microseconds, "better": "less"}
        return program(name, f"print(json.dumps({{'passed': True, 'sentence': '', 'values': [{value!r}]}}))")

    flags = [*CHECK, *(["--exclude-straggler"] if excluded else [])]
    speed = [takes("probe", 60_000), takes("slow_probe", 900_000), takes("probe", 60_000)]
    nodes = [job.node(index, TRAIN, nnodes="2:3", flags=[*flags, speed[index]]) for index in range(3)]
    job.wait_world(2 if excluded else 3)
    line = verdict(nodes[0])
    assert re.search(r"127\.0\.0\.2 slow \(\d+\.\d x the mean of the others: \d+ ms, most of it probe_time\)", line), (
        line
    )
    assert ("left out, 2 train" in line) == excluded
    job.stop()
    assert nodes[0].wait() == 0, job.story()


def test_a_newcomer_is_checked_before_it_is_taken_in(job, program):
    good = program("fine", 'print(json.dumps({"passed": True, "sentence": ""}))')
    bad = program("broken", "sys.exit(3)")
    flags = CHECK[:-1]
    first = job.node(0, TRAIN, nnodes="1:3", flags=[*flags, good])
    job.wait_world(1)
    late = job.node(1, TRAIN, nnodes="1:3", flags=[*flags, bad])
    late.wait_line("this node is left out for 600 s: broken")
    job.node(2, TRAIN, nnodes="1:3", flags=[*flags, good])
    job.wait_world(2, after=0)
    job.stop()
    assert first.wait() == 0, job.story()


def test_a_master_that_is_started_anew_remembers_who_is_left_out(job, program):
    bad = program("broken", "sys.exit(3)")
    nodes = [job.node(index, TRAIN, nnodes="1:2", flags=[*CHECK, *([bad] if index == 1 else [])]) for index in range(2)]
    job.wait_world(1)
    nodes[1].wait_line("this node is left out for 600 s")
    (master,) = [pid for pid in job.processes() if "phalanx-master" in name_of(pid)]
    subprocess.run(["kill", "-KILL", str(master)], check=True)
    nodes[1].wait_line(r"this node is left out for [1-5]\d\d s")
    checked = json.loads(ask(job, "status", "--check", "--json"))["check"]
    assert {node["verdict"] for node in checked["nodes"]} == {"good", "failed"}, checked
    job.stop()
    assert nodes[0].wait() == 0, job.story()


def test_all_nodes_together(job):
    nodes = [job.node(index, TRAIN, nnodes="3", flags=["--comm-perf-test"]) for index in range(3)]
    job.wait_world(3)
    assert "all good" in verdict(nodes[1]), job.story()
    checked = json.loads(ask(job, "status", "--check", "--json"))["check"]
    measured = {value["name"] for node in checked["nodes"] for result in node["results"] for value in result["values"]}
    assert "all_reduce_bandwidth" in measured
    job.stop()
    assert [node.wait() for node in nodes] == [0] * 3, job.story()


@pytest.mark.slow
def test_a_node_whose_network_is_dead_is_named_and_its_partner_is_not(make_network, make_job):
    """It reaches the master, and no other node."""
    network = make_network(4)
    job = make_job(network)
    job.endpoint_host = network.address(0)
    flags = ["--network-check", "--check-timeout=12", GATHER]
    nodes = [job.node(0, TRAIN, nnodes="3:4", flags=flags)]
    for rule in (
        ["pref", "10", "ipproto", "tcp", "dport", str(job.port), "lookup", "main"],
        ["pref", "20", "to", "10.77.0.0/16", "blackhole"],
    ):
        subprocess.run(["ip", "-n", network.host(2), "rule", "add", *rule], check=True)
    nodes += [job.node(index, TRAIN, nnodes="3:4", flags=flags) for index in range(1, 4)]
    job.wait_world(3)
    line = verdict(nodes[0])
    assert "10.77.2.2 failed (with " in line and ": left out, 3 train" in line, line
    assert line.count("failed") == 1, line
    job.stop()
    assert [nodes[index].wait() for index in (0, 1, 3)] == [0, 0, 0], job.story()


@pytest.mark.parametrize(("broken", "code"), [(False, 0), (True, 1)])
def test_a_check_without_a_job(job, program, broken, code):
    bad = program("broken", "sys.exit(3)")
    words = ["check", "--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{job.port}", "--rdzv-backend=c10d"]
    asked = []
    for index in range(2):
        more = [f"--local-addr=127.0.0.{index + 1}", *([bad] if broken and index == 1 else [])]
        asked.append(job.run(*words, *more, command=[command_path("phalanx")], name=f"check{index}"))
    assert [one.wait() for one in asked] == [code, code], job.story()
    # On a machine that does much else one of two may be slow; that fails no check.
    assert re.search("left out" if broken else "all good| slow ", verdict(asked[0])), verdict(asked[0])
    # What was measured is told when all is over, too.
    (hosts,) = {record.parent.parent for record in job.folder.glob("xdg-state/**/events.db")}
    told = job.phalanx("events", f"--state-dir={hosts}").stdout
    assert told.count("memory_bandwidth") == 2, told
    job.killed_by_test = True


def test_the_guides_switchbox_lines(job, tmp_path):
    figures = tmp_path / "figures.json"
    figures.write_text(json.dumps({"0:1": 12_000, "2:4": 11_000, "3:5": 300, "6:7": 0}))
    guide = ["--network-check", "--switchbox-check", "--box-pairs", "0:1", "2:4", "3:5", "6:7"]
    flags = [*guide, "--min-bandwidth", "10000", f"--switchbox-source=file:{figures}"]
    good = job.node(0, TRAIN, nnodes="1", flags=[*flags, "--min-channels", "2"])
    job.wait_world(1)
    assert "all good" in verdict(good)
    job.stop()
    assert good.wait() == 0, job.story()


def test_a_switchbox_without_gpus_is_no_pass(job):
    node = job.node(0, TRAIN, nnodes="1", flags=["--network-check", "--switchbox-check", "--rdzv-conf=join_timeout=2"])
    line = verdict(node)
    assert "switchbox" in line and "left out, 0 train" in line, line
    assert node.wait() == 1, job.story()


def test_ctrl_c_ends_a_check(job, program, tmp_path):
    hangs = program("hangs", "time.sleep(1000)")
    node = job.node(0, TRAIN, nnodes="1", flags=["--network-check", hangs])
    node.wait_line("checking 1 node before it trains")
    node.signal(signal.SIGINT)
    assert node.wait() == 130, job.story()


# --- what checks is a fork of the zygote


PATIENT = ("--network-check", GATHER)  # on a machine that does much else a zygote imports for long
WITH_TORCH = "import torch\nprint('began', flush=True)\n"
# Of stat_fields: when it was started, and where its stack begins. A fork has its parent's, a program that was executed
# another.
STARTED, STACK = 19, 25
NO_FORK = "explain: the program that checks is no fork of the zygote"


class Held:
    """A check program that waits until it is let go. `flag`: names it."""

    def __init__(self, folder, program):
        self.told, self._gate = Told(str(folder / "told")), str(folder / "gate")
        os.mkfifo(self._gate)
        body = f"""
            with open({self.told.path!r}, "w") as told:
                told.write(f"{{os.getpid()}}\\n")
            open({self._gate!r}).read()
            print(json.dumps({{"passed": True, "sentence": ""}}))
        """
        self.flag = program("held", body)

    def await_run(self):
        os.close(self.told.pidfd())

    def let_go(self):
        open(self._gate, "w").close()


@pytest.fixture
def held(tmp_path, program):
    held = Held(tmp_path, program)
    yield held
    held.told.close()


def script(folder, text=WITH_TORCH, others=()):
    """In a folder of its own, beside modules of these names that are not what their names say."""
    place = folder / "script"
    place.mkdir()
    for name in others:
        (place / f"{name}.py").write_text("raise SystemExit('a module of the script')\n")
    (place / "train.py").write_text(text)
    return place / "train.py"


def children_named(job, node, name):
    """Pids of a node's children whose commands have that in them, those first that were started first."""
    pids = [pid for pid in job.processes(node) if name in name_of(pid) and int(stat_fields(pid)[1]) == node.pid]
    return sorted(pids, key=lambda pid: int(stat_fields(pid)[STARTED]))


def helper_of(job, node):
    (pid,) = children_named(job, node, "phalanx.node_check")
    return pid


def is_forked(job, node, pid):
    zygotes = children_named(job, node, "/zygote.py")
    return any(stat_fields(pid)[STACK] == stat_fields(zygote)[STACK] for zygote in zygotes)


def test_what_checks_a_node_is_a_fork_of_its_zygote(job, held, tmp_path):
    path = script(tmp_path, others=["helper", "loading", "texts"])
    node = job.node(0, path, nnodes="1", flags=[*PATIENT, held.flag])
    held.await_run()
    helper = helper_of(job, node)
    assert is_forked(job, node, helper), job.story()
    held.let_go()
    assert "all good" in verdict(node)
    assert node.wait() == 0, job.story()
    assert not is_running(helper)
    assert "warm start is off" not in node.stderr, job.story()


@pytest.mark.parametrize(
    ("text", "flags", "others"),
    [
        (WITH_TORCH, ["--no-warm"], []),
        (f"# phalanx: cold\n{WITH_TORCH}", [], []),
        ("print('began', flush=True)\n", [], []),
        (WITH_TORCH, [], ["json"]),
    ],
    ids=["no warm", "asks for cold", "without torch", "own json"],
)
def test_where_the_zygote_has_no_torch_it_is_a_program_of_its_own(job, held, tmp_path, text, flags, others):
    node = job.node(0, script(tmp_path, text, others), nnodes="1", flags=[*PATIENT, *flags, held.flag])
    held.await_run()
    assert not is_forked(job, node, helper_of(job, node)), job.story()
    held.let_go()
    assert "all good" in verdict(node), job.story()
    job.killed_by_test = True


@pytest.fixture
def slow_library(tmp_path):
    """An environment with a library `slow`, at which a zygote is long enough to be met there."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "slow.py").write_text("import time\ntime.sleep(6)\n")
    return {"PYTHONPATH": folder}


def test_a_zygote_that_does_not_come_to_its_end_costs_no_check(job, held, tmp_path, slow_library):
    flags = ["--network-check", "--check-timeout=20", held.flag]
    node = job.node(0, script(tmp_path, f"import slow\n{WITH_TORCH}"), nnodes="1", flags=flags, env=slow_library)
    node.wait_line("checking 1 node before it trains")
    (zygote,) = children_named(job, node, "/zygote.py")
    os.kill(zygote, signal.SIGSTOP)
    held.await_run()
    assert not is_forked(job, node, helper_of(job, node)), job.story()
    held.let_go()
    assert "all good" in verdict(node), job.story()
    os.kill(zygote, signal.SIGCONT)
    assert node.wait() == 0, job.story()


@pytest.mark.parametrize("when", ["while it imports", "while its fork checks"])
def test_the_end_of_a_zygote_costs_no_check(job, held, tmp_path, slow_library, when):
    path = script(tmp_path, f"import slow\n{WITH_TORCH}")
    node = job.node(0, path, nnodes="1", flags=[*PATIENT, held.flag], env=slow_library)
    node.wait_line("checking 1 node before it trains")
    if when == "while it imports":
        os.kill(children_named(job, node, "/zygote.py")[0], signal.SIGKILL)
    held.await_run()
    helper = helper_of(job, node)
    assert is_forked(job, node, helper), job.story()
    if when == "while its fork checks":
        os.kill(children_named(job, node, "/zygote.py")[0], signal.SIGKILL)
    held.let_go()
    assert "all good" in verdict(node), job.story()
    assert node.wait() == 0, job.story()


def test_the_next_order_has_another_fork_where_the_first_was_killed(job, held, tmp_path):
    path = script(tmp_path)
    nodes = [
        job.node(0, path, nnodes="2", flags=[*PATIENT, "--explain"]),
        job.node(1, path, nnodes="2", flags=[*PATIENT, held.flag]),
    ]
    held.await_run()  # and the other waits for what this one finds
    nodes[0].wait_line("report 6 results of part 1")
    first = helper_of(job, nodes[0])
    os.kill(first, signal.SIGKILL)
    wait_ends([first], 10)
    held.let_go()
    assert "all good" in verdict(nodes[0]), job.story()
    said = nodes[0].stderr
    assert said.count("-> start the program that checks") == 2 and NO_FORK not in said, job.story()
    assert [node.wait() for node in nodes] == [0, 0], job.story()
