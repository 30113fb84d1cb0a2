"""Checkpoints of real jobs: whatever is killed, the newest committed step comes back, and nothing else does.

Loopback addresses stand for nodes: each has its own memory below /dev/shm, named by the job and the address.
"""

import contextlib
import json
import os
import re
import signal
from pathlib import Path

import pytest
from control_page import AGENT_PART, RANK_PART, SEALED, SLOT_AT, SLOT_BYTES
from harness import PATIENCE_S, command_path, descends_from, read_proc, wait_ends

SHM = Path("/dev/shm")
RESTARTS = "--max-restarts=2000"


def fnv(text):
    value = 14695981039346656037
    for byte in text.encode("utf-8", "surrogateescape"):
        value = ((value ^ byte) * 1099511628211) % (1 << 64)
    return f"{value:016x}"


def memory_of(job, index=0, job_id=None):
    """The folder of a node's checkpoint memory."""
    return SHM / f"phx-{os.geteuid()}-{fnv(job_id or job.id)}-{fnv(f'127.0.0.{index + 1}')}"


def memory_of_all(job):
    return sorted(SHM.glob(f"phx-*-{fnv(job.id)}-*"))


@pytest.fixture
def directory(tmp_path):
    """Of checkpoints."""
    return tmp_path / "checkpoints"


@pytest.fixture
def jobs_with_memory():
    """What a failed test's jobs leave in /dev/shm goes, when their processes have ended."""
    jobs = []
    yield jobs
    for job in jobs:
        for path in memory_of_all(job):
            remove(path)


@pytest.fixture
def make_job(jobs_with_memory, make_job):
    def make(network=None):
        jobs_with_memory.append(make_job(network))
        return jobs_with_memory[-1]

    return make


def remove(path):
    for inner in path.iterdir() if path.is_dir() else []:
        remove(inner)
    path.rmdir() if path.is_dir() else path.unlink()


def start(job, directory, *arguments, index=0, nnodes="1", nproc=2, flags=(), env=None):
    """A node of a job that saves into `directory`."""
    flags = [RESTARTS, "--redirects=3", *flags]
    return job.node(index, "saving.py", directory, *arguments, nnodes=nnodes, nproc=nproc, flags=flags, env=env)


def losses(job, rank):
    """{step: loss}. A step that was done again must have come to the same."""
    found = {}
    for event in job.found("step", rank=rank):
        assert found.setdefault(event["n"], event["loss"]) == event["loss"], (
            f"step {event['n']} of life {event['life']}"
        )
    return found


def restored(job, life, rank=0, timeout_s=PATIENCE_S):
    return job.wait_events("restored", life=life, rank=rank, timeout_s=timeout_s)[0]


def restored_on(job, node):
    """What the ranks of a node have restored first."""

    def find(events):
        return next((e for e in events if e["ev"] == "restored" and descends_from(e["pid"], node.pid)), None)

    return job.wait(find, f"a rank of {node.name} that has restored")


def check_restores(job, world):
    """Every life begins with the same step on all ranks, which is no older than what any rank had been promised."""
    promised = 0
    begun = {}
    for event in job.events:
        if event["ev"] == "committed":
            promised = max(promised, event["n"])
        elif event["ev"] == "restored":
            assert event["n"] >= begun.setdefault(event["life"], (event["n"], promised))[1], (event, promised)
            assert event["n"] == begun[event["life"]][0], event
    assert all(len(job.found("restored", life=life)) in (0, world) for life in begun), begun
    return begun


# --- restores -------------------------------------------------------------------------------------------------------


