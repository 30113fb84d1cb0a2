"""The master dies, or stands still: ranks train on, and who serves the job next goes on where the last one ended."""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import socket
import threading

import pytest
from harness import PATIENCE_S, command_path, descends_from, is_running, read_proc, wait_ends, workload


def master_pid(job):
    (pid,) = (pid for pid in job.processes() if read_proc(pid, "comm").startswith(b"phalanx-master"))
    return pid


def kill_master(job):
    pid = master_pid(job)
    os.kill(pid, signal.SIGKILL)
    assert wait_ends([pid], 60) == []


def kinds(job):
    """Of the record's rows: whichever node's phalanx-run was the first to start a master."""
    (record,) = job.folder.glob("state*/**/events.db")
    return kinds_in(job, record)


def kinds_in(job, record):
    rows = job.phalanx("events", f"--state-dir={record.parent}").stdout.splitlines()[1:]
    return [row.split()[2] for row in rows]


@pytest.mark.slow
def test_a_killed_master_is_started_again(job):
    """By the phalanx-run whose child it was: no rank is restarted, and the next failure is served as ever."""
    node = job.standalone("steps.py", flags=["--max-restarts=1"])
    job.wait_stepping(life=0, world=2)
    for _ in range(2):
        kill_master(job)
        node.wait_line("the job's master has ended")
        node.wait_line("the master answers again")
        node.lines["stderr"].clear()
    os.kill(job.pid(1, 0), signal.SIGKILL)
    job.wait_stepping(life=1, world=2)
    job.stop()
    assert node.wait() == 0, job.story()
    assert sorted(job.lives()) == [0, 1]
    seen = kinds(job)
    assert "job-resumed" in seen  # twice, but a row may die with its master
    assert seen.count("round-started") == 2
    assert seen[-1] == "master-stopped"


@pytest.mark.parametrize("journal", ["whole", "damaged", "gone"])
def test_two_nodes_go_on(job, journal):
    """Also from what the agents tell alone. The restart that was used is remembered."""
    nodes = [job.node(index, "light_steps.py", flags=["--max-restarts=1"]) for index in (0, 1)]
    job.wait_stepping(life=0, world=2)
    os.kill(job.pid(1, 0), signal.SIGKILL)
    job.wait_stepping(life=1, world=2)
    (path,) = job.wait(lambda _: list(job.folder.glob("state*/**/journal")), "the journal")
    os.kill(master_pid(job), signal.SIGSTOP)  # it may not write another one
    if journal == "damaged":
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    if journal == "gone":
        path.unlink()
    kill_master(job)
    for node in nodes:
        node.wait_line("the master answers again")
    os.kill(job.pid(0, 1), signal.SIGKILL)
    assert [node.wait() for node in nodes] == [1, 1], job.story()
    assert sorted(job.lives()) == [0, 1]
    assert "--max-restarts=1 is used up" in nodes[0].stderr


def test_a_failure_without_a_master(job):
    """A rank that dies while nobody serves the job is restarted by the next master."""
    nodes = [job.node(index, "light_steps.py", flags=["--max-restarts=1"]) for index in (0, 1)]
    job.wait_stepping(life=0, world=2)
    victim = job.pid(1, 0)
    os.kill(master_pid(job), signal.SIGKILL)
    os.kill(victim, signal.SIGKILL)
    job.wait_stepping(life=1, world=2)
    job.stop()
    assert [node.wait() for node in nodes] == [0, 0], job.story()
    assert sorted(job.lives()) == [0, 1]


