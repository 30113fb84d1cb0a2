"""What a new user stumbles over first: each test goes the way that one went, and holds the answer to one screen."""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
import zipfile
from pathlib import Path

import pytest
from harness import PATIENCE_S, command_path


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
        rf"no answer from the master at 127\.0\.0\.1:{job.port} for \d+ s \(Connection refused\); "
        "dialling on, for up to 600 s"
    )
    assert re.search(wanted, line)
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
    assert len(re.findall(r"rank 0 \(local rank 0 of ", node.stderr)) == 1
    assert re.search(
        r"^First cause: rank 1 .*\n.*\n  end:   exit code 0, pid \d+, after step 3$", node.stderr, re.MULTILINE
    )
    why = job.phalanx("why", f"--state-dir={job.folder / 'state'}").stdout
    (cause,) = re.findall(
        r"^first cause: (rank 1 ended early \(exit code 0, after step 3\) on node \S+) ", why, re.MULTILINE
    )
    assert cause in headline(node)
    assert "ended well" not in why


@pytest.mark.slow
def test_a_hang_is_told_within_seconds(job):
    """A rank sleeps at step 20 of steps of 0.02 s, of which no beat but the first has told; a line says so on the
    console, in status, in the record and in the ledger."""
    text = (
        "import os, time, phalanx, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "for step in range(1, 90):\n"
        "    dist.all_reduce(torch.ones(2))\n"
        "    phalanx.step(step)\n"
        "    time.sleep(0.02)\n"
        "    while step == 20 and dist.get_rank() == 1 and not os.path.exists('go on'):\n"
        "        time.sleep(0.05)\n"
    )
    script = job.folder / "hangs.py"
    script.write_text(text)
    state = f"--state-dir={job.folder / 'state'}"
    node = job.run("--standalone", "--nproc-per-node=2", state, str(script), cwd=job.folder)
    line = node.wait_line(r"no step for \d\d")
    assert float(re.search(r"no step for ([\d.]+) s", line)[1]) < 150 and line.rstrip().endswith(
        "all ranks are at step 20"
    )
    assert "; no step for " in job.phalanx("status", state).stdout
    why = job.phalanx("why", state).stdout
    assert re.match(
        r"no step since .*, for 0:0\d:\d\d: no step for \d\d\S* s: all ranks are at step 20\n\nepoch 1",
        why,
    )
    (job.folder / "go on").touch()
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
    assert "ModuleNotFoundError: No module named 'nothing_there'; the same error twice, at " in headline(node)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["statu"], "statu: no such command; did you mean status? They are status, "),
        (["ckpt", "resuce"], "ckpt resuce: no such command; did you mean rescue? They are ls, "),
        (["rescue"], "rescue: no such command; did you mean ckpt rescue? They are status, "),
        (["xyzzy"], "xyzzy: no such command. They are status, "),
        (["status", "--maste=a:1"], "status --maste: no such flag; did you mean --master? They are --help, "),
        (["ckpt", "rescue", "/x", "--too", "/y"], "ckpt rescue --too: no such flag; did you mean --to? They are "),
        (["data", "merge", "a", "b", "--xyzzy"], "data merge --xyzzy: no such flag. They are --help, "),
        (["--verson"], "--verson: no such flag; did you mean --version? They are --help, --version"),
    ],
)
def test_a_word_with_a_letter_wrong(words, said):
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
    assert [entry.get("ended_unix_ms", 0) >= entry["started_unix_ms"] for entry in listed] == [False, True, True]
    assert [entry["nodes"] for entry in listed] == [1, 1, 1]
    table = job.phalanx("jobs", f"--state-dir={state}").stdout.splitlines()
    assert len(table) == 4
    assert [bool(re.search(r" 0:00:\d\d  1  ", row)) for row in table[2:]] == [True, True]
    assert table[0].split() == ["JOB", "STATE", "BEGAN", "FOR", "NODES", "WORLD", "STEP", "FOLDER"]
    job.stop()
    assert node.wait() == 0