def plan_kills(choose, lives, steps, world):
    """One death a life, at rising steps, behind every third of which is a save: --fault arguments."""
    saves = choose.sample(range(3, steps, 3), -(-lives // 3))
    others = choose.sample([step for step in range(2, steps) if step not in saves], lives - len(saves))
    phases = {step: ("forward", "update")[index % 2] for index, step in enumerate(others)}
    phases.update(dict.fromkeys(saves, "saved"))
    return [
        f"--fault={life}:{choose.randrange(world)}:{phase}-{step}:kill"
        for life, (step, phase) in enumerate(sorted(phases.items()))
    ]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_losses_of_a_run_with_kills(make_job, directory, pytestconfig, choose):
    """They are those of one without, to the last bit, on both ranks. Each place of a death is met, with any seed."""
    kills = min(pytestconfig.getoption("--kills") or 6, 30)
    steps = 5 * kills
    whole, killed = make_job(), make_job()
    reference = start(whole, directory / "whole", f"--steps={steps}", "--memory-every=0")
    faults = plan_kills(choose, kills, steps, 2)
    node = start(killed, directory / "killed", f"--steps={steps}", *faults)
    assert reference.wait() == 0, whole.story()
    assert node.wait(180) == 0, killed.story()
    assert sorted(killed.lives()) == list(range(kills + 1))
    for rank in (0, 1):
        assert losses(killed, rank) == losses(whole, rank)
        assert len(losses(whole, rank)) == steps
    check_restores(killed, 2)
    assert {event["source"] for event in killed.found("restored") if event["n"] > 0} == {"memory"}
    assert memory_of_all(killed) == []


def restart_agent(job, node, *arguments, **options):
    """The agent is killed, its ranks end with it, and a new phalanx-run of the job joins at the same node."""
    kill_agent(job, node)
    return start(job, *arguments, **options)


def kill_agent(job, node):
    others = [other.pid for other in job.nodes if other is not node and other.process.poll() is None]
    everything = [pid for pid in job.processes(node) if not serves(others, pid)]
    node.signal(signal.SIGKILL)
    assert node.wait() == -signal.SIGKILL
    assert [read_proc(pid, "comm") for pid in wait_ends(everything, 60)] == []


def serves(others, pid):
    """It goes on for other agents: the job's master, and what is theirs, where they have the same address."""
    is_master = bool(others) and read_proc(pid, "comm").startswith(b"phalanx-master")
    return is_master or any(descends_from(pid, other) for other in others)


def wait_committed(job, step, **fields):
    """The first promise of that step or a later one."""

    def find(_):
        return next((event for event in job.found("committed", **fields) if event["n"] >= step), None)

    return job.wait(find, f"step {step} committed {fields}")


def end(job, *nodes):
    job.stop()
    assert [node.wait() for node in nodes] == [0] * len(nodes), job.story()
    assert memory_of_all(job) == []


@pytest.mark.slow
def test_a_killed_agent_finds_its_memory_again(job, directory):
    """The next phalanx-run at the node takes up what lies there, and goes on from the newest committed step."""
    arguments = [directory, "--step-ms=5"]
    node = start(job, *arguments)
    for _ in range(2):
        promised = wait_committed(job, restored_on(job, node)["n"] + 30)["n"]
        assert memory_of_all(job) == [memory_of(job)]
        node = restart_agent(job, node, *arguments)
        found = restored_on(job, node)
        assert found["source"] == "memory", job.story()
        assert found["n"] >= promised
    wait_committed(job, found["n"] + 1)
    end(job, node)
    for rank in (0, 1):
        losses(job, rank)


@pytest.mark.slow
def test_one_of_two_agents_is_killed(job, directory):
    """Both nodes restore from memory: the rank that has lived on, and the one of the new agent."""
    arguments = [directory, "--step-ms=5"]
    nodes = [start(job, *arguments, index=index, nnodes="2", nproc=1) for index in (0, 1)]
    promised = wait_committed(job, 30, life=0)["n"]
    nodes[1] = restart_agent(job, nodes[1], *arguments, index=1, nnodes="2", nproc=1)
    for rank in (0, 1):
        found = restored(job, 1, rank)
        assert (found["source"], found["n"] >= promised) == ("memory", True), job.story()
    wait_committed(job, promised + 1, life=1)
    end(job, *nodes)
    check_restores(job, 2)
    for rank in (0, 1):
        losses(job, rank)


def test_a_node_is_replaced_by_another(job, directory):
    """What the lost one held is gone: all restore from disk, and are told why not from memory."""
    arguments = [directory, "--step-ms=5", "--disk-every=30", "--wait=stored"]
    nodes = [start(job, *arguments, index=index, nnodes="2", nproc=1) for index in (0, 1)]
    job.wait_events("stored", 2)
    promised = wait_committed(job, 36, life=0)["n"]
    kill_agent(job, nodes[1])
    nodes[1] = start(job, *arguments, index=2, nnodes="2", nproc=1)
    for rank in (0, 1):
        found = restored(job, 1, rank)
        assert found["source"] == "disk", job.story()
        assert found["n"] % 30 == 0
        # The agent dies a moment after this test has decided so: the newest step that memory held may be a later one.
        passed_over = re.findall(r"step (\d+) in memory: the node of group rank", found["why"])
        assert max(map(int, passed_over)) >= promised - promised % 3, found["why"]
        assert "does not hold it" in found["why"]
    wait_committed(job, 1, life=1)
    job.stop()
    assert [node.wait() for node in nodes] == [0, 0], job.story()
    assert memory_of_all(job) == [memory_of(job, 1)], "of the lost node"
    for rank in (0, 1):
        losses(job, rank)


# --- breakpoints ----------------------------------------------------------------------------------------------------


def manifest(directory, step):
    """Of a step on disk, None where it has none."""
    path = directory / str(step) / "manifest.json"
    return json.loads(path.read_text().rpartition("crc32 ")[0]) if path.exists() else None


def stored_steps(directory):
    return sorted(int(path.parent.name.partition(".")[0]) for path in directory.glob("*/manifest.json"))


def rows(job, kind):
    """Of the record: (text) of that kind."""
    (record,) = job.folder.glob("state*/**/events.db")
    lines = job.phalanx("events", f"--state-dir={record.parent}").stdout.splitlines()[1:]
    return [line.split(None, 3)[3] for line in lines if line.split()[2] == kind]


def test_a_failure_stores_the_newest_step(job, directory):
    """The step goes to disk while the next life restores it from memory; the job ends well, and no memory stays."""
    fault = "--fault=0:1:forward-20:kill"
    node = start(job, directory, "--steps=22", "--at-breakpoint", fault)
    assert node.wait() == 0, job.story()
    assert (restored(job, 1)["source"], restored(job, 1)["n"]) == ("memory", 18)
    assert stored_steps(directory) == [18, 21], "the failure's, and the last one"
    assert len(manifest(directory, 18)["shards"]) == 2
    assert memory_of_all(job) == []


@pytest.mark.parametrize("stores", [True, False], ids=["stored", "kept in memory"])
def test_the_job_fails(job, directory, stores):
    """With save_at_breakpoint the newest step is on disk before the job ends. Without it, memory that is newer than
    disk stays; people are told where it is, and a new run of the job goes on from there, also behind one that has ended
    while it waited for another node."""
    arguments = [directory, "--steps=22", *(["--at-breakpoint"] if stores else [])]
    node = start(job, *arguments, "--fault=0:0:forward-20:exception", flags=["--max-restarts=0"], nproc=1)
    assert node.wait() == 1, job.story()
    assert stored_steps(directory) == ([18] if stores else [])
    assert memory_of_all(job) == ([] if stores else [memory_of(job)])
    if stores:
        return
    said = node.wait_line("is only in memory")
    assert f"step 18 of {directory} is only in memory, {memory_of(job)} (" in said
    assert ": the same command goes on from it, `phalanx ckpt rescue " in said
    waits = start(job, *arguments, nnodes="2", nproc=1)
    waits.wait_line("waiting for 1 more node")
    waits.signal(signal.SIGINT)
    assert waits.wait() == 130, job.story()
    assert waits.wait_line("is only in memory") == said
    assert memory_of_all(job) == [memory_of(job)]
    again = start(job, *arguments, nproc=1)
    assert again.wait() == 0, job.story()
    assert (job.found("restored")[-1]["source"], job.found("restored")[-1]["n"]) == ("memory", 18)
    assert memory_of_all(job) == []
    assert sorted(losses(job, 0)) == list(range(1, 23))


def test_nothing_begins_anew_where_a_directory_cannot_be_read(job, directory):
    """Nobody knows what lies behind a name that the file system does not answer for: the job ends and says so."""
    directory.mkdir()
    (directory / "100").symlink_to("100")
    node = start(job, directory, flags=["--max-restarts=0"], nproc=1)
    assert node.wait() == 1, job.story()
    why = f"{directory}/100: stat: Too many levels of symbolic links"
    assert f"checkpoint: {directory} cannot be read: {why}" in node.stderr
    assert f"whether there is a step to restore is not known: {why}" in node.stderr
    assert job.found("restored") == []


@pytest.mark.parametrize("count", [1, 2])
def test_sigterm_stores_the_newest_step(job, directory, count):
    """Within --stop-timeout. Of two nodes one is told to go, and the other cannot go on without it."""
    arguments = [directory, "--step-ms=5", "--at-breakpoint"]
    nodes = [start(job, *arguments, index=index, nnodes=str(count), nproc=1) for index in range(count)]
    promised = wait_committed(job, 30)["n"]
    nodes[-1].signal(signal.SIGTERM)
    assert nodes[-1].wait() == 143, job.story()
    assert max(stored_steps(directory)) >= promised, job.story()
    newest = max(event["n"] for event in job.found("committed"))
    assert max(stored_steps(directory)) >= newest
    if count == 2:
        assert memory_of(job) in memory_of_all(job), "its agent lives"
        nodes[0].signal(signal.SIGTERM)
        assert nodes[0].wait() == 143, job.story()
    # One of two nodes may have sealed a step that the other has not: its memory stays then, and it says so.
    kept = [memory_of(job, index) for index, node in enumerate(nodes) if "is only in memory" in node.stderr]
    assert memory_of_all(job) == sorted(kept) and (count == 2 or not kept), job.story()


# --- storage --------------------------------------------------------------------------------------------------------


def move_away(disk):
    (disk.path / "checkpoints").rename(disk.path / "elsewhere")


def move_back(disk):
    (disk.path / "elsewhere").rename(disk.path / "checkpoints")


BROKEN = {
    "full": (lambda disk: disk.fill(), lambda disk: disk.make_room(), "No space left on device"),
    "without files": (lambda disk: disk.use_up_files(), lambda disk: disk.free_files(), "No space left on device"),
    "away": (move_away, move_back, "No such file or directory"),
}


@pytest.mark.parametrize("way", BROKEN)
def test_storage_breaks(small_disk, job, directory_on_small_disk, way):
    """Whoever waits for storage is told why; training and memory go on, and so does storage when it is well again."""
    spoil, mend, why = BROKEN[way]
    node = start(
        job, directory_on_small_disk, "--disk-every=10", "--wait=stored", "--step-ms=5", "--keep-last=2", nproc=1
    )
    job.wait_events("stored")
    spoil(small_disk)
    lost = job.wait_events("unstored")[0]
    assert why in lost["why"], lost
    assert f"step {lost['n']} of {directory_on_small_disk} is not stored: " in node.wait_line("is not stored")
    wait_committed(job, lost["n"] + 1)
    mend(small_disk)
    job.wait(lambda _: any(event["n"] > lost["n"] for event in job.found("stored")), "a step that is stored again")
    end(job, node)
    assert any(why in row for row in rows(job, "checkpoint-failed"))


@pytest.fixture
def directory_on_small_disk(small_disk):
    return small_disk.path / "checkpoints"


def test_storage_that_is_read_only(small_disk, job, directory_on_small_disk):
    """From the beginning: saves to memory, and restores from there, are as ever. The job ends well, and what it was to
    have on disk stays in memory."""
    small_disk.make_read_only(True)
    arguments = [
        directory_on_small_disk,
        "--disk-every=10",
        "--wait=stored",
        "--steps=22",
        "--fault=0:0:forward-17:kill",
    ]
    node = start(job, *arguments, nproc=1)
    assert node.wait() == 0, job.story()
    assert [event["n"] for event in job.found("unstored")] == [10, 20]
    assert all("o such file or directory" in event["why"] for event in job.found("unstored")), job.found("unstored")
    assert (restored(job, 1)["source"], restored(job, 1)["n"]) == ("memory", 15)
    assert f"step 21 of {directory_on_small_disk} is only in memory, {memory_of(job)} (" in node.stderr
    assert memory_of_all(job) == [memory_of(job)]


@pytest.mark.slow
def test_storage_hangs(hanging_disk, job):
    """Training goes on, a new life takes memory and asks storage behind no write, and a node that is told to go says
    what storage has not taken. What hangs in the kernel cannot be killed: the process ends when the disk goes on."""
    directory = hanging_disk.path / "checkpoints"
    arguments = [directory, "--disk-every=10", "--step-ms=20", "--at-breakpoint"]
    node = start(job, *arguments, nproc=1, flags=["--stop-timeout=2"])
    wait_committed(job, 12)
    with hanging_disk.hanging():
        promised = wait_committed(job, job.found("committed")[-1]["n"] + 30)["n"]
        os.kill(job.pid(0, 0), signal.SIGKILL)
        found = restored(job, 1)
        assert (found["source"], found["n"] >= promised) == ("memory", True), job.story()
        assert "storage has not answered" not in found["why"]
        wait_committed(job, found["n"] + 1, life=1)
        node.signal(signal.SIGTERM)
        node.wait_line("checkpoint: storage has not taken step ")
    assert node.wait() == 143, job.story()
    check_restores(job, 1)


@pytest.mark.slow
def test_storage_of_one_directory_hangs_and_that_of_another_does_not(hanging_disk, job, tmp_path):
    """Nobody waits behind a disk that is not its own: neither who stores nor who restores."""
    places = [hanging_disk.path / "first", tmp_path / "second"]
    node = job.node(0, "two_places.py", *places, nnodes="1", nproc=1, flags=[RESTARTS, "--redirects=3"])

    def wait_stored(n, life=0):
        return job.wait(lambda _: next((e for e in job.found("stored", life=life) if e["n"] >= n), None), f"step {n}")

    wait_stored(10)
    with hanging_disk.hanging():
        stored = job.found("stored")[-1]["n"]
        wait_stored(stored + 50)
        os.kill(job.pid(0, 0), signal.SIGKILL)
        begun = job.wait_events("begun", life=1)[0]
        assert begun["second"] >= stored + 50
        wait_stored(begun["second"] + 50, life=1)
        assert job.found("late") == job.found("unstored") == []
    job.wait(lambda _: max(stored_steps(places[0]), default=0) > stored, "the first goes on")
    end(job, node)


@pytest.mark.slow
def test_a_milestone_is_stored_itself_when_storage_is_behind(hanging_disk, job):
    """It comes while another step hangs on its way: no newer one takes its place, as it does with other steps."""
    directory = hanging_disk.path / "checkpoints"
    arguments = [directory, "--memory-every=1", "--disk-every=10", "--keep-every=20", "--keep-last=9", "--step-ms=50"]
    directory.mkdir()  # which would hang
    with hanging_disk.hanging():
        node = start(job, *arguments, nproc=1)
        job.wait(lambda events: any(e["ev"] == "step" and e["n"] >= 45 for e in events), "step 45")
        assert stored_steps(directory) == []
    job.wait(lambda _: {10, 20} <= set(stored_steps(directory)), "steps 10 and 20 on disk")
    end(job, node)


@pytest.mark.slow
def test_an_agent_dies_while_a_step_is_being_stored(hanging_disk, job):
    """The next round stores it, or a newer one in its place: the job ends well without another save to disk, and no
    node keeps memory of what storage was to take."""
    directory = hanging_disk.path / "checkpoints"
    arguments = [directory, "--memory-every=1", "--disk-every=40", "--step-ms=20"]
    nodes = [start(job, *arguments, nnodes="2", nproc=1)]
    nodes[0].wait_line("waiting for 1 more node")  # so that it makes the folder, which hangs: it could not be killed
    nodes.append(start(job, *arguments, index=1, nnodes="2", nproc=1))
    wait_committed(job, 12)
    with hanging_disk.hanging():
        wait_committed(job, 40)
        kill_agent(job, nodes[1])
    nodes[1] = start(job, *arguments, index=1, nnodes="2", nproc=1)
    restored(job, 1)
    end(job, *nodes)
    assert max(stored_steps(directory)) >= 40, job.story()


# --- memory ---------------------------------------------------------------------------------------------------------

MIB = 1 << 20
WIDE = "--width=1024"  # an image of 12 MiB, or, at 2048, of 48
SPARE = 64  # MiB that the agent leaves to others


def with_shm_of(job, mib):
    """Whatever the job starts sees a /dev/shm of that size."""
    if os.geteuid() != 0:
        pytest.skip("mounting another /dev/shm needs root")
    mount = f'mount -t tmpfs -o size={mib}m tmpfs /dev/shm && exec "$@"'
    job.prefix = ["unshare", "--mount", "sh", "-c", mount, "sh"]


TIGHT = {
    "/dev/shm": (SPARE + 34, 0, "MiB of /dev/shm or of the group's memory are free"),
    "memory_budget": (0, 34, "memory_budget is 34 MiB"),
}


def two_in_a_row(job, life):
    """The first step of a life that was committed, and the next one, too: with one slot there is none."""
    steps = [event["n"] for event in job.found("committed", life=life)]
    return next((step for step, following in zip(steps, steps[1:]) if following == step + 1), None)


@pytest.mark.parametrize("where", TIGHT)
def test_memory_for_two_slots(job, directory, where):
    """Saves are committed all the same, and say why there are fewer slots; a killed rank restores from memory."""
    shm, budget, limit = TIGHT[where]
    if shm:
        with_shm_of(job, shm)
    arguments = ["--memory-every=1", "--fault=0:0:update-5:kill"]
    arguments += [f"--memory-budget={budget * MIB}"] if budget else []
    node = start(job, directory, WIDE, *arguments, nproc=1)
    both_slots = job.wait(lambda _: two_in_a_row(job, life=1), "two steps in a row that are committed")
    end(job, node)
    first = job.found("committed")[0]
    assert first["n"] == 1
    assert f"2 slots of 12 MiB instead of 3: {limit}" in re.sub(r"3: \d+ MiB", "3: MiB", first["why"] or "")
    assert (restored(job, 1)["source"], restored(job, 1)["n"]) == ("memory", 4)
    # A slot gets a fresh file behind a restore: saves that find none meanwhile are skipped.
    assert job.found("committed", life=1)[0]["n"] == 5
    skipped = {event["n"] for event in job.found("uncommitted", life=1)}
    assert skipped == set(range(6, both_slots)), job.story()


def test_what_saves_take_is_said_before_the_first_one(job, directory, tmp_path):
    """When each rank of the node has its memory, and once; this job never saves."""
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch\n"
        "from phalanx.checkpoint import Checkpointer\n"
        f"ckpt = Checkpointer({str(directory)!r})\n"
        "assert ckpt.prepare({'weights': torch.ones(1 << 20)}) is None\n"
        "assert ckpt.prepare({'weights': torch.ones(1 << 21)}) is None\n"
    )
    node = job.standalone(script, nproc=2)
    assert node.wait() == 0, job.story()
    said = re.findall(
        r"checkpoint: saves to (\S+) take (\d+) MiB of this node's /dev/shm, in 3 slots a writer", node.stderr
    )
    assert [where for where, _ in said] == [str(directory)]
    assert int(said[0][1]) >= 2 * 3 * 4


def test_no_memory_for_two_slots(job, directory):
    """No save comes to anything, each says what is missing, and the training ends well. Nothing dies of SIGBUS."""
    with_shm_of(job, SPARE + 20)
    node = start(job, directory, WIDE, "--memory-every=1", "--disk-every=3", "--wait=stored", "--steps=4", nproc=1)
    assert node.wait() == 0, job.story()
    assert [event["n"] for event in job.found("uncommitted")] == [1, 2, 3, 4]
    for event in job.found("uncommitted"):
        assert f"{directory}: two slots of 12 MiB each are needed for page '0', and " in event["why"]
        assert "MiB of /dev/shm or of the group's memory are free" in event["why"]
    assert [event["n"] for event in job.found("unstored")] == [3]


@pytest.mark.slow
def test_two_slots_outlive_a_restore(job, directory):
    """Where there is no memory for a third file, what was restored is no reason to stop saving: a rank that begins
    again reads its image instead of keeping it mapped."""
    with_shm_of(job, SPARE + 2 * 109 + 20)
    arguments = [directory, "--width=3072", "--memory-every=1"]
    node = start(job, *arguments, "--fault=0:0:update-3:kill", nproc=1)
    assert (restored(job, 1)["source"], restored(job, 1)["n"]) == ("memory", 2)
    wait_committed(job, 6, life=1)
    assert job.found("uncommitted") == []
    end(job, node)


def test_a_folder_of_the_same_name_is_another_users(job, directory):
    """It is passed over, for the name with a number behind it, also by the next agent."""
    if os.geteuid() != 0:
        pytest.skip("giving a folder away needs root")
    theirs = memory_of(job)
    theirs.mkdir(0o777)
    os.chown(str(theirs), 65534, 65534)
    node = start(job, directory, "--step-ms=5", nproc=1)
    promised = wait_committed(job, 6)["n"]
    assert [path.name for path in memory_of_all(job)] == [theirs.name, theirs.name + "-1"]
    node = restart_agent(job, node, directory, "--step-ms=5", nproc=1)
    found = restored_on(job, node)
    assert (found["source"], found["n"] >= promised) == ("memory", True), job.story()
    job.stop()
    assert node.wait() == 0, job.story()
    assert memory_of_all(job) == [theirs]
    assert list(theirs.iterdir()) == []


class LeftPage:
    """A control page that an agent has left, and its slots."""

    def __init__(self, job, local_rank, memory=None):
        ((folder,),) = ([path for path in (memory or memory_of(job)).iterdir() if path.is_dir()],)
        self.path = folder / f"control-{local_rank}"
        self.slots = {}  # (epoch, step) of what is sealed -> path of the slot
        page = self.path.read_bytes()
        for index in range(3):
            at = SLOT_AT + SLOT_BYTES * index
            word, step, epoch, *_ = RANK_PART.unpack_from(page, at)
            number = AGENT_PART.unpack_from(page, at + 128)[0]
            if word & 0xFF == SEALED and number:
                self.slots[epoch, step] = folder / f"slot-{local_rank}-{index}.{number}"

    def newest(self):
        return self.slots[max(self.slots)]


def flip_a_bit(page):
    with open(str(page.newest()), "r+b") as file:
        file.seek(page.newest().stat().st_size // 3)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0x10]))


def fill_with(size):
    return lambda page: page.path.write_bytes(os.urandom(size))


def make_newer(page):
    """As a later version's."""
    data = page.path.read_bytes()
    page.path.write_bytes(data[:8] + b"\x09" + data[9:])


def seal_what_is_none(page):
    """Slots that say they are sealed, whose files say nothing."""
    for path in page.slots.values():
        path.write_bytes(bytes(path.stat().st_size))


def lead_out(page):
    page.path.unlink()
    page.path.symlink_to("/etc/passwd")


# What is spoilt while no agent lives, and what that is called; None: nothing is left to be read.
SPOILS = {
    "a bit of the newest image": (flip_a_bit, "has CRC"),
    "the newest image is cut": (lambda page: os.truncate(str(page.newest()), 4096), "has 4096 bytes instead of"),
    "the newest image is gone": (lambda page: page.newest().unlink(), "No such file"),
    "all images are zeros": (seal_what_is_none, "has CRC"),
    "the control page is noise": (fill_with(4096), None),
    "the control page is empty": (fill_with(0), None),
    "the control page is a newer one": (make_newer, None),
    "the control page is a link": (lead_out, None),
    "the folder's name is noise": (lambda page: (page.path.parent / "info.json").write_bytes(os.urandom(99)), None),
}


# One of each kind: an image that is not whole, one that is not there, a page that is none. (The reader of pages has a
# fuzzer, checkpoint_control_fuzzer.cc.)
FEW_SPOILS = ("a bit of the newest image", "the newest image is gone", "the control page is noise")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "names",
    [
        FEW_SPOILS,
        pytest.param([name for name in SPOILS if name not in FEW_SPOILS], marks=pytest.mark.long),
    ],
    ids=["a few", "the others"],
)
def test_memory_that_was_spoilt(job, directory, names):
    """Whatever has become of one rank's memory while no agent was there: what is whole in the memory of both is
    restored, else the newest step on disk; what is passed over is named."""
    arguments = [directory, "--step-ms=5", "--disk-every=12", "--keep-last=2"]
    node = start(job, *arguments)
    for name in names:
        spoil, says = SPOILS[name]
        begun = restored_on(job, node)["n"]
        wait_committed(job, begun + 27)
        job.wait(lambda _: stored_steps(directory), "a step on disk")
        kill_agent(job, node)
        on_disk = max(stored_steps(directory))
        pages = [LeftPage(job, rank) for rank in (0, 1)]
        spoil(pages[1])
        whole = set(pages[0].slots) & set(pages[1].slots)
        whole -= {max(pages[1].slots)} if "the newest" in name else whole
        node = start(job, *arguments)
        found = restored_on(job, node)
        in_memory = max(whole)[1] if whole else -1
        expected = ("memory", in_memory) if in_memory >= on_disk else ("disk", on_disk)
        assert (found["source"], found["n"]) == expected, f"{name}: {found}\n{job.story()}"
        if says is not None:
            assert says in node.wait_line("checkpoint memory is passed over: "), name
    end(job, node)
    for rank in (0, 1):
        losses(job, rank)


@pytest.mark.slow
def test_the_newest_save_of_one_of_two_nodes_was_spoilt(job, directory):
    """The other node had read its newest alone, and reads the one before as well."""
    arguments = [directory, "--step-ms=5"]
    nodes = [start(job, *arguments, index=index, nnodes="2", nproc=1) for index in (0, 1)]
    wait_committed(job, 30, life=0)
    kill_agent(job, nodes[1])
    page = LeftPage(job, 0, memory_of(job, 1))
    spoilt, before = sorted(page.slots, reverse=True)[:2]
    flip_a_bit(page)
    nodes[1] = start(job, *arguments, index=1, nnodes="2", nproc=1)
    for rank in (0, 1):
        found = restored(job, 1, rank)
        assert found["source"] == "memory" and found["n"] < spoilt[1], job.story()
        assert f"step {spoilt[1]} in memory: " in found["why"], found["why"]
    assert found["n"] == before[1]
    wait_committed(job, before[1] + 1, life=1)
    end(job, *nodes)


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 2])
def test_a_ddp_save_without_the_shared_image_is_none(job, directory, step):
    """Local rank 0 dies between its own image and the one that all share, in the first save of all or in a later one:
    what there is looks like a whole save of a kind that has no shared image."""
    node = start(job, directory, "--memory-every=1", "--ddp", f"--fault=0:0:shared-{step}:kill")
    assert restored(job, 1)["n"] == restored(job, 1, rank=1)["n"] == step - 1
    wait_committed(job, step, life=1)
    end(job, node)
    for rank in (0, 1):
        losses(job, rank)


