"""--event-log-handler: torchrun's events, read back by torch's own Event."""

import json
import os
import signal
import stat

import pytest
from torch.distributed.elastic.events import Event


def read(lines):
    """[(state, source, metadata)] of JSON lines; torch's class must take each."""
    events = [Event.deserialize(line) for line in lines]
    assert all(event.timestamp > 1_600_000_000_000 for event in events)
    assert [event.timestamp for event in events] == sorted(event.timestamp for event in events)
    return [(event.metadata["state"], event.source.name, event.metadata) for event in events]


def states(events):
    return [(state, source) for state, source, _ in events]


def failing_job(job, *flags):
    """Rank 1 of two fails in its first life with code 5; the second life ends well."""
    node = job.standalone("printer.py", "--fail", flags=["--max-restarts=1", *flags])
    assert node.wait() == 0, job.story()
    return node


@pytest.mark.parametrize("place", ["given", "log_dir"])
def test_jsonl(job, place):
    file = job.folder / "events.jsonl"
    logs = job.folder / "logs"
    handler = f"jsonl:{file}" if place == "given" else "jsonl"
    failing_job(job, f"--event-log-handler={handler}", f"--log-dir={logs}", "--redirects=3")
    if place == "log_dir":
        (file,) = logs.glob("*/events.jsonl")
    events = read(file.read_text().splitlines())
    assert states(events)[0] == ("RENDEZVOUS", "AGENT")
    assert states(events)[-1] == ("SUCCEEDED", "AGENT")
    assert states(events).count(("RENDEZVOUS", "AGENT")) == 2
    assert states(events).count(("START", "WORKER")) == 4
    assert states(events).count(("FAILED", "WORKER")) == 1
    failed = next(metadata for state, source, metadata in events if (state, source) == ("FAILED", "WORKER"))
    assert failed["global_rank"] == 1
    assert json.loads(failed["metadata"])["exit_code"] == [5]
    started = [metadata for state, _, metadata in events if state == "START"]
    assert {metadata["agent_restarts"] for metadata in started} == {0, 1}
    assert failed["worker_id"] in {metadata["worker_id"] for metadata in started}
    assert {metadata["rdzv_backend"] for _, _, metadata in events} == {"c10d"}


def test_workers_that_are_told_to_end(job):
    """The one that fails is FAILED, the others of its round TERMINATED, those that end by themselves SUCCEEDED."""
    file = job.folder / "events.jsonl"
    node = job.standalone("talkative.py", nproc=3, flags=["--max-restarts=1", f"--event-log-handler=jsonl:{file}"])
    job.wait_stepping(life=0, world=3)
    os.kill(job.pid(1, life=0), signal.SIGKILL)
    job.wait_stepping(life=1, world=3)
    job.stop()
    assert node.wait() == 0, job.story()
    events = read(file.read_text().splitlines())
    ends = {"FAILED": [1], "TERMINATED": [0, 2], "SUCCEEDED": [0, 1, 2]}
    for state, ranks in ends.items():
        found = [metadata for name, source, metadata in events if (name, source) == (state, "WORKER")]
        assert sorted(metadata["global_rank"] for metadata in found) == ranks, state
        assert {metadata["agent_restarts"] for metadata in found} == {int(state == "SUCCEEDED")}


def test_console(job):
    """On stderr, among what ranks write there."""
    node = failing_job(job, "--event-log-handler=console", "--redirects=3")
    events = read([line for line in node.stderr.splitlines() if line.startswith("{")])
    assert ("FAILED", "WORKER") in states(events)
    assert states(events)[-1] == ("SUCCEEDED", "AGENT")


def test_a_file_that_cannot_be_written(job):
    """Found out before any worker has started."""
    node = job.standalone("printer.py", flags=["--event-log-handler=jsonl:/nowhere/events"])
    assert node.wait() == 1
    assert "--event-log-handler=jsonl:/nowhere/events: cannot be opened: No such file or directory" in node.stderr
    assert node.stdout == ""


@pytest.mark.parametrize("flag", ["--event-log-handler=jsonl:", "--report-file="])
def test_a_pipe_that_nobody_reads(job, flag):
    """It is refused with a sentence: opening it would wait for ever."""
    pipe = job.folder / "pipe"
    os.mkfifo(str(pipe))
    node = job.standalone("printer.py", flags=[f"{flag}{pipe}"])
    assert node.wait() == (0 if flag == "--report-file=" else 1), job.story()
    assert f"{flag}{pipe}: is not a regular file" in node.stderr


def test_who_may_read_a_file(job):
    """Who started the job, alone. A file that a link leads to is as good as any."""
    (job.folder / "real").touch(mode=0o640)
    (job.folder / "link").symlink_to("real")
    for name, mode in (("new", 0o600), ("link", 0o640)):
        node = job.standalone("printer.py", flags=[f"--event-log-handler=jsonl:{job.folder / name}"])
        assert node.wait() == 0, job.story()
        assert "events are written to" not in node.stderr
        assert stat.S_IMODE((job.folder / name).stat().st_mode) == mode
    assert states(read((job.folder / "real").read_text().splitlines()))[-1] == ("SUCCEEDED", "AGENT")


def test_the_folder_is_told_where_nobody_named_one(job):
    node = job.standalone("printer.py", flags=["--event-log-handler=jsonl"])
    assert node.wait() == 0, job.story()
    (file,) = job.folder.glob("torchelastic_*/*/events.jsonl")
    assert node.stderr.count(f"events are written to {file} (--log-dir gives another)\n") == 1