def test_a_job_that_was_stopped_is_no_failure(job):
    state = f"--state-dir={job.folder / 'state'}"
    node = job.standalone("light_steps.py", flags=[])
    job.wait(lambda _: len(job.found("step")) > 2, "steps")
    node.signal(signal.SIGINT)
    assert node.wait() == 130
    assert re.search(r" stopped \(SIGINT\) +\S+ \S+ +0:00:\d\d  1 ", job.phalanx("jobs", state).stdout)


def test_a_job_whose_only_node_was_killed_waits_for_nobody(job):
    """`phalanx status` says since when nobody serves it, and which step still lies in memory."""
    folder = job.folder / "run"
    job.killed_by_test = True
    node = job.standalone("saving.py", str(folder), nproc=1)
    job.wait(lambda _: len(job.found("step")) > 12, "saves in memory")
    state = f"--state-dir={job.folder / 'state'}"
    node.process.kill()
    node.process.wait()
    end = time.monotonic() + PATIENCE_S
    while "nobody serves it since " not in (told := job.phalanx("status", state).stdout):
        assert time.monotonic() < end, told
    assert re.search(
        r"^nobody serves it since 20\S+ \S+: the master ends: its last agent has gone$", told, re.MULTILINE
    )
    assert "\nits last decision, which nobody carries out any more: " in told
    found = re.search(
        r"^step (\d+) of (\S+) still lies in this machine's memory: `phalanx ckpt rescue (\S+) ", told, re.M
    )
    assert found, told
    assert int(found[1]) > 0 and found[2] == str(folder)
    (left,) = json.loads(job.phalanx("status", "--json", state).stdout)["in_memory"]
    assert (left["step"], left["folder"]) == (int(found[1]), found[3])
    job.phalanx("ckpt", "discard", found[3])


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


SAVES = """
import sys, time, torch, torch.distributed as dist
from phalanx.checkpoint import Storage
from phalanx.checkpoint.ddp import Checkpointer

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
checkpointer = Checkpointer(sys.argv[1])
_, done = checkpointer.load()
sys.stdout.write(f"resumed at {done}\\n")
state = {"model": model, "optimizer": optimizer}
for step in range(done, int(sys.argv[2])):
    optimizer.zero_grad()
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    if step == done:
        checkpointer.prepare(state)
    checkpointer.save(step + 1, state, storage=Storage.MEMORY)
    sys.stdout.write(f"step {step + 1}\\n")
    sys.stdout.flush()
    time.sleep(float(sys.argv[3]))
"""


class Saving:
    """Runs of a script that saves each step to memory alone."""

    def __init__(self, job):
        self.job = job
        self.run_dir = job.folder / "run"
        self.script = job.folder / "saves.py"
        self.script.write_text(SAVES)

    def start(self, *flags, steps=100_000, pause=0.02):
        state = f"--state-dir={self.job.folder / 'state'}"
        words = ["--standalone", "--nproc-per-node=2", state, *flags, str(self.script), str(self.run_dir)]
        return self.job.run(*words, str(steps), str(pause), cwd=self.job.folder)

    def steps_on_disk(self):
        return json.loads(self.job.phalanx("ckpt", "ls", str(self.run_dir), "--json").stdout)["steps"]


def images_of(directory):
    """The folders of memory that hold images of a checkpoint directory."""
    found = []
    for path in Path("/dev/shm").glob("phx-*/*/info.json"):
        with contextlib.suppress(FileNotFoundError):  # of another test
            found += [path.parent] if json.loads(path.read_text())["dir"] == str(directory) else []
    return found


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_stopping_a_job_loses_no_step(job, stop):
    """What was only in memory is on storage, and the same command goes on from it."""
    saving = Saving(job)
    first = saving.start()
    first.wait_line(": training, world 2, step 1")
    first.wait_line("^step 35$", "stdout")
    assert len(images_of(saving.run_dir)) == 1, "there is nothing to be freed"
    first.signal(stop)
    assert first.wait() == 128 + stop
    assert "is only in memory" not in first.stderr
    (newest,) = [step["step"] for step in saving.steps_on_disk()]
    assert newest >= 30
    assert f"phalanx-run: checkpoint: step {newest} of {saving.run_dir} is on storage" in first.stderr
    again = saving.start(steps=newest + 3)
    assert again.wait() == 0, job.story()
    assert again.stdout.count(f"resumed at {newest}") == 2
    said = f"phalanx-run: checkpoint: goes on from step {newest} of {saving.run_dir}, on storage\n"
    assert again.stderr.count("goes on from step ") == again.stderr.count(said) == 1, again.stderr
    assert max(step["step"] for step in saving.steps_on_disk()) == newest + 3, "the end of a job loses nothing, either"
    assert not images_of(saving.run_dir), "its memory is free"