@pytest.mark.slow
def test_own_memory_of_a_ddp_rank_that_was_spoilt(job, directory):
    """What all ranks share is whole: the step is restored, and the rank goes on without what was its own."""
    arguments = [directory, "--step-ms=5", "--memory-every=40", "--ddp"]
    node = start(job, *arguments)
    wait_committed(job, 40)
    kill_agent(job, node)
    pages = [LeftPage(job, rank) for rank in (0, 1)]
    step = max(set(pages[0].slots) & set(pages[1].slots) & set(LeftPage(job, "main").slots))[1]
    seal_what_is_none(pages[1])
    node = start(job, *arguments)
    for rank in (0, 1):
        found = job.wait_events("restored", count=2, rank=rank)[-1]
        assert (found["source"], found["n"]) == ("memory", step), job.story()
        assert ("its random numbers stay as they are" in (found["why"] or "")) == (rank == 1), found
    assert "has CRC" in node.wait_line("checkpoint memory is passed over: ")
    wait_committed(job, step + 40)
    end(job, node)


# --- who else is there ----------------------------------------------------------------------------------------------


def test_two_jobs_of_one_node(make_job, directory):
    """Each has its own memory. One ends while the other's agent is killed, and finds its own again."""
    jobs = [make_job(), make_job()]
    arguments = ["--step-ms=5"]
    nodes = [start(job, directory / job.id, *arguments, nproc=1) for job in jobs]
    promised = [wait_committed(job, 12)["n"] for job in jobs]
    kill_agent(jobs[0], nodes[0])
    end(jobs[1], nodes[1])
    nodes[0] = start(jobs[0], directory / jobs[0].id, *arguments, nproc=1)
    found = restored_on(jobs[0], nodes[0])
    assert (found["source"], found["n"] >= promised[0]) == ("memory", True), jobs[0].story()
    end(jobs[0], nodes[0])


