"""Workers that end by themselves: 0 on all ranks ends the job with 0, at once; one failure is a failure."""

import subprocess
import time

import pytest
from harness import command_path


@pytest.mark.dropin
def test_all_ranks_end_with_0(job):
    """The job ends as soon as the last rank has, without a barrier or a delay."""
    nodes = [job.node(index, "endings.py", "1:0.5:0", nproc=2) for index in (0, 1)]
    assert [node.wait() for node in nodes] == [0, 0], job.story()
    last = max(event["t"] for event in job.found("end"))
    assert time.monotonic() - last < 20  # seconds; torchrun's exit barrier waits for 300
    assert len(job.found("end", life=0)) == 4


@pytest.mark.parametrize("plan", ["1:0.5:4", "0:0.5:4"])
def test_some_0_and_one_failed(job, plan):
    """Ranks that had ended with 0 do not make a failed job good, whichever node fails and however late."""
    nodes = [job.node(index, "endings.py", plan, flags=["--max-restarts=0"]) for index in (0, 1)]
    assert [node.wait() for node in nodes] == [1, 1], job.story()


def test_ranks_that_had_ended_start_again(job):
    """A failure after other ranks ended with 0 starts all of them again while the budget lasts."""
    nodes = [job.node(index, "endings.py", "1:0.5:4", flags=["--max-restarts=1"]) for index in (0, 1)]
    assert [node.wait() for node in nodes] == [0, 0], job.story()
    assert {life: sorted(ranks) for life, ranks in job.lives().items()} == {0: [0, 1], 1: [0, 1]}


def test_training_ends_with_0(job):
    """A real training that ends by itself on two nodes."""
    nodes = [job.node(index, "light_steps.py", "--steps=5") for index in (0, 1)]
    assert [node.wait() for node in nodes] == [0, 0], job.story()
    assert sorted(event["rank"] for event in job.found("done")) == [0, 1]
    assert time.monotonic() - max(event["t"] for event in job.found("done")) < 20


@pytest.mark.parametrize("warmth", ["--warm", "--no-warm"])
def test_a_module_that_cannot_begin_has_one_life(job, warmth):
    """Another life would say the same. One that is not there at all is wrong usage: tests/test_first_hour.py."""
    (job.folder / "broken.py").write_text("def broken(:\n")
    flags = ["--standalone", "--nproc-per-node=1", f"--state-dir={job.folder / 'state'}", warmth]
    node = job.run(*flags, "-m", "broken", cwd=job.folder)
    assert node.wait() == 1
    assert "the script could not be started: rank 0 failed (exit code 1)" in node.stderr
    assert "SyntaxError" in node.stderr


@pytest.mark.parametrize("warmth", ["--warm", "--no-warm"])
def test_a_closed_stdin_is_nobodys_descriptor(tmp_path, warmth):
    """Its number is given to what is opened next: in phalanx-run itself, and each rank would inherit that."""
    script = tmp_path / "looks.py"
    script.write_text("import os\nprint(os.readlink('/proc/self/fd/0'))\n")
    flags = ["--standalone", warmth, f"--state-dir={tmp_path / 'state'}"]
    command = ["sh", "-c", 'exec "$@" <&-', "sh", command_path("phalanx-run"), *flags, script]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "/dev/null\n"), done.stderr
