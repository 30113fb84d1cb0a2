"""Signals to phalanx-run: workers get them and have time, the node leaves cleanly, user signals pass through."""

import os
import shlex
import signal
import sys
import time

import pytest
from harness import descends_from, name_of, wait_ends, workload

EXIT = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 129}


def start(job, mode, flags=(), nproc=2):
    node = job.standalone("signals.py", mode, nproc=nproc, flags=flags)
    job.wait_events("main", nproc)
    return node


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_workers_get_the_signal(job, number):
    """SIGTERM, SIGINT and SIGHUP reach every worker as they are; the exit code is 128 + signal."""
    node = start(job, "end")
    node.signal(number)
    assert node.wait() == EXIT[number], job.story()
    assert sorted((event["rank"], event["signal"]) for event in job.found("signal")) == [(0, number), (1, number)]


def test_workers_have_time_to_save(job):
    """A worker that takes a second to save is waited for: that is what --stop-timeout (30 s) is for."""
    node = start(job, "save")
    node.signal(signal.SIGTERM)
    assert node.wait() == 143, job.story()
    assert len(job.found("saved")) == 2


@pytest.mark.parametrize("flag", ["--stop-timeout=1", "--shutdown-timeout=1"])
def test_stop_timeout(job, flag):
    """Workers that ignore SIGTERM are killed when the time is over, not before."""
    node = start(job, "ignore", flags=[flag])
    began = time.monotonic()
    node.signal(signal.SIGTERM)
    assert node.wait() == 143, job.story()
    assert 0.9 < time.monotonic() - began < 25  # seconds; without the flag it is 30


def test_workers_that_do_not_catch_end_at_once(job):
    """No grace is waited for where nobody would use it."""
    node = start(job, "default")
    began = time.monotonic()
    node.signal(signal.SIGTERM)
    assert node.wait() == 143, job.story()
    assert time.monotonic() - began < 25  # seconds; the grace is 30


def test_second_signal_ends_at_once(job):
    """Who asks twice does not want to wait for --stop-timeout."""
    node = start(job, "ignore")
    node.signal(signal.SIGINT)
    job.wait_events("signal", 2)
    node.signal(signal.SIGINT)
    assert node.wait(25) == 130, job.story()


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_user_signals_are_passed_on(job, number):
    """SIGUSR1 and SIGUSR2 reach the workers, and the job goes on."""
    node = start(job, "end")
    node.signal(number)
    job.wait_events("signal", 2, signal=number)
    node.signal(number)
    job.wait_events("signal", 4, signal=number)
    node.signal(signal.SIGTERM)
    assert node.wait() == 143, job.story()


def test_user_signals_do_not_end_workers_that_do_not_catch_them(job):
    """SIGUSR1 is passed on only to ranks that catch it; its default action would end a rank for a question."""
    node = job.standalone("light_steps.py")
    job.wait_stepping(life=0, world=2)
    node.signal(signal.SIGUSR1)
    reached = max(event["n"] for event in job.found("step"))

    def step_on(_):
        return {event["rank"] for event in job.found("step") if event["n"] > reached + 20} == {0, 1}

    job.wait(step_on, "steps behind the signal")
    node.signal(signal.SIGTERM)
    assert node.wait() == 143, job.story()
    assert sorted(job.lives()) == [0]


def test_signals_to_handle(job):
    """--signals-to-handle chooses what is passed on as a stop: SIGUSR2 ends the job then, and SIGTERM as ever kills."""
    node = start(job, "ignore", flags=["--signals-to-handle=SIGUSR2"])
    node.signal(signal.SIGUSR2)
    job.wait_events("signal", 2, signal=signal.SIGUSR2)
    node.signal(signal.SIGUSR2)  # the second one ends a job at once
    assert node.wait(20) == 128 + signal.SIGUSR2, job.story()
    killed = job.standalone("light_steps.py", flags=["--signals-to-handle=SIGUSR2"])
    job.wait_stepping(life=0, world=2)
    killed.signal(signal.SIGTERM)
    assert killed.wait() == -signal.SIGTERM, job.story()


def test_one_node_of_a_fixed_job_leaves(job):
    """SIGTERM to one of two nodes of --nnodes=2: its worker may save, it leaves, the other waits for a new one."""
    nodes = [job.node(index, "signals.py", "save") for index in (0, 1)]
    mains = job.wait_events("main", 2)
    (own,) = [event["pid"] for event in mains if descends_from(event["pid"], nodes[1].pid)]
    nodes[1].signal(signal.SIGTERM)
    assert nodes[1].wait() == 143, job.story()
    assert len(job.found("saved", pid=own)) == 1
    nodes[0].wait_line("wait")
    job.node(1, "signals.py", "save")
    job.wait_events("main", 2, life=1)
    for node in (nodes[0], job.nodes[2]):
        node.signal(signal.SIGTERM)
    assert [nodes[0].wait(), job.nodes[2].wait()] == [143, 143], job.story()


@pytest.mark.parametrize("wrapper", ["shell", "python"])
def test_a_wrapper_does_not_cut_its_script_short(job, wrapper):
    """What catches the signal may stand behind something that does not: the whole group has the time."""
    script = job.folder / "wrapper"
    behind = [sys.executable, workload("signals.py"), "save"]
    if wrapper == "shell":
        script.write_text("#!/bin/sh\n" + shlex.join(behind) + "\n")
    else:
        script.write_text(f"#!{sys.executable}\nimport subprocess\nsubprocess.run({behind})\n")
    script.chmod(0o755)
    node = job.standalone(script, flags=["--no-python"])
    job.wait_events("main", 2)
    node.signal(signal.SIGTERM)
    assert node.wait() == 143, job.story()
    assert len(job.found("saved")) == 2


def test_hangup_of_a_job_that_nohup_started(job):
    """The end of its terminal is not the job's."""
    command = ["sh", "-c", 'trap "" HUP; exec "$0" "$@"', *job.command()]
    node = job.run("--standalone", workload("signals.py"), "save", command=command)
    job.wait_events("main")
    node.signal(signal.SIGHUP)
    node.signal(signal.SIGUSR1)  # served behind it
    job.wait_events("signal", signal=signal.SIGUSR1)
    assert not job.found("signal", signal=signal.SIGHUP)
    node.signal(signal.SIGTERM)
    assert node.wait() == 143, job.story()


def test_a_job_that_is_stopped_goes_on(job):
    """Ctrl-Z: ranks stand still with their launcher, for longer than a lease, and go on with it."""
    node = job.standalone("light_steps.py")
    job.wait_stepping(life=0, world=2)
    node.signal(signal.SIGTSTP)
    os.waitid(os.P_PID, node.pid, os.WSTOPPED | os.WNOWAIT)
    job.hear_reports()
    before = len(job.found("step"))
    masters = [pid for pid in job.processes() if "phalanx-master" in name_of(pid)]
    watched = {*masters, *job.lives()[0].values()}
    assert set(wait_ends(watched, 4)) == watched  # neither a rank nor the master ends, though a lease is 3 s
    job.hear_reports()
    steps = len(job.found("step"))
    assert steps - before <= 2, "each rank may have been about to tell of a step"
    node.signal(signal.SIGCONT)
    job.wait(lambda _: len(job.found("step")) > steps, "steps")
    job.stop()
    assert node.wait() == 0, job.story()
    assert set(job.lives()) == {0}