def test_a_job_of_an_odd_name(job, directory):
    """Names of folders are hashes: any job id and any path do."""
    job.id = f"../\u00fc %s'\"$(x)-{job.id}"
    arguments = [directory / "a b\u00e9\"'{}", "--step-ms=5"]
    node = start(job, *arguments, nproc=1)
    promised = wait_committed(job, 12)["n"]
    assert memory_of_all(job) == [memory_of(job)]
    node = restart_agent(job, node, *arguments, nproc=1)
    found = restored_on(job, node)
    assert (found["source"], found["n"] >= promised) == ("memory", True), job.story()
    end(job, node)


def test_two_agents_at_one_address(job, directory):
    """Each has a folder of its own, and the next agent takes that which nobody holds."""

    def at_one_address(number):
        own = [f"--log-dir={job.folder / f'logs-{number}'}", f"--state-dir={job.folder / f'state-{number}'}"]
        return start(job, directory, "--step-ms=5", nnodes="2", nproc=1, flags=own)

    nodes = [at_one_address(number) for number in (0, 1)]
    promised = wait_committed(job, 12)["n"]
    base = memory_of(job)
    assert memory_of_all(job) == [base, base.with_name(base.name + "-1")]
    kill_agent(job, nodes[1])
    nodes[1] = at_one_address(1)
    for rank in (0, 1):
        found = restored(job, 1, rank)
        assert (found["source"], found["n"] >= promised) == ("memory", True), job.story()
    end(job, *nodes)