@pytest.mark.slow
def test_a_standalone_job_keeps_its_id(job):
    """Its memory is found again by it; a second job of that id at the same time gets one of its own."""
    saving = Saving(job)
    first = saving.start("--rdzv-id=run7")
    first.wait_line(": training, world 2, step 1")
    second = job.run("--standalone", "--rdzv-id=run7", f"--state-dir={job.folder / 'state'}", "--no-python", "true")
    assert second.wait() == 0
    said = f"--rdzv-id=run7: a run of that id lives (state directory {job.folder / 'state' / 'run7'}); this one gets "
    assert said in second.stderr
    first.wait_line("^step 30$", "stdout")
    job.killed_by_test = True
    first.process.kill()
    first.process.wait()
    third = saving.start("--rdzv-id=run7", steps=1)
    assert third.wait() == 0, job.story()
    resumed = [int(step) for step in re.findall(r"resumed at (\d+)", third.stdout)]
    assert len(resumed) == 2 and resumed[0] == resumed[1] >= 25
    assert f"phalanx-run: checkpoint: goes on from step {resumed[0]} of {saving.run_dir}, in memory" in third.stderr
    assert (
        json.loads(job.phalanx("jobs", f"--state-dir={job.folder / 'state'}", "--json").stdout)[0]["job_id"] == "run7"
    )


@pytest.mark.slow
def test_a_job_that_saves_seldom_does_not_hang(job, tmp_path):
    """Between two saves its steps are seen, though nothing but the saves tells their numbers."""
    seldom = ["--steps=175", "--step-ms=150", "--memory-every=88"]  # 13 s from one to the next
    node = job.standalone("saving.py", tmp_path / "run", *seldom, flags=["--hang-timeout=11"])
    assert node.wait(120) == 0, job.story()
    # Its start may take longer on a machine that works: that is one, at step 0.
    assert not re.search(r"no step for [^:]*: [^:]* are at step [1-9]", node.stderr), job.story()


def test_a_hang_timeout_begins_another_life(job):
    text = (
        "import os, time, phalanx\n"
        "for step in range(1, 6):\n"
        "    phalanx.step(step)\n"
        "    if step == 3 and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "        time.sleep(600)\n"
    )
    node = run(job, "hangs.py", text, "--hang-timeout=4")
    assert node.wait() == 0
    assert re.search(r"no step for [\d.]+ s.*: --hang-timeout=4 s is over, restart 1 of 3: restarted", node.stderr)
    state = f"--state-dir={job.folder / 'state'}"
    kinds = [json.loads(row)["kind"] for row in job.phalanx("events", state, "--json").stdout.splitlines()]
    assert kinds.count("hang") == 1
    assert "--hang-timeout=4 s is over" in job.phalanx("why", state).stdout


