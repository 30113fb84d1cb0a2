"""What a new user stumbles over first: each test goes the way that one went, and holds the answer to one screen."""

import json
import os
import re
import subprocess

import pytest
from harness import command_path


def run(job, name, text, *flags, env=None):
    """A script with this text, and the job of one node that runs it; it has ended."""
    script = job.folder / name
    script.write_text(text)
    flags = ["--standalone", "--nproc-per-node=2", f"--state-dir={job.folder / 'state'}", *flags]
    node = job.run(*flags, str(script), cwd=job.folder, env=env)
    node.wait()
    return node


def headline(node):
    (line,) = [line for line in node.stderr.splitlines() if " FAILED: " in line]
    return line


@pytest.mark.parametrize("script", ["nothere.py", "train.py/nothere.py"])
def test_a_script_that_is_not_there(job, script):
    """Before anything starts: no master, no state directory."""
    (job.folder / "train.py").write_text("")
    node = job.run("--standalone", f"--state-dir={job.folder / 'state'}", script, cwd=job.folder)
    assert node.wait() == 2
    assert node.stderr.startswith(f"phalanx-run: error: {script}: there is no such file: ")
    assert len(node.stderr.splitlines()) == 1
    assert not (job.folder / "state").exists()


def test_an_endpoint_where_nobody_is(job):
    """One line after 2 s: where, what the kernel says, and for how long it is tried."""
    flags = ["--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{job.port}", "--rdzv-conf=is_host=0", "--rdzv-id=x"]
    script = job.folder / "x.py"
    script.write_text("")
    node = job.run(*flags, f"--state-dir={job.folder / 'state'}", str(script))
    line = node.wait_line("no answer from the master")
    wanted = (
        f"no answer from the master at 127.0.0.1:{job.port} for 2 s (Connection refused); dialling on, for up to 600 s"
    )
    assert wanted in line
    job.killed_by_test = True
    node.process.terminate()
    node.wait()


def test_the_exception_stands_in_the_headline(job):
    """Of the box, of the record, and of the reason of a restart."""
    text = (
        "import os, phalanx\n"
        "print('loading')\n"
        "phalanx.step(1)\n"
        "if os.environ['RANK'] == '1':\n"
        "    raise ValueError('bad sample in shard 17')\n"
        "import time; time.sleep(60)\n"
    )
    node = run(job, "raises.py", text, "--max-restarts=1")
    assert "rank 1 failed (exit code 1) on node " in headline(node)
    assert ": ValueError: bad sample in shard 17; --max-restarts=1 is used up" in headline(node)
    state = f"--state-dir={job.folder / 'state'}"
    assert "ValueError: bad sample in shard 17" in job.phalanx("why", state).stdout
    assert "ValueError: bad sample in shard 17, restart 1 of 1" in job.phalanx("events", state).stdout
    assert "ValueError: bad sample in shard 17" in job.phalanx("status", state).stdout
    assert "ValueError: bad sample in shard 17" in job.phalanx("ledger", state).stdout


def test_a_rank_that_ends_early_is_the_first_cause(job):
    """It ended with 0, and the others were lost by that."""
    text = (
        "import sys, phalanx, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "for step in range(1, 10):\n"
        "    dist.all_reduce(torch.ones(2))\n"
        "    phalanx.step(step)\n"
        "    if step == 3 and dist.get_rank() == 1:\n"
        "        sys.exit(0)\n"
    )
    node = run(job, "early.py", text, "--max-restarts=0")
    assert "early.py FAILED: rank 1 ended early (exit code 0, after step 3) on node " in headline(node)
    assert ", then rank 0 failed (exit code 1) on node " in headline(node)
    assert "Then: rank 0 " in node.stderr
    assert "First cause: rank 1 " in node.stderr
    why = job.phalanx("why", f"--state-dir={job.folder / 'state'}").stdout
    assert re.search("^first cause: rank 1 ended well ", why, re.MULTILINE)


