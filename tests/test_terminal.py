"""phalanx-run at a terminal: a debugger for one rank, colours and bars, sizes, Ctrl-C."""

import re
import termios

import pytest
from harness import workload
from terminal import Terminal

CTRL_C = "\x03"


@pytest.fixture
def shown(job):
    """A function that runs phalanx-run at a terminal."""
    terminals = []

    def run(*arguments, nproc=2):
        flags = ["--standalone", f"--nproc-per-node={nproc}", f"--state-dir={job.folder / 'state'}"]
        command = [*job.command(), *flags, *arguments]
        terminals.append(Terminal(command, {**job.environment(), "TERM": "xterm"}, job.folder))
        return terminals[-1]

    yield run
    for terminal in terminals:
        terminal.close()


@pytest.mark.parametrize("warmth", ["--warm", "--no-warm"])
def test_breakpoint_in_one_rank(shown, warmth):
    """--debug-rank=1: its debugger has the terminal, the other rank passes the same breakpoint over and reads nothing,
    and the job ends well."""
    terminal = shown("--debug-rank=1", warmth, workload("terminal.py"), "debug", "1")
    terminal.wait_text(r"\(Pdb\) ")
    terminal.type("answer * 7\n")
    terminal.wait_text(r"\n42\r")
    terminal.type("answer = 5\n")
    terminal.type("continue\n")
    assert terminal.wait_end() == 0, terminal.text
    assert "rank 1 goes on with 5" in terminal.text
    assert "rank 0 goes on with 6" in terminal.text
    assert "starts afresh" not in terminal.text and "start afresh" not in terminal.text
    assert "stdin of rank 0: ''" in terminal.text


def test_flags_for_output_and_a_debugged_rank(shown, job):
    """They hold for the others alone, and that is said: a debugger behind a file, or hidden, would be of no use."""
    logs = job.folder / "logs"
    flags = ["--debug-rank=1", "--tee=3", "--local-ranks-filter=0", f"--log-dir={logs}"]
    terminal = shown(*flags, workload("terminal.py"), "debug", "1")
    terminal.wait_text(r"\(Pdb\) ")
    terminal.type("continue\n")
    assert terminal.wait_end() == 0, terminal.text
    notice = "--tee, --local-ranks-filter: have no effect on rank 1: --debug-rank gives it the terminal itself"
    assert terminal.text.count(notice) == 1, terminal.text
    assert "[default0]:stdin of rank 0: ''" in terminal.text
    assert re.search(r"^rank 1 goes on with 6\r$", terminal.text, re.MULTILINE)
    assert [file.parent.name for file in logs.glob("*/attempt_0/*/stdout.log")] == ["0"]


def test_who_quits_the_debugger_ends_the_job(shown):
    """No restart brings the person back to where they left."""
    terminal = shown("--debug-rank=0", workload("terminal.py"), "debug", "0", nproc=1)
    terminal.wait_text(r"\(Pdb\) ")
    terminal.type("quit\n")
    assert terminal.wait_end() == 1, terminal.text
    assert terminal.text.count("(Pdb) ") == 1


def test_a_rank_that_is_not_there(shown):
    """How many workers --nproc-per-node=auto means is known late; the job goes on without a debugger."""
    terminal = shown("--nproc-per-node=auto", "--debug-rank=4000", workload("printer.py"))
    assert terminal.wait_end() == 0, terminal.text
    assert "--debug-rank=4000: nobody has the terminal, as ranks are 0 to" in terminal.text


def test_the_terminal_is_left_as_it_was(shown):
    """Line editing of a rank that is killed has changed the terminal's settings."""
    terminal = shown("--debug-rank=0", workload("terminal.py"), "debug", "0", nproc=1)
    before = termios.tcgetattr(terminal.fd)
    terminal.wait_text(r"\(Pdb\) ")
    assert termios.tcgetattr(terminal.fd) != before
    terminal.type("import os; os.system('stty -echo raw'); os.kill(os.getpid(), 9)\n")
    assert terminal.wait_end() == 1
    assert termios.tcgetattr(terminal.fd) == before


def test_colours_and_bars(shown):
    """Ranks see a terminal on stderr; what they write reaches the person as it is."""
    terminal = shown(workload("terminal.py"), "bar", nproc=1)
    assert terminal.wait_end() == 0, terminal.text
    assert "\033[32mgreen\033[0m True" in terminal.text
    assert "100%|" in terminal.text
    assert "\r 67%|" in terminal.text or "\r100%|" in terminal.text  # one line that is drawn again


def test_a_new_size_reaches_the_ranks(shown, job):
    """A bar that fits the window goes on fitting when that is resized."""
    terminal = shown(workload("terminal.py"), "size")
    job.wait_events("width", 2, columns=100)
    job.wait_events("main", 2)
    terminal.resize(30, 77)
    job.wait_events("width", 2, columns=77)
    terminal.type(CTRL_C)
    assert terminal.wait_end() == 130


def test_ctrl_c_once_and_twice(shown, job):
    """Once: every rank gets SIGINT and time to save. Twice: the end, now."""
    terminal = shown(workload("signals.py"), "save")
    job.wait_events("main", 2)
    terminal.type(CTRL_C)
    assert terminal.wait_end() == 130
    job.hear_reports()
    assert len(job.found("saved")) == 2
    terminal = shown(workload("signals.py"), "ignore")
    job.wait_events("main", 4)
    terminal.type(CTRL_C)
    terminal.wait_text("Interrupt: this node leaves the job")
    terminal.type(CTRL_C)
    assert terminal.wait_end(25) == 130
