"""Disks that are full, before the start or in mid-run: what is lost is said, and training goes on to its good end."""

import json
import os
import re
import signal

import pytest


def start(job, *flags, nproc=2, **more):
    return job.standalone("talkative.py", nproc=nproc, flags=["--max-restarts=1", *flags], **more)


def kill_and_end(job, node):
    """Rank 1 dies, the next life steps, and all ends well."""
    os.kill(job.pid(1, life=0), signal.SIGKILL)
    job.wait_stepping(life=1, world=2)
    job.stop()
    assert node.wait() == 0, job.story()
    job.wait_events("done", life=1, count=2)  # they may be on their way


def test_logs_on_a_disk_that_fills_up(small_disk, job):
    """One notice a round with the file's name; the steps go on, and so does the next life on the full disk."""
    node = start(job, f"--log-dir={small_disk.path}", "--redirects=3")
    job.wait_stepping(life=0, world=2)
    small_disk.fill()
    told = node.wait_line("cannot be written")
    assert "/attempt_0/" in told
    assert told.endswith(": No space left on device; training goes on, lines are lost until there is room\n")
    kill_and_end(job, node)
    assert node.stderr.count("cannot be written") == 2, job.story()  # of each round once


def test_teed_logs_on_a_disk_that_fills_up(small_disk, job):
    """The console shows what reaches the files, again when there is room."""
    node = start(job, f"--log-dir={small_disk.path}", "--tee=3")
    job.wait_stepping(life=0, world=2)
    small_disk.fill()
    told = node.wait_line("cannot be written")
    rank, stream = re.search(r"/attempt_0/(\d)/(\w+)\.log cannot be written", told).groups()
    small_disk.make_room()
    node.wait_line(
        rf"^\[default{rank}\]:\[phalanx: \d+ bytes of this log were lost here: No space left on device\]$", stream
    )
    kill_and_end(job, node)


def test_events_on_a_disk_that_fills_up(small_disk, job):
    """One notice. What the disk has cut off is a line of its own, and later events are whole again."""
    file = small_disk.path / "events.jsonl"
    node = start(job, f"--event-log-handler=jsonl:{file}", nproc=4)
    job.wait_stepping(life=0, world=4)
    small_disk.fill()
    os.kill(job.pid(1, life=0), signal.SIGKILL)
    node.wait_line(rf"log file {file} cannot be written: No space left on device; training goes on, ")
    job.wait_stepping(life=1, world=4)
    small_disk.make_room()
    job.stop()
    assert node.wait() == 0, job.story()
    assert node.stderr.count("cannot be written") == 1, job.story()
    lines = file.read_text().splitlines()
    broken = [number for number, line in enumerate(lines) if not line.endswith("}}")]
    # Where the disk was full between two lines, none is cut off.
    assert len(broken) <= 1 and all(lines[number].startswith('{"name"') for number in broken)
    events = [json.loads(line) for number, line in enumerate(lines) if number not in broken]
    states = [event["metadata"]["state"] for event in events]
    assert states[broken[0] if broken else states.index("SUCCEEDED") :] == ["SUCCEEDED"] * 5


def test_reports_on_a_disk_without_a_byte(small_disk, job):
    """Each is said, none changes the exit code, and no half of one is left for a program to read."""
    report, own = small_disk.path / "report", small_disk.path / "error.json"
    small_disk.fill()
    flags = ["--max-restarts=0", f"--report-file={report}"]
    node = job.standalone("printer.py", "--fail", flags=flags, env={"TORCHELASTIC_ERROR_FILE": own})
    assert node.wait() == 1, job.story()
    for name, path in (("--report-file", report), ("TORCHELASTIC_ERROR_FILE", own)):
        assert f"{name}={path}: cannot be written: No space left on device" in node.stderr
        assert path.read_bytes() == b""


@pytest.mark.parametrize("flags", [[], ["--no-warm"], ["--debug-rank=0"]], ids=["warm", "cold", "debugged"])
def test_output_that_is_the_persons_own_file(small_disk, job, flags):
    """`phalanx-run gen.py > data`: what the disk does not take is an error of the script, as under torchrun."""
    script = job.folder / "gen.py"
    script.write_text("print('data ' * 4096)\n")
    small_disk.fill()
    data = small_disk.path / "data"
    command = ["sh", "-c", f'exec "$@" > {data}', "sh", *job.command()]
    node = job.run("--standalone", f"--state-dir={job.folder / 'state'}", *flags, script, command=command)
    assert node.wait() == 1, job.story()
    assert "OSError: [Errno 28] No space left on device" in node.stderr
    assert data.read_bytes() == b""