@pytest.mark.slow
def test_who_is_behind_in_a_hang(job):
    """By `why`, and by `status --ranks`, as long as it lasts."""
    text = (
        "import os, time, phalanx\n"
        "for step in range(1, 83):\n"
        "    phalanx.step(step)\n"
        "    time.sleep(0.2)\n"
        "    while step == (80 if os.environ['RANK'] == '1' else 82) and not os.path.exists('go on'):\n"
        "        time.sleep(0.05)\n"
    )
    script = job.folder / "hangs.py"
    script.write_text(text)
    state = f"--state-dir={job.folder / 'state'}"
    node = job.run("--standalone", "--nproc-per-node=2", state, str(script), cwd=job.folder)
    node.wait_line(r"no step for \d\d")
    why = job.phalanx("why", state).stdout
    assert re.match(
        r"no step since .*: the others are at step 82, some ranks of node \S+ at step 80\nrank 1 \(", why
    ), why
    assert re.search(
        r"^rank 1 \(local rank 1 of node \S+, pid \d+\) is at step 80, 2 behind\n\nepoch 1 began", why, re.M
    )
    hang = json.loads(job.phalanx("why", state, "--json").stdout)["hang"]
    assert [(rank["rank"], rank["step"], rank["behind"]) for rank in hang["ranks_behind"]] == [(1, 80, 2)]
    assert hang["silent_ms"] >= 12_000
    table = job.phalanx("status", "--ranks", state).stdout
    assert re.search(r"^0 +\S+ +\d+ +82 +stepping, waiting ", table, re.M), table
    assert re.search(r"^1 +\S+ +\d+ +80 +stepping, 2 behind ", table, re.M), table
    (job.folder / "go on").touch()
    assert node.wait() == 0
    assert "no step since" not in job.phalanx("why", state).stdout


def test_a_hang_that_ends_the_job_ends_with_a_box(job):
    """It names how long, and each rank's step."""
    text = (
        "import os, time, phalanx\n"
        "for step in range(1, 6):\n"
        "    phalanx.step(step)\n"
        "    if step == 3 and os.environ['RANK'] == '1':\n"
        "        time.sleep(600)\n"
        "time.sleep(600)\n"
    )
    node = run(job, "hangs.py", text, "--hang-timeout=4", "--max-restarts=0")
    assert node.wait() == 1
    said = headline(node)
    assert "hangs.py FAILED: no step for " in said
    assert ", some ranks of node " in said and said.endswith("; --max-restarts=0 allows no restart")
    ranks = re.findall(
        r"^  rank (\d) \(local rank \d, pid \d+\): at (step .*), no step for [\d.]+ s$", node.stderr, re.M
    )
    assert ranks == [("0", "step 5"), ("1", "step 3, 2 behind")], node.stderr
    assert node.stderr.count("=" * 100) == 2
    kept = json.loads(job.phalanx("status", "--json", f"--state-dir={job.folder / 'state'}").stdout)
    assert kept["step"] == 5


@pytest.mark.parametrize(("flags", "lives"), [([], 2), (["--retry-same-error"], 4)], ids=["told", "tried on"])
def test_a_mistake_that_no_try_mends_ends_the_job(job, flags, lives):
    text = "open('lives', 'a').write('x')\nnonsense\n"
    node = run(job, "mistake.py", text, "--max-restarts=3", "--nproc-per-node=1", *flags)
    assert node.wait() == 1
    assert len((job.folder / "lives").read_text()) == lives
    same = f"; the same error twice, at {job.folder / 'mistake.py'}:2: not restarting (--retry-same-error tries on)"
    assert headline(node).endswith(same if not flags else "; --max-restarts=3 is used up")


def test_what_a_network_may_mend_is_tried_as_often_as_was_asked_for(job):
    text = "open('lives', 'a').write('x')\nraise ConnectionError('refused')\n"
    node = run(job, "refused.py", text, "--max-restarts=3", "--nproc-per-node=1")
    assert node.wait() == 1
    assert len((job.folder / "lives").read_text()) == 4


def test_a_traceback_of_several_ranks_is_shown_once(job):
    # Tracebacks come before what is registered: no rank ends, which ends the others, before all have said theirs.
    text = (
        "import atexit, os, time\n"
        "def together():\n"
        "    open('told' + os.environ['RANK'], 'w').close()\n"
        "    while not all(os.path.exists(f'told{rank}') for rank in range(3)):\n"
        "        time.sleep(0.01)\n"
        "atexit.register(together)\n"
        "raise ValueError('bad sample')\n"
    )
    node = run(job, "raises.py", text, "--max-restarts=0", "--nproc-per-node=3")
    console = node.stderr[: node.stderr.index("=====")]
    assert console.count("Traceback (most recent call last):") == 1
    folded = re.findall(r"\[phalanx: rank (\d) has the same traceback as rank (\d): ValueError: bad sample\]", console)
    assert len(folded) == 2
    assert {rank for pair in folded for rank in pair} == {"0", "1", "2"}
    assert "ValueError: bad sample" in headline(node)