@pytest.mark.slow
def test_a_master_that_stood_still(job):
    """SIGSTOP for longer than the lease: nobody is given up, and nothing is restarted, be it that the master goes on or
    that another node has taken the job up by then."""
    nodes = [job.node(index, "light_steps.py", flags=["--max-restarts=0"]) for index in (0, 1)]
    job.wait_stepping(life=0, world=2)
    pid = master_pid(job)
    os.kill(pid, signal.SIGSTOP)
    stopped_at = job.found("step")[-1]["t"]
    job.wait(lambda events: events[-1]["t"] > stopped_at + 6, "6 s of steps")
    os.kill(pid, signal.SIGCONT)
    job.stop()
    assert [node.wait() for node in nodes] == [0, 0], job.story()
    assert sorted(job.lives()) == [0]
    seen = {kind for record in job.folder.glob("state*/**/events.db") for kind in kinds_in(job, record)}
    assert seen & {"master-stalled", "master-elected"}


# --- a master that stands alone, stopped at any point ---------------------------------------------------------------


def start_master(job, *flags, nnodes="2:3"):
    """A phalanx-master that no phalanx-run has started; it can be started so again and again."""
    place = [f"--port={job.port}", f"--job-id={job.id}", f"--state-dir={job.folder / 'state-master'}"]
    return job.run(*place, f"--nnodes={nnodes}", *flags, command=[command_path("phalanx-master")], name="master")


def join(job, index, script="signals.py", *arguments, nnodes="2:3", flags=()):
    """A node that hosts no master."""
    arguments = arguments or (["end"] if script == "signals.py" else [])
    return job.node(index, script, *arguments, nnodes=nnodes, flags=["--rdzv-conf=is_host=0", *flags])


IN_MOVED_TO, IN_CREATE = 0x80, 0x100  # of <sys/inotify.h>


def wait_for_journal(job):
    """Until the master has written its first one. It does so behind its decisions: a rank may have begun before."""
    folder = job.folder / "state-master"
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(os.O_CLOEXEC)
    try:
        assert libc.inotify_add_watch(watch, os.fsencode(folder), IN_CREATE | IN_MOVED_TO) > 0, ctypes.get_errno()
        while not (folder / "journal").exists():
            assert select.select([watch], [], [], PATIENCE_S)[0], f"no journal in {folder}\n{job.story()}"
            os.read(watch, 4096)
    finally:
        os.close(watch)


def kill_now(master):
    master.signal(signal.SIGKILL)
    assert master.wait() == -signal.SIGKILL


def freeze(master, seconds):
    """It neither serves nor ends for so long."""
    master.signal(signal.SIGSTOP)
    assert wait_ends([master.pid], seconds) == [master.pid]
    master.signal(signal.SIGCONT)


def killed(*flags):
    def interrupt(job, master):
        kill_now(master)
        return start_master(job, *flags)

    return interrupt


def frozen(seconds):
    def interrupt(_job, master):
        freeze(master, seconds)
        return master

    return interrupt


def killed_twice(job, master):
    """The second one before it can know much."""
    kill_now(master)
    second = start_master(job, "--resume")
    second.wait_line("master-started")
    kill_now(second)
    return start_master(job, "--resume")


INTERRUPTIONS = {
    "killed, --resume": killed("--resume"),
    "killed twice, --resume": killed_twice,
    "killed, begun anew": killed(),
    "frozen for a moment": frozen(0.5),
    "frozen for longer than the lease": frozen(4.5),
}


def a_rank_died(job, _master, _nodes):
    os.kill(job.pid(1, 0), signal.SIGKILL)
    return 1, 2


def ranks_restart(job, _master, _nodes):
    os.kill(job.pid(1, 0), signal.SIGKILL)
    job.wait_events("main", life=1)
    return 1, 2


def a_node_joins(job, master, nodes):
    nodes.append(join(job, 2))
    master.wait_line(r"node-joined .*127\.0\.0\.3")
    return 1, 3


def a_rank_has_ended(job, master, _nodes):
    os.kill(job.pid(0, 0), signal.SIGTERM)
    master.wait_line("rank 0 ended well")
    return 0, 2


def a_node_is_lost(job, _master, nodes):
    nodes.append(join(job, 2))
    job.wait_events("main", 3, life=1)
    lost = nodes.pop(1)
    lost.signal(signal.SIGKILL)
    assert lost.wait() == -signal.SIGKILL
    return 2, 2