def everything_on(disk):
    """Flags and environment by which logs, state and temporary files lie on the disk."""
    (disk.path / "state").mkdir()
    (disk.path / "tmp").mkdir()
    flags = [f"--log-dir={disk.path / 'logs'}", f"--state-dir={disk.path / 'state'}", "--redirects=3"]
    return {"flags": flags, "env": {"TMPDIR": disk.path / "tmp"}}


def start_on(job, where):
    return start(job, *where["flags"], env=where["env"])


def test_everything_on_a_disk_that_fills_up(small_disk, job):
    """The record keeps what it has. That it has gaps is said on the console: the master's log is on the same disk."""
    node = start_on(job, everything_on(small_disk))
    job.wait_stepping(life=0, world=2)
    small_disk.fill()
    os.kill(job.pid(1, life=0), signal.SIGKILL)
    told = node.wait_line("the event record has gaps from now on")
    assert told.endswith("full; the job goes on\n")
    job.wait_stepping(life=1, world=2)
    small_disk.make_room()
    job.stop()
    assert node.wait() == 0, job.story()
    assert node.stderr.count("gaps from now on") == 1
    events = job.phalanx("events", f"--state-dir={small_disk.path / 'state'}").stdout
    assert "rows of this record were lost, from here on" in events
    assert "all 2 ranks ended well" in events


def test_everything_on_a_disk_that_has_no_file_left(small_disk, job):
    """No folder for the next attempt: its output goes to the console, and one line says why. No new journal, too."""
    node = start_on(job, everything_on(small_disk))
    job.wait_stepping(life=0, world=2)
    small_disk.use_up_files()
    kill_and_end(job, node)
    for text in ("workers get no error file: ", "the journal cannot be written, "):
        assert node.stderr.count(text) == 1, job.story()
    assert node.stderr.count("No space left on device") == 2, job.story()
    assert "step 1 xxx" in node.stdout
    events = job.phalanx("events", f"--state-dir={small_disk.path / 'state'}").stdout
    assert "rank 1 died (SIGKILL)" in events


def test_everything_on_a_disk_without_a_byte(small_disk, job):
    """Folders and empty files can be made: the job runs, and says that it has no record."""
    where = everything_on(small_disk)
    small_disk.fill()
    node = start_on(job, where)
    job.wait_stepping(life=0, world=2)
    node.wait_line(r"no event record: .*full; the job goes on$")
    kill_and_end(job, node)
    assert "/stdout.log cannot be written" in node.stderr, job.story()


def test_no_state_folder_can_be_made(small_disk, job):
    """That much a job needs. It says so and does not start."""
    where = everything_on(small_disk)
    small_disk.use_up_files()
    node = start_on(job, where)
    assert node.wait() == 1
    assert "(--state-dir gives another): No space left on device" in node.stderr


def test_no_log_folder_can_be_made(small_disk, job):
    """Output goes to the console then, and there is one notice."""
    small_disk.use_up_files()
    node = start(job, f"--log-dir={small_disk.path / 'logs'}", "--redirects=3")
    job.wait_stepping(life=0, world=2)
    kill_and_end(job, node)
    assert node.stderr.count("No space left on device") == 1, job.story()
    assert "step 1 xxx" in node.stdout


def test_a_full_board_folder(job):
    """/dev/shm without a page to spare: the board lies in the state directory, and steps are seen all the same."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    shadow = "mount -t tmpfs -o size=4k tmpfs /dev/shm && head -c 4096 /dev/zero > /dev/shm/ballast"
    command = ["unshare", "--mount", "sh", "-c", f'{shadow} && exec "$@"', "sh", *job.command()]
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "workloads", "talkative.py")
    flags = ["--standalone", "--nproc-per-node=2", "--max-restarts=1", f"--state-dir={job.folder / 'state'}"]
    node = job.run(*flags, script, command=command)
    job.wait_stepping(life=0, world=2)
    kill_and_end(job, node)
    assert "no rank board" not in node.stderr
    assert "step 1" in node.stderr