# --- the master -----------------------------------------------------------------------------------------------------


def a_node_has_not_sealed(job, nodes):
    """One agent stands still: its rank's image is sealed, and nobody has heard of it."""
    nodes[1].signal(signal.SIGSTOP)
    step = job.found("committed", rank=1)[-1]["n"]  # the last that its rank can have heard of
    job.wait(lambda _: job.found("saved", rank=1)[-1]["n"] > step, "a save of the node that stands still")
    return lambda: nodes[1].signal(signal.SIGCONT)


def a_step_is_being_stored(job, _nodes):
    """Storage hangs in whatever it does: making the folder, writing, closing."""
    before = len(job.found("saved"))
    job.wait(lambda _: len(job.found("saved")) > before + 8, "a save to disk while it hangs")
    return lambda: None


@pytest.mark.slow
@pytest.mark.parametrize("point", [a_node_has_not_sealed, a_step_is_being_stored], ids=lambda point: point.__name__)
def test_the_master_dies(hanging_disk, job, point):
    """Between what a rank has sealed and its commit, or while a step is on its way to storage. The next master hears of
    it from the agents: no rank is restarted, later steps are committed and stored, and the job ends well."""
    directory = hanging_disk.path / "checkpoints"
    arguments = [directory, "--disk-every=6", "--step-ms=20"]
    master = start_master(job)
    flags = ["--rdzv-conf=is_host=0"]
    nodes = [start(job, *arguments, nnodes="2", nproc=1, flags=flags)]
    master.wait_line("node-joined")  # so that rank 0 is its
    nodes.append(start(job, *arguments, index=1, nnodes="2", nproc=1, flags=flags))
    wait_committed(job, 7)
    with hanging_disk.hanging() if point is a_step_is_being_stored else contextlib.nullcontext():
        go_on = point(job, nodes)
        promised = job.found("committed")[-1]["n"]
        master.signal(signal.SIGKILL)
        assert master.wait() == -signal.SIGKILL
        go_on()
        master = start_master(job, "--resume")
        wait_committed(job, promised + 7)
    master.wait_line("checkpoint-stored")
    os.kill(job.pid(0, 0), signal.SIGKILL)
    newest = job.found("committed")[-1]["n"]
    for rank in (0, 1):
        assert restored(job, 1, rank)["n"] >= newest, job.story()
    job.stop()
    assert [node.wait() for node in [*nodes, master]] == [0, 0, 0], job.story()
    assert memory_of_all(job) == []
    check_restores(job, 2)
    for rank in (0, 1):
        losses(job, rank)