POINTS = [a_rank_died, ranks_restart, a_node_joins, a_node_is_lost, a_rank_has_ended]


def end_ranks(job, life, world, or_next=False):
    """SIGTERM is how they end well. Returns the life that they were in: this one, or the next where that may be."""
    lives = [life, life + 1] if or_next else [life]

    def begun(_):
        found = [job.found("main", life=life, world=world) for life in lives]
        return next((events for events in found if len(events) == world), None)

    events = job.wait(begun, f"{world} ranks in life {' or '.join(map(str, lives))}")
    for event in events:
        if is_running(event["pid"]):
            os.kill(event["pid"], signal.SIGTERM)
    return events[0]["life"]


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.__name__)
@pytest.mark.parametrize("interruption", INTERRUPTIONS)
def test_at_any_point(job, interruption, point):
    """The job goes on to where it would have come anyway: not one more life, and the master ends with the job.

    A master that is killed between the journal and the nodes has begun a life that nobody lived, or not all: its number
    is used up.
    """
    master = start_master(job)
    nodes = [join(job, index) for index in (0, 1)]
    job.wait_events("main", 2, life=0)
    life, world = point(job, master, nodes)
    master = INTERRUPTIONS[interruption](job, master)
    last = end_ranks(job, life, world, or_next=interruption.startswith("killed"))
    assert [node.wait() for node in nodes] == [0] * world, job.story()
    assert master.wait() == 0, job.story()
    assert {*job.lives(), life} == {*range(life), life, last}, job.story()


@pytest.mark.parametrize("flags", [["--resume"], []], ids=["resume", "anew"])
def test_nodes_come_while_there_is_no_master(job, flags):
    """One was there before, one comes meanwhile."""
    master = start_master(job)
    nodes = [join(job, 0)]
    nodes[0].wait_line("waiting for 1 more node")
    kill_now(master)
    nodes.append(join(job, 1))
    master = start_master(job, *flags)
    end_ranks(job, life=0, world=2)
    assert [node.wait() for node in [*nodes, master]] == [0, 0, 0], job.story()


@pytest.mark.parametrize("flags", [["--resume"], []], ids=["resume", "anew"])
def test_the_round_is_held(job, flags):
    """Too few nodes are left when the master goes. The next one still waits for another, and begins with it."""
    master = start_master(job)
    nodes = [join(job, index) for index in (0, 1)]
    job.wait_events("main", 2, life=0)
    nodes[1].signal(signal.SIGTERM)
    nodes[0].wait_line("waiting: .* 1 of at least 2 nodes left")
    assert nodes[1].wait() == 143
    kill_now(master)
    master = start_master(job, *flags)
    nodes[0].wait_line("the master answers again")
    nodes.append(join(job, 2))
    end_ranks(job, life=1, world=2)
    assert [nodes[0].wait(), nodes[2].wait(), master.wait()] == [0, 0, 0], job.story()


@pytest.mark.parametrize("flags", [["--resume"], []], ids=["resume", "anew"])
def test_the_first_cause_is_still_awaited(make_job, flags):
    """Only the victim of a death has been heard when the master goes. The next one hears of the death and blames it."""
    while not awaits_the_first_cause(make_job(), flags):
        pass  # the master had waited for a second when this test came to it


def awaits_the_first_cause(job, flags):
    """False: too late to see it."""
    budget = "--max-restarts=0"
    master = start_master(job, budget, nnodes="2")
    nodes = [join(job, index, "light_steps.py", nnodes="2") for index in (0, 1)]
    job.wait_stepping(life=0, world=2)
    dying = job.pid(1, 0)
    mute = next(node for node in nodes if descends_from(dying, node.pid))
    mute.signal(signal.SIGSTOP)
    os.kill(dying, signal.SIGKILL)
    master.wait_line("rank 0 failed .* as a peer was gone")
    kill_now(master)
    mute.signal(signal.SIGCONT)
    was_over = any("job-finished" in line for line in master.lines["stderr"])
    master = start_master(job, budget, *(["--resume"] if was_over else flags), nnodes="2")
    assert [node.wait() for node in [*nodes, master]] == [1, 1, 1], job.story()
    if was_over:
        return False
    assert all("rank 1 died (SIGKILL)" in node.stderr for node in nodes), job.story()
    assert sorted(job.lives()) == [0]
    return True