@pytest.mark.slow
def test_a_hang_is_told_within_seconds(job):
    """A rank sleeps where others step; a line says so on the console, in status, in the record and in the ledger."""
    text = (
        "import sys, time, phalanx, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "for step in range(1, 90):\n"
        "    dist.all_reduce(torch.ones(2))\n"
        "    phalanx.step(step)\n"
        "    time.sleep(0.2)\n"
        "    if step == 80 and dist.get_rank() == 1:\n"
        "        time.sleep(18)\n"
    )
    script = job.folder / "hangs.py"
    script.write_text(text)
    state = f"--state-dir={job.folder / 'state'}"
    node = job.run("--standalone", "--nproc-per-node=2", state, str(script), cwd=job.folder)
    line = node.wait_line("no step for 1[2-7]")
    assert "at step 80" in line and "usually within" in line
    assert "; no step for " in job.phalanx("status", state).stdout
    node.wait_line("steps go on, after ")
    assert node.wait() == 0
    stalled = json.loads(job.phalanx("ledger", state, "--json").stdout)["causes"]["stalled_ms"]
    assert 12_000 <= stalled < 60_000
    kinds = [json.loads(row)["kind"] for row in job.phalanx("events", state, "--json").stdout.splitlines()]
    assert [kind for kind in kinds if kind in ("stalled", "stall-over")] == ["stalled", "stall-over"]


def test_an_error_of_each_life_ends_the_job_soon(job):
    """A missing import: two lives, not more, and the name of what is missing in the headline."""
    node = run(job, "imports.py", "import nothing_there\n")
    assert node.wait() == 1
    assert "ModuleNotFoundError: No module named 'nothing_there'; crash loop: 2 lives" in headline(node)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["statu"], "statu: no such command; did you mean status? They are status, "),
        (["ckpt", "resuce"], "ckpt resuce: no such command; did you mean rescue? They are ls, "),
        (["xyzzy"], "xyzzy: no such command. They are status, "),
    ],
)
def test_a_command_with_a_letter_wrong(words, said):
    done = subprocess.run([command_path("phalanx"), *words], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"phalanx: {said}")
    assert len(done.stderr.splitlines()) == 1


def test_what_jobs_there_are(job):
    state = job.folder / "state"
    assert "no job in" in job.phalanx("jobs", f"--state-dir={state}").stderr
    run(job, "ends.py", "")
    run(job, "fails.py", "raise SystemExit(3)", "--max-restarts=0")
    node = job.standalone("light_steps.py", flags=[])
    job.wait(lambda _: len(job.found("step")) > 2, "steps")
    listed = json.loads(job.phalanx("jobs", f"--state-dir={state}", "--json").stdout)
    assert [(entry["phase"], entry["exit_code"], entry["live"]) for entry in listed] == [
        ("running", 0, True),
        ("finished", 1, False),
        ("finished", 0, False),
    ]
    assert (listed[0]["nodes"], listed[0]["world_size"]) == (1, 2)
    assert all(os.path.isdir(entry["folder"]) for entry in listed)
    table = job.phalanx("jobs", f"--state-dir={state}").stdout.splitlines()
    assert len(table) == 4
    assert table[0].split() == ["JOB", "STATE", "BEGAN", "FOR", "NODES", "WORLD", "STEP", "FOLDER"]
    job.stop()
    assert node.wait() == 0


def test_memory_that_an_earlier_job_left_is_told_where_it_matters(job):
    """A job of another directory hears nothing of it; one of the same hears of the step, and how to keep it."""
    folder = job.folder / "run"
    job.killed_by_test = True
    first = job.standalone("saving.py", str(folder), nproc=1)
    job.wait(lambda _: len(job.found("step")) > 12, "saves in memory")
    job.kill_all()
    first.process.wait()
    other = job.standalone("saving.py", str(job.folder / "another"), "--steps=4", nproc=1)
    assert other.wait() == 0, job.story()
    assert "left" not in other.stderr
    again = job.standalone("saving.py", str(folder), "--steps=4", nproc=1)
    assert again.wait() == 0, job.story()
    found = re.search(r"left step (\d+) of (\S+) in memory; .*`phalanx ckpt discard (\S+)` frees it", again.stderr)
    assert found, again.stderr
    assert int(found[1]) > 0 and found[2] == str(folder)
    job.phalanx("ckpt", "discard", found[3])
