"""--replay-log and `phalanx replay`: what agents and master of a real job decided is decided again, the same."""

import json
import os
import signal
import stat
import struct
import zlib

from harness import PATIENCE_S, read_proc, wait_ends

TOKEN = "a-secret-of-this-job"
MAGIC = b"PHLXRPLY"
HEADER_BYTES = 16
FRAME_HEADER = struct.Struct("<III")


def logs(job, who):
    """Of all lives of agents or masters, oldest first."""
    found = (job.folder / "replay").glob(f"{who}-*.replay")
    return sorted(found, key=lambda path: path.stat().st_mtime_ns)


def replay(job, path):
    """The lines of --json: the start, the steps, the sum."""
    lines = [json.loads(line) for line in job.phalanx("replay", path, "--json").stdout.splitlines()]
    return lines[0], lines[1:-1], lines[-1]


def actions(steps):
    return [decision["action"] for step in steps for decision in step["decisions"]]


def with_decision(log, old, new):
    """The log with one word of one decision changed, as whole as before."""
    at = HEADER_BYTES
    while True:
        length, _, _ = FRAME_HEADER.unpack_from(log, at)
        begin = at + FRAME_HEADER.size
        payload = log[begin : begin + length]
        if old in payload:
            break
        at = begin + length
    assert len(old) == len(new)
    payload = payload.replace(old, new, 1)
    sizes = struct.pack("<I", length)
    header = FRAME_HEADER.pack(length, zlib.crc32(sizes), zlib.crc32(payload))
    return log[:at] + header + payload + log[begin + length :]


def test_a_jobs_decisions_are_the_same_again(job):
    """A rank is killed, a node leaves: three logs, in which the job's token is not."""
    flags = [f"--replay-log={job.folder / 'replay'}"]
    env = {"PHALANX_TOKEN": TOKEN}
    nodes = [job.node(index, "light_steps.py", nnodes="1:2", flags=flags, env=env) for index in (0, 1)]
    life = job.wait_world(2)
    os.kill(job.pid(rank=1, life=life), signal.SIGKILL)
    life = job.wait_world(2, after=life)
    leaver = job.node_of(1, life)
    stayer = next(node for node in nodes if node is not leaver)
    leaver.signal(signal.SIGTERM)
    assert leaver.wait() == 128 + signal.SIGTERM, job.story()
    job.wait_world(1, after=life)
    job.stop()
    assert stayer.wait() == 0, job.story()
    # Where it was a child of the node that left, nobody has waited for it.
    left = [pid for pid in job.processes() if read_proc(pid, "comm").startswith(b"phalanx-master")]
    assert wait_ends(left, PATIENCE_S) == [], job.story()

    masters, agents = logs(job, "master"), logs(job, "agent")
    assert (len(masters), len(agents)) == (1, 2)
    for path in masters + agents:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        log = path.read_bytes()
        assert log.startswith(MAGIC)
        assert TOKEN.encode() not in log
        start, steps, end = replay(job, path)
        assert path.stem == f"{start['of']}-{start['id']}"
        assert (end["same"], end["different"], end["end"]) == (True, 0, "closed"), path
        assert end["events"] == len(steps)
        assert end["decisions"] == len(actions(steps)) > 10
    decided = actions(replay(job, masters[0])[1])
    assert len([action for action in decided if action.startswith("record round-started")]) >= 3
    assert any(action.startswith("record worker-exited") for action in decided)
    for path in agents:
        decided = actions(replay(job, path)[1])
        assert decided[0] == "ask for the endpoint's addresses"
        assert {"exit with 0", f"exit with {128 + signal.SIGTERM}"} & set(decided)
        assert decided[-1] == "end the program"

    text = job.phalanx("replay", masters[0]).stdout
    assert "worker_exited" in text
    assert text.splitlines()[-1].endswith(" decisions: all the same")
    check_changes(job, agents[0])