# --- kills at any time ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(36_000)
@pytest.mark.parametrize("kind", [pytest.param("full", marks=pytest.mark.long), "ddp"])
def test_kills_anywhere_in_saving(job, directory, pytestconfig, choose, kind):
    """SIGKILL by a timer of the kernel, somewhere in or behind a save, of one of two ranks: each life restores the
    newest step that any rank was promised, or a later one, the same on both, whole.
    (src/checkpoint/rank/kill_test.cc has a thousand writers without torch, against the memory's own protocol.)"""
    kills = pytestconfig.getoption("--kills") or 10
    seed = choose.randrange(1 << 31)
    arguments = ["--width=512", "--disk-every=4", "--keep-last=2", f"--seed={seed}", f"--deaths={kills}"]
    if kind == "ddp":
        arguments.append("--ddp")
    node = start(job, directory, "--memory-every=1", *arguments)
    restored(job, kills, timeout_s=PATIENCE_S + 15 * kills)
    wait_committed(job, 1, life=kills)
    end(job, node)
    assert sorted(check_restores(job, 2)) == list(range(kills + 1))
    assert (directory / "latest").exists()
    assert not (directory / ".recycled").exists(), "the job has ended well"
    for rank in (0, 1):
        losses(job, rank)


def start_master(job, *flags):
    """A phalanx-master that no phalanx-run has started."""
    place = [f"--port={job.port}", f"--job-id={job.id}", f"--state-dir={job.folder / 'state-master'}"]
    return job.run(
        *place, "--nnodes=2", "--lease=15", RESTARTS, *flags, command=[command_path("phalanx-master")], name="master"
    )