def test_a_frozen_node_has_not_read_the_end(job):
    """The master goes right behind the end of a job that failed: who has not read of it hears it from the next."""
    budget = "--max-restarts=0"
    master = start_master(job, budget)
    nodes = [join(job, index) for index in (0, 1)]
    job.wait_events("main", 2, life=0)
    told, mute = (next(node for node in nodes if descends_from(job.pid(rank, 0), node.pid)) for rank in (0, 1))
    mute.signal(signal.SIGSTOP)
    os.kill(job.pid(0, 0), signal.SIGKILL)
    assert told.wait() == 1, job.story()
    master.signal(signal.SIGKILL)
    master.wait()
    mute.signal(signal.SIGCONT)
    start_master(job, budget, "--resume")
    assert mute.wait() == 1, job.story()
    assert "rank 0 died (SIGKILL)" in mute.stderr, job.story()
    assert sorted(job.lives()) == [0]


class Wire:
    """What a node dials in place of its master's port: its way there, which the test can cut and mend."""

    def __init__(self, port):
        self.port, self.whole, self.ends = port, True, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def endpoint(self):
        return f"127.0.0.1:{self.listener.getsockname()[1]}"

    def _serve(self):
        while True:
            node, _ = self.listener.accept()
            try:
                master = socket.create_connection(("127.0.0.1", self.port)) if self.whole else None
            except ConnectionRefusedError:
                master = None
            if master is None:
                node.close()
                continue
            self.ends += [node, master]
            for source, sink in ((node, master), (master, node)):
                threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    @staticmethod
    def _carry(source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def cut(self):
        self.whole = False
        for end in self.ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def mend(self):
        self.whole = True


def rank_of(job, node):
    """The pid of the node's one rank."""
    return next(event["pid"] for event in job.found("main") if descends_from(event["pid"], node.pid))


@pytest.mark.parametrize("interruption", ["none", "killed, --resume", "frozen for a moment"])
def test_a_node_is_not_there_when_the_job_ends(job, interruption):
    """Its ranks have ended well and its way to the master is cut then: it hears of the end when it comes back."""
    master = start_master(job)
    wire = Wire(job.port)
    near = join(job, 0)
    far = join(job, 1, flags=[f"--rdzv-endpoint={wire.endpoint}"])
    job.wait_events("main", 2, life=0)
    mine = {node: rank_of(job, node) for node in (near, far)}
    os.kill(mine[far], signal.SIGTERM)
    master.wait_line("ended well on node 127.0.0.2")
    wire.cut()
    master.wait_line("node 127.0.0.2 was lost .*; all its workers had ended well")
    os.kill(mine[near], signal.SIGTERM)
    assert near.wait() == 0, job.story()
    if interruption != "none":
        master = INTERRUPTIONS[interruption](job, master)
    wire.mend()
    assert [far.wait(), master.wait()] == [0, 0], job.story()
    assert sorted(job.lives()) == [0]


def test_an_embedded_master_dies_behind_the_end(job):
    """phalanx-run has been told that the job is over; the master, its child, is killed before another node was told."""
    wire = Wire(job.port)
    flags = ["--explain"]
    near = job.node(0, "signals.py", "end", nnodes="2", flags=flags)
    near.wait_line("waiting for 1 more node")
    far = join(job, 1, nnodes="2", flags=[*flags, f"--rdzv-endpoint={wire.endpoint}"])
    job.wait_events("main", 2, life=0)
    mine = {node: rank_of(job, node) for node in (near, far)}
    master = master_pid(job)
    os.kill(mine[far], signal.SIGTERM)
    far.wait_line("local rank 0 ended by itself")
    assert any("worker-exited" in kinds(job) for _ in range(1000)), "the embedded master says nothing by itself"
    wire.cut()
    far.wait_line("the master is dialled again")
    os.kill(mine[near], signal.SIGTERM)
    near.wait_line("explain: all 2 ranks ended well")
    os.kill(master, signal.SIGKILL)
    assert near.wait() == 0, job.story()
    wire.mend()
    assert far.wait() == 0, job.story()
    assert sorted(job.lives()) == [0]


# --- journals that are none -----------------------------------------------------------------------------------------


def spoil_by_another_job(path):
    """A whole journal, of somebody else's job."""
    data = path.read_bytes()
    payload = data[24:].replace(b"test-", b"tost-")
    checksum = 0xCBF29CE484222325
    for byte in payload:
        checksum = ((checksum ^ byte) * 0x100000001B3) % (1 << 64)
    path.write_bytes(data[:16] + checksum.to_bytes(8, "little") + payload)


def spoil_by_a_directory(path):
    path.unlink()
    path.mkdir()


SPOILS = {
    "garbage": (lambda path: path.write_bytes(os.urandom(4096)), "not a journal of Phalanx"),
    "another job's": (spoil_by_another_job, "the journal is of job 'tost-"),
    "newer": (lambda path: path.write_bytes(b"PHLXJRNL\x09" + path.read_bytes()[9:]), "written by a newer Phalanx"),
    "cut": (lambda path: os.truncate(path, 100), "damaged: 100 bytes whose length or checksum is wrong"),
    "a directory": (spoil_by_a_directory, "Is a directory"),
    "another user's": (lambda path: os.chown(path, 65534, 65534), "belongs to another user"),
}


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_journal_of_no_use(job, spoil):
    """It is said why, and the job goes on from what its nodes tell."""
    if spoil == "another user's" and os.geteuid() != 0:
        pytest.skip("giving a file away needs root")
    change, why = SPOILS[spoil]
    master = start_master(job)
    nodes = [join(job, index) for index in (0, 1)]
    job.wait_events("main", 2, life=0)
    wait_for_journal(job)
    kill_now(master)
    change(job.folder / "state-master" / "journal")
    master = start_master(job, "--resume")
    assert why in master.wait_line("taken up from what its agents tell"), job.story()
    master.wait_line("all nodes of epoch 1 are back: no rank was restarted")
    end_ranks(job, life=0, world=2)
    assert [node.wait() for node in [*nodes, master]] == [0, 0, 0], job.story()
    assert sorted(job.lives()) == [0]


def test_a_journal_on_a_full_disk(small_disk, job):
    """That it cannot be written is said, also on a node's console; what is old in it does no harm."""
    (job.folder / "state-master").symlink_to(small_disk.path)
    master = start_master(job)
    nodes = [join(job, index) for index in (0, 1)]
    job.wait_events("main", 2, life=0)
    small_disk.fill()
    os.kill(job.pid(1, 0), signal.SIGKILL)
    job.wait_events("main", 2, life=1)
    assert "No space left on device" in master.wait_line("the journal cannot be written"), job.story()
    kill_now(master)
    master = start_master(job, "--resume")
    master.wait_line("all nodes of epoch 2 are back: no rank was restarted")
    end_ranks(job, life=1, world=2)
    assert [node.wait() for node in [*nodes, master]] == [0, 0, 0], job.story()
    assert sorted(job.lives()) == [0, 1]
    assert any("the journal cannot be written" in node.stderr for node in nodes), job.story()


def test_resume_with_another_size(job):
    """Refused before anything is served; with the right size the job goes on."""
    master = start_master(job)
    nodes = [join(job, index) for index in (0, 1)]
    job.wait_events("main", 2, life=0)
    wait_for_journal(job)
    kill_now(master)
    wrong = start_master(job, "--resume", nnodes="1:2")
    assert wrong.wait() == 71
    assert "--nnodes=1:2 --node-unit=1: the job of the journal has --nnodes=2:3" in wrong.stderr
    master = start_master(job, "--resume")
    end_ranks(job, life=0, world=2)
    assert [node.wait() for node in [*nodes, master]] == [0, 0, 0], job.story()
    assert sorted(job.lives()) == [0]


# --- a master that cannot be kept alive -----------------------------------------------------------------------------


def copied_launcher(folder):
    """phalanx-run and phalanx-master in a folder of their own: the latter can be replaced there."""
    folder.mkdir()
    for name in ("phalanx-run", "phalanx-master"):
        shutil.copy(os.path.realpath(command_path(name)), str(folder / name))
    return folder


def replace_by(path, text):
    """As a package's update does: the running one keeps its file."""
    path.unlink()
    path.write_text(text)
    path.chmod(0o755)


@pytest.mark.slow
def test_a_master_that_can_be_started_later(job):
    """Other nodes wait for one: it is tried now and then, and the job ends well when its program is whole again."""
    folder = copied_launcher(job.folder / "bin")
    flags = ["--nnodes=2", "--nproc-per-node=1", f"--rdzv-id={job.id}", "--rdzv-backend=c10d"]
    flags += [f"--rdzv-endpoint=127.0.0.1:{job.port}", f"--state-dir={job.folder / 'state'}"]
    near = job.run(*flags, workload("signals.py"), "end", command=[str(folder / "phalanx-run")])
    far = join(job, 1, nnodes="2")
    job.wait_events("main", 2, life=0)
    replace_by(folder / "phalanx-master", "#!/bin/sh\nexit 3\n")
    kill_master(job)
    near.wait_line("times in a row.*; this node trains on without it")
    end_ranks(job, life=0, world=2)
    (folder / "phalanx-master").unlink()
    shutil.copy(os.path.realpath(command_path("phalanx-master")), str(folder / "phalanx-master"))
    assert [near.wait(), far.wait()] == [0, 0], job.story()
    assert sorted(job.lives()) == [0]


def test_a_rank_that_asks_a_master_that_has_gone(job):
    """Nobody tells it what to restore: it waits no longer than the join timeout, fails, and its node with it."""
    master = start_master(job, nnodes="1")
    patience = ["--rdzv-conf=is_host=0,join_timeout=3"]
    node = job.node(0, "asking_late.py", "--dir", str(job.folder / "saves"), nnodes="1", flags=patience)
    rank = job.pid(0, 0)
    kill_now(master)
    node.wait_line("no answer from the master at .*; dialling on")
    os.kill(rank, signal.SIGUSR1)
    assert node.wait() == 1, job.story()
    assert "only the job's master can tell: no answer from the master" in node.stderr
    assert job.found("loaded") == []


@pytest.mark.parametrize("broken", ["#!/bin/sh\nexit 3\n", "no program\n"], ids=["it ends at once", "it cannot start"])
@pytest.mark.parametrize("ends", ["well", "badly"])
def test_a_master_that_dies_at_each_start(job, broken, ends):
    """It is given up, which is said; the job of one node trains to its end without it."""
    folder = copied_launcher(job.folder / "bin")
    flags = ["--standalone", "--nproc-per-node=2", f"--state-dir={job.folder / 'state'}"]
    node = job.run(*flags, workload("signals.py"), "end", command=[str(folder / "phalanx-run")])
    job.wait_events("main", 2, life=0)
    replace_by(folder / "phalanx-master", broken)
    kill_master(job)
    node.wait_line("times in a row.*; this node trains on without it")
    if ends == "well":
        for rank in (0, 1):
            os.kill(job.pid(rank, 0), signal.SIGTERM)
    else:
        os.kill(job.pid(1, 0), signal.SIGKILL)  # the agent ends the other one
    assert node.wait() == (0 if ends == "well" else 1), job.story()
    assert sorted(job.lives()) == [0]
    if ends == "badly":
        assert "and the job's master, which would restart it, has ended" in node.stderr