@pytest.mark.parametrize("module", ["nothing_there", "nothing_there.train"])
def test_a_module_that_is_not_there(job, module):
    node = job.run("--standalone", f"--state-dir={job.folder / 'state'}", "-m", module, cwd=job.folder)
    assert node.wait() == 2
    assert node.stderr.startswith(
        f"phalanx-run: error: -m {module}: there is no module nothing_there: expected one in "
    )
    assert len(node.stderr.splitlines()) == 1
    assert not (job.folder / "state").exists()


def test_modules_are_found_where_python_finds_them(job):
    """In the current folder, by PYTHONPATH, installed, in an archive."""
    (job.folder / "here.py").write_text("")
    (job.folder / "elsewhere" / "package").mkdir(parents=True)
    (job.folder / "elsewhere" / "package" / "__main__.py").write_text("")
    with zipfile.ZipFile(job.folder / "archive.zip", "w") as archive:
        archive.writestr("zipped.py", "")
    env = {"PYTHONPATH": f"{job.folder / 'elsewhere'}:{job.folder / 'archive.zip'}"}
    for module in ("here", "package", "this", "zipped"):
        node = job.run("--standalone", f"--state-dir={job.folder / 'state'}", "-m", module, cwd=job.folder, env=env)
        assert node.wait() == 0, (module, node.stderr)


def ranks_of(job, steps):
    """By `phalanx status --ranks`, which says what it has where an agent has no time to answer."""
    state = f"--state-dir={job.folder / 'state'}"
    end = time.monotonic() + PATIENCE_S
    while True:
        (node,) = json.loads(job.phalanx("status", "--ranks", state, "--json").stdout)["nodes"]
        ranks = node.get("ranks", [])
        if [rank["step"] for rank in ranks] == steps:
            return ranks
        assert time.monotonic() < end, ranks


def test_what_each_rank_does(job):
    """By `status --ranks`, as fresh as the question; by --watch until the job is over."""
    text = (
        "import os, sys, time, phalanx\n"
        "for step in range(1, 5):\n"
        "    phalanx.step(step)\n"
        "sys.stdout.write('at 4\\n'); sys.stdout.flush()\n"
        "while not os.path.exists('go on'):\n"
        "    time.sleep(0.05)\n"
    )
    script = job.folder / "waits.py"
    script.write_text(text)
    state = f"--state-dir={job.folder / 'state'}"
    node = job.run("--standalone", "--nproc-per-node=2", state, str(script), cwd=job.folder)
    job.wait(lambda _: node.stdout.count("at 4") == 2, "the fourth steps")
    for rank in ranks_of(job, [4, 4]):
        assert rank["doing"] == "stepping"
        status = Path(f"/proc/{rank['pid']}/status").read_text()
        resident = int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024
        assert 0.5 < rank["resident_bytes"] / resident < 2
        assert 0 <= rank["quiet_ms"] <= rank["age_ms"] < 60_000
    table = job.phalanx("status", "--ranks", state).stdout
    assert re.search(r"^RANK +NODE +PID +STEP +DOES +SINCE ITS LAST STEP +SINCE IT BEGAN +MEMORY$", table, re.MULTILINE)
    watching = subprocess.Popen(
        [command_path("phalanx"), "status", "--watch=0.1", state], stdout=subprocess.PIPE, text=True
    )
    looks = (line for line in watching.stdout if ": running, world 2" in line)
    assert [next(looks, "") != "" for _ in range(2)] == [True, True]
    (job.folder / "go on").touch()
    assert node.wait() == 0
    watching.communicate(timeout=60)
    assert watching.returncode == 0