class Victims:
    """A job of two nodes of one rank each and a master; whoever is killed is started again, as a cluster does it."""

    def __init__(self, job, *arguments):
        self.job, self.arguments = job, arguments
        self.master = start_master(job)
        self.nodes = [self.start(index) for index in (0, 1)]

    def start(self, index):
        flags = ["--rdzv-conf=is_host=0"]
        return start(self.job, *self.arguments, index=index, nnodes="2", nproc=1, flags=flags)

    def wait_ranks(self, event, after):
        """Until both ranks have told that behind a time."""

        def find(events):
            return {e["rank"] for e in events if e["ev"] == event and e["t"] > after} == {0, 1}

        self.job.wait(find, f"both ranks that tell {event!r} after {after}")

    def kill_rank(self, rank):
        pid = [event["pid"] for event in self.job.found("restored", rank=rank)][-1]
        os.kill(pid, signal.SIGKILL)
        return "restored"

    def kill_agent(self, index):
        kill_agent(self.job, self.nodes[index])
        self.nodes[index] = self.start(index)
        return "restored"

    def kill_master(self, _):
        self.master.signal(signal.SIGKILL)
        assert self.master.wait() == -signal.SIGKILL
        self.master = start_master(self.job, "--resume")
        return "committed"

    def kill_rank_and_master(self, rank):
        self.master.signal(signal.SIGKILL)
        self.kill_rank(rank)
        self.kill_master(rank)
        return "restored"