def check_changes(job, path):
    """A decision that is another one is told with both versions; a byte that is another one with its place."""
    whole = path.read_bytes()
    changed = job.folder / "changed.replay"
    changed.write_bytes(with_decision(whole, b"dial the master", b"dial the mister"))
    done = job.phalanx("replay", changed, check=False)
    assert done.returncode == 1
    where = f"at 127.0.0.1:{job.port} for 20000 ms, because: the node joins its job\n"
    assert f"recorded: -> dial the mister {where}" in done.stdout
    assert f"replayed: -> dial the master {where}" in done.stdout

    at = whole.index(b"dial the master")
    changed.write_bytes(whole[:at] + b"?" + whole[at + 1 :])
    done = job.phalanx("replay", changed, check=False)
    assert done.returncode == 2
    assert f"{changed}: damaged at byte " in done.stderr


def test_saves_and_a_restore_are_decided_the_same_again(job):
    """A rank is killed behind a step that storage has; all go on from memory, and a later step comes to storage."""
    directory = job.folder / "checkpoints"
    arguments = [directory, "--steps=12", "--disk-every=6", "--wait=stored", "--fault=0:1:forward-8:kill"]
    flags = [f"--replay-log={job.folder / 'replay'}"]
    nodes = [job.node(index, "saving.py", *arguments, flags=flags) for index in (0, 1)]
    assert [node.wait() for node in nodes] == [0, 0], job.story()
    assert {(event["n"], event["source"]) for event in job.found("restored", life=1)} == {(6, "memory")}, job.story()

    decided = []
    for path in logs(job, "agent"):
        _, steps, end = replay(job, path)
        assert (end["same"], end["different"], end["end"]) == (True, 0, "closed"), path
        assert all("saving" in step["event"] for step in steps if "mark step" in str(step["decisions"]))
        decided.append("\n".join(actions(steps)))
        for some in (
            f'tell the master epoch: 1 dir: "{directory}" sealed {{ save {{ epoch: 1 step: 6 }} store: true }}',
            f"mark step 6 of epoch 1 of {directory} as committed",
            "look at memory for epoch 2",
            "held { saves {",
            f'of local rank 0 in {directory}: dir: "{directory}" save {{ epoch: 1 step: 6 }}',
            f"write images of step 12 of epoch 2 to 12 in {directory}",
            "answer wait",
            "remove the memory",
        ):
            assert some in decided[-1], path
    for some in (f"find the newest step in {directory} for epoch 1", f"close a step in {directory}: ", "tidy up "):
        assert [some in each for each in decided].count(True) == 1, "the first node does so, for all"
    (master,) = logs(job, "master")
    assert replay(job, master)[2]["same"]

    changed = job.folder / "changed.replay"
    changed.write_bytes(with_decision(logs(job, "agent")[0].read_bytes(), b"as committed", b"as forgotten"))
    done = job.phalanx("replay", changed, check=False)
    assert done.returncode == 1
    assert f"recorded: -> mark step 3 of epoch 1 of {directory} as forgotten\n" in done.stdout
    assert f"replayed: -> mark step 3 of epoch 1 of {directory} as committed\n" in done.stdout


def test_each_life_of_a_master_has_its_log(job):
    """The first one is killed, and its log has no end; the next one's begins with the journal."""
    node = job.node(0, "light_steps.py", nnodes="1:2", flags=["--replay-log=replay"])
    job.wait_stepping(life=0, world=1)
    (master,) = (pid for pid in job.processes() if read_proc(pid, "comm").startswith(b"phalanx-master"))
    os.kill(master, signal.SIGKILL)
    assert wait_ends([master], 60) == []
    node.wait_line("the master answers again")
    job.stop()
    assert node.wait() == 0, job.story()
    first, second = (replay(job, path) for path in logs(job, "master"))
    assert (first[2]["same"], first[2]["end"]) == (True, "cut off")
    began = next(step for step in first[1] if any("start_round" in action for action in actions([step])))
    assert began["event"] == "time has passed"
    assert (second[2]["same"], second[2]["end"]) == (True, "closed")
    assert second[1][0]["event"] == "the job is taken up"
    assert any(action.startswith("record job-resumed") for action in actions(second[1]))


def test_a_log_that_cannot_be_made_is_told_before_anything_runs(job):
    node = job.standalone("light_steps.py", flags=["--replay-log=/nowhere/logs"])
    assert node.wait() == 1, job.story()
    assert "--replay-log: /nowhere/logs: No such file or directory" in node.stderr
    assert not job.found("main")
