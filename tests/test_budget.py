"""When a job gives up: budget, crash loops, scripts that cannot start. All nodes end alike, with the first cause."""

import re
import signal

import pytest


def attempts(folder):
    """Numbers of the attempts that left a log directory."""
    return sorted(int(path.name.removeprefix("attempt_")) for path in folder.glob("*/attempt_*"))


def test_budget_on_two_nodes(job):
    """After --max-restarts failures the next one ends the job on every node, with code 1 and the same first cause."""
    arguments = [*(f"--fault={life}:1:after_init:exit3" for life in range(3)), "--steps=3"]
    nodes = [job.node(index, "light_steps.py", *arguments, flags=["--max-restarts=1"]) for index in (0, 1)]
    assert [node.wait() for node in nodes] == [1, 1], job.story()
    assert sorted(job.lives()) == [0, 1]
    causes = [re.search(r"First cause: .*\n.*\n.*", node.stderr) for node in nodes]
    assert all(causes), job.story()
    assert causes[0][0] == causes[1][0]
    assert "rank 1" in causes[0][0]
    assert "exit code 3" in causes[0][0]


@pytest.mark.parametrize("script", ["steps.py", "light_steps.py"])
def test_first_cause_is_not_a_victim(job, script):
    """The rank that was killed is named, not the one whose all_reduce then failed with an exception: gloo's, or
    that of the sockets that stand in for it."""
    flags = ["--max-restarts=0", "--restart-grace=2"]
    node = job.standalone(script, "--steps=9", "--fault=0:1:all_reduce:kill", flags=flags)
    assert node.wait() == 1, job.story()
    cause = re.search(r"First cause: rank (\d+)[^\n]*\n[^\n]*\n  end: +([^\n]*)", node.stderr)
    assert cause, job.story()
    assert cause[1] == "1"
    assert "SIGKILL" in cause[2]


@pytest.mark.dropin
def test_no_restarts(job):
    """--max-restarts=0 means none."""
    script = "steps.py" if job.launcher == "torchrun" else "light_steps.py"
    node = job.standalone(script, "--steps=9", "--fault=0:0:first_step:kill", flags=["--max-restarts=0"])
    assert node.wait() == 1, job.story()
    assert sorted(job.lives()) == [0]


def test_crash_loop(job):
    """Without --max-restarts, two lives in a row that end without a step end the job, and it says so."""
    arguments = [f"--fault={life}:0:after_init:exception" for life in range(5)]
    node = job.standalone("light_steps.py", "--steps=9", *arguments)
    assert node.wait() == 1, job.story()
    assert sorted(job.lives()) == [0, 1]
    assert "planned exception in after_init" in node.stderr
    assert re.search(r"light_steps\.py FAILED: .*; crash loop: 2 lives in a row ended without a step\n", node.stderr)


def test_steps_between_deaths_are_no_crash_loop(job):
    """Without --max-restarts a job that steps in each life has three restarts."""
    arguments = [f"--fault={life}:0:all_reduce:kill" for life in range(4)]
    node = job.standalone("light_steps.py", "--steps=9", *arguments)
    assert node.wait() == 1, job.story()
    assert sorted(job.lives()) == [0, 1, 2, 3]


@pytest.mark.parametrize("warm", ["--warm", "--no-warm"])
@pytest.mark.parametrize("nodes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_syntax_error(job, warm, nodes):
    """A script that does not compile ends the job at once, with Python's own message and no restart."""
    script = job.folder / "broken.py"
    script.write_text("import torch\nif True\n    pass\n")
    flags = ["--max-restarts=5", warm, "--redirects=1"]
    for index in range(nodes):
        job.node(index, script, nnodes=str(nodes), flags=flags)
    for index, node in enumerate(job.nodes):
        assert node.wait() == 1, job.story()
        assert "SyntaxError: expected ':'" in node.stderr
        assert attempts(job.folder / f"logs{index}") == [0]


@pytest.mark.parametrize("warm", ["--warm", "--no-warm"])
def test_missing_script(job, warm):
    """A script that is not there ends the job at once, by name."""
    flags = ["--max-restarts=5", warm, "--redirects=1", f"--log-dir={job.folder / 'logs'}"]
    node = job.standalone(job.folder / "nowhere.py", flags=flags)
    assert node.wait() == 2, job.story()
    assert re.search(r"nowhere\.py: there is no such file", node.stderr), job.story()
    assert attempts(job.folder / "logs") in ([], [0])


def test_missing_program(job):
    """The same for --no-python."""
    flags = ["--standalone", "--max-restarts=5", "--redirects=1", f"--log-dir={job.folder / 'logs'}"]
    node = job.run(*flags, f"--state-dir={job.folder}", "--no-python", "/no/such/program")
    assert node.wait() == 1, job.story()
    assert "/no/such/program: No such file or directory" in node.stderr, job.story()
    assert attempts(job.folder / "logs") == [0], "no restart"


def test_death_by_signal_is_named(job):
    """A rank that dies of a signal is reported with the signal's name and number."""
    node = job.standalone("light_steps.py", "--steps=9", "--fault=0:1:first_step:segv", flags=["--max-restarts=0"])
    assert node.wait() == 1, job.story()
    assert f"SIGSEGV (signal {signal.SIGSEGV.value})" in node.stderr


def test_waiting_for_nodes_ends(job):
    """Below the minimum of nodes the job waits as long as join_timeout says, then ends with 1 and says why."""
    node = job.node(0, "tell.py", nnodes="2", flags=["--rdzv-conf=join_timeout=2"])
    assert node.wait() == 1, job.story()
    assert "join_timeout" in node.stderr
    assert not job.found("told")