@pytest.mark.slow
@pytest.mark.timeout(36_000)
def test_kills_of_anyone(job, directory, pytestconfig, choose):
    """Ranks, agents, the master, while saves are under way, to memory and to disk: what was promised is restored."""
    kills = pytestconfig.getoption("--kills") // 5 or 8
    victims = Victims(job, directory, "--width=512", "--memory-every=1", "--disk-every=4", "--keep-last=2")
    ways = [victims.kill_rank, victims.kill_agent, victims.kill_master, victims.kill_rank_and_master]
    event, after = "restored", 0
    for number in range(kills):
        victims.wait_ranks(event, after)
        saves = len(job.found("saving")) + choose.randint(1, 16)
        job.wait(lambda _, saves=saves: len(job.found("saving")) >= saves, "some saves")
        way, whom = (ways * kills)[number] if number < len(ways) else choose.choice(ways), choose.randrange(2)
        print(f"{number:4} {way.__name__} {whom}", flush=True)
        after = job.events[-1]["t"]
        event = way(whom)
    victims.wait_ranks(event, after)
    job.stop()
    assert [node.wait() for node in [*victims.nodes, victims.master]] == [0, 0, 0], job.story()
    # Where saves to memory had written over the last one to storage before that was read, the newest stays in memory:
    # whole, on both nodes, each of which says so.
    said = [re.findall(r"checkpoint: (step \d+) of .* is only in memory", node.stderr) for node in victims.nodes]
    assert len(memory_of_all(job)) == sum(map(len, said)) and said[0] == said[1], job.story()
    assert not said[0] or any("no longer in memory" in node.stderr for node in job.nodes), job.story()
    check_restores(job, 2)
    for rank in (0, 1):
        losses(job, rank)