def test_watching_begins_before_the_job_does(job):
    state = f"--state-dir={job.folder / 'state'}"
    watching = subprocess.Popen(
        [command_path("phalanx"), "status", "--watch=0.1", state],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert watching.stderr.readline() == "phalanx: no job yet; waiting for one, for up to a minute\n"
    run(job, "ends.py", "import phalanx; phalanx.step(1)")
    told, _ = watching.communicate(timeout=60)
    assert watching.returncode == 0
    assert ": finished, world " in told


TRAINER = """
class CallbackHandler:
    def on_step_end(self, args, state, control):
        return control
"""
LIGHTNING = """
def _call_callback_hooks(trainer, hook_name, *args, **more):
    return hook_name
"""


@pytest.mark.parametrize("own", [False, True], ids=["framework", "script"])
@pytest.mark.parametrize("framework", ["transformers.trainer_callback", "lightning.pytorch.trainer.call"])
def test_a_framework_that_is_imported_tells_its_steps(job, framework, own):
    """Here by the functions that are hooked alone; tests/test_frameworks.py has the real ones. A script that tells its
    steps itself is left alone."""
    trainer = framework.startswith("transformers")
    path = job.folder.joinpath(*framework.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True)
    path.write_text(TRAINER if trainer else LIGHTNING)
    starts = "" if trainer else "_call_callback_hooks(State, 'on_train_start')\n"
    call = (
        "assert CallbackHandler().on_step_end(None, State, 'control') == 'control'"
        if trainer
        else "assert _call_callback_hooks(State, 'on_train_batch_end') == 'on_train_batch_end'"
    )
    text = (
        f"from {framework} import *\n"
        f"from {framework} import {'CallbackHandler' if trainer else '_call_callback_hooks'}\n"
        "import phalanx\n"
        "class State:\n"
        "    global_step = 100\n"
        f"{starts}"
        "for step in range(101, 105):\n"
        f"    {'phalanx.step(step - 100)' if own else 'pass'}\n"
        "    State.global_step = step\n"
        f"    {call}\n"
    )
    node = run(job, "driven.py", text, "--nproc-per-node=1")
    assert node.wait() == 0, node.stderr
    state = f"--state-dir={job.folder / 'state'}"
    rows = [json.loads(row) for row in job.phalanx("events", state, "--json").stdout.splitlines()]
    (told,) = [row["detail"]["from_step"] for row in rows if row["kind"] == "steps-told"]
    assert told == (1 if own else 101)
    (ended,) = [row["detail"]["steps"] for row in rows if row["kind"] == "worker-exited"]
    assert ended == (4 if own else 104)


PAGES = Path(__file__).parent.parent


def shell(job, text, cwd, **variables):
    """What a person pastes, with the commands of this build before others."""
    env = {**job.environment({}), "XDG_STATE_HOME": str(job.folder / "home"), **variables}
    env["PATH"] = f"{Path(command_path('phalanx-run')).parent}:{env['PATH']}"
    return subprocess.run(["bash", "-c", text], cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


def test_the_readmes_first_paste(job):
    """A rank is killed, and the job's own words tell the rest."""
    page = (PAGES / "README.md").read_text()
    text = page[page.index("## Try it") :]
    text = text[text.index("```bash\n") + len("```bash\n") :]
    text = text[: text.index("```")]
    pause = "sleep 3;"  # enough for a person's machine
    assert text.count(pause) == 1
    looks = "phalanx status try --ranks | awk '/stepping/ && $4 > 10 {n++} END {exit n < 2}'"
    done = shell(job, text.replace(pause, f"{pause} until {looks}; do sleep 0.5; done;"), job.folder)
    assert "bash:" not in done.stderr and "phalanx:" not in done.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(
        r"rank 1 died \(SIGKILL\) on node \S+, restart 1 of 3: restarted from a warm spare in \d+ ms", done.stderr
    )
    steps = re.findall(r"^[01] +\S+ +\d+ +(\d+) +stepping ", done.stdout, re.MULTILINE)
    assert len(steps) == 2 and all(int(step) > 10 for step in steps)
    assert re.search("^first cause: rank 1 died", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^job try: finished$", done.stdout, re.MULTILINE)


def test_two_nodes_on_a_laptop(job):
    page = (PAGES / "docs" / "clusters.md").read_text()
    text = page[page.index("## Two nodes on a laptop") :]
    lines = re.findall(r"^    (.*)$", text[: text.index("`tests/")], re.MULTILINE)
    port = str(job.port)
    paste = "\n".join(lines).replace("29400", port)
    assert paste.count(port) == 1
    (job.folder / "train.py").write_text(
        "import time, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        "for step in range(100_000):\n"
        "    model(torch.ones(2, 4)).sum().backward()\n"
        "    optimizer.step()\n"
        "    time.sleep(0.02)\n"
    )
    behind = 'until grep -q "left.*world 2, step" node1.txt; do sleep 0.2; done; kill %1; wait; echo over'
    done = shell(job, f"{paste}\n{behind}", job.folder)
    assert done.stdout.endswith("over\n"), done.stdout + done.stderr
    first = (job.folder / "node1.txt").read_text()
    assert re.search(r"node 127\.0\.0\.2 left \(SIGTERM\).*: .* world 2, ", first), first
    assert "Terminated: this node leaves the job" in (job.folder / "node2.txt").read_text()


def steps_and_prints(job, more=""):
    """A script whose ranks print each step, and leave a file when they have made all."""
    script = job.folder / "prints.py"
    script.write_text(
        "import os, sys, time, phalanx\n"
        "for step in range(1, 41):\n"
        "    phalanx.step(step)\n"
        "    print('step', step, flush=True)\n"
        f"    {more or 'pass'}\n"
        "    time.sleep(0.02)\n"
        "open('done' + os.environ['RANK'], 'w').close()\n"
    )
    return script


def pasted(job, command, script, *flags):
    """A pipeline as a person types it; what its first command, phalanx-run, ended with stands in `rc`."""
    launch = (
        f"phalanx-run --standalone --nproc-per-node=2 --state-dir={job.folder / 'state'} {' '.join(flags)} {script}"
    )
    return shell(job, command.replace("LAUNCH", f"({launch}; echo $? > rc)"), job.folder)


NOBODY_READS = "nobody reads {} of phalanx-run any more; training goes on, and what goes there is dropped from now on"


@pytest.mark.parametrize(
    ("command", "lost"),
    [
        ("LAUNCH | (head -5; : > gone)", ["stdout"]),
        ("LAUNCH 2>&1 | (head -5; : > gone)", ["stdout", "stderr"]),
        ("(LAUNCH 2>&1 >&3 | (head -1; : > gone)) 3>out", ["stderr"]),
    ],
    ids=["stdout", "both", "stderr"],
)
def test_a_console_that_nobody_reads_any_more_ends_nothing(job, command, lost):
    """`| head -5`: one life, one sentence for each stream, where there is somebody left to tell, and in the record."""
    await_gone = "while step == 20 and not os.path.exists('gone'): time.sleep(0.01)"
    done = pasted(job, command, steps_and_prints(job, f"sys.stderr.write('word\\n')\n    {await_gone}"))
    assert (job.folder / "rc").read_text() == "0\n", done.stderr
    assert (job.folder / "done0").exists() and (job.folder / "done1").exists()
    assert len(done.stdout.splitlines()) == (1 if "head -1" in command else 5)
    assert done.stderr.count(NOBODY_READS.format("stdout")) == ("2>&1" not in command)
    rows = [
        json.loads(row)
        for row in job.phalanx("events", f"--state-dir={job.folder / 'state'}", "--json").stdout.splitlines()
    ]
    assert [row["kind"] for row in rows].count("round-started") == 1
    told = [row["reason"] for row in rows if row["kind"] == "console-lost"]
    assert sorted(told) == sorted(NOBODY_READS.format(stream) for stream in lost)
    if lost == ["stderr"]:
        assert (job.folder / "out").read_text().count("step") == 80  # two ranks may write into each other's lines


def test_files_of_a_console_that_nobody_reads_get_everything(job):
    pasted(job, "LAUNCH | head -5", steps_and_prints(job), "--tee=3", f"--log-dir={job.folder / 'logs'}")
    assert (job.folder / "rc").read_text() == "0\n"
    files = sorted((job.folder / "logs").glob("*/attempt_0/*/stdout.log"))
    assert [file.read_text().splitlines() for file in files] == [[f"step {step}" for step in range(1, 41)]] * 2


@pytest.mark.parametrize("flag", ["--no-python", "--no-warm"])
def test_other_programs_outlive_a_console_as_well(job, flag):
    """They may die of their first word behind it; the next life writes where somebody reads."""
    script = steps_and_prints(job)
    if flag == "--no-python":
        script.write_text("#!/bin/bash\nfor step in {1..40}; do echo step $step; sleep 0.02; done\n: > done$RANK\n")
        script.chmod(0o755)
    pasted(job, "LAUNCH | head -5", f"./{script.name}" if flag == "--no-python" else script, flag)
    assert (job.folder / "rc").read_text() == "0\n"
    assert (job.folder / "done0").exists() and (job.folder / "done1").exists()


IN_A_SAVE = """
import sys, time
import phalanx.checkpoint


class Slow:
    def state_dict(self):
        sys.stdout.write("saves\\n")
        sys.stdout.flush()
        time.sleep(600)


phalanx.checkpoint.Checkpointer("run").save(1, {"slow": Slow()})
"""


@pytest.mark.parametrize("flag", ["--warm", "--no-warm"])
def test_ctrl_c_within_a_save_shows_no_line_of_ours(job, flag):
    """The script's own line, where it was, and nothing of what goes on below."""
    script = job.folder / "saves.py"
    script.write_text(IN_A_SAVE)
    flags = ["--standalone", "--nproc-per-node=2", f"--state-dir={job.folder / 'state'}", flag]
    node = job.run(*flags, str(script), cwd=job.folder)
    job.wait(lambda _: node.stdout.count("saves") == 2, "both in a save")
    node.signal(signal.SIGINT)
    assert node.wait() == 130
    shown = re.findall(r'^  File "([^"]+)"', node.stderr, re.MULTILINE)
    assert set(shown) <= {str(script)}, node.stderr
    assert "During handling" not in node.stderr and "ignored" not in node.stderr


RESTORES = """
import os, signal, sys, time, torch
from phalanx.checkpoint import Checkpointer
optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
checkpointer = Checkpointer("run")
_, done = checkpointer.load()
for step in range(done + 1, 17):
    optimizer.step()
    if step % 5 == 0:
        assert checkpointer.save(step, {"step": step}).wait_committed()
    if step == 12 and done == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if step == 13:
        sys.stdout.write("at 13\\n")
        sys.stdout.flush()
    while step == 13 and not os.path.exists("go on"):
        time.sleep(0.05)
checkpointer.close()
"""


def test_steps_behind_a_restore_are_those_of_the_training(job):
    """Of a script that tells its steps by saves alone: in the line of the recovery, in status, and in the record."""
    script = job.folder / "restores.py"
    script.write_text(RESTORES)
    state = f"--state-dir={job.folder / 'state'}"
    node = job.run("--standalone", "--nproc-per-node=1", state, str(script), cwd=job.folder)
    job.wait(lambda _: "at 13" in node.stdout, "step 13")
    ranks_of(job, [13])
    (job.folder / "go on").touch()
    assert node.wait() == 0
    assert re.search(r"restart 1 of 3: restarted .*, world 1, step 11$", node.stderr, re.M), node.stderr
    rows = [json.loads(row) for row in job.phalanx("events", state, "--json").stdout.splitlines()]
    assert [row["detail"]["from_step"] for row in rows if row["kind"] == "steps-told"] == [0, 10]
    assert [row["detail"]["step"] for row in rows if row["kind"] == "first-step"][-1] == 11
