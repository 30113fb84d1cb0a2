"""Checkpoints without phalanx-run: under torchrun, and in a Python of its own. The host is the real one."""

import concurrent.futures
import contextlib
import datetime
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from harness import WORKLOADS, ckpt, clean_environment  # noqa: E402
from phalanx._bootstrap import memory  # noqa: E402
from phalanx.checkpoint import Checkpointer, PerRank, Storage, dcp, ddp  # noqa: E402
from phalanx.checkpoint.formats import framed, named  # noqa: E402
from phalanx.checkpoint.ranks import together  # noqa: E402
from share import free_port  # noqa: E402

KINDS = ("full", "ddp", "dcp")
TORCHRUN = str(Path(sys.executable).parent / "torchrun")
SHM = Path("/dev/shm")


def run(*words, command=None, nproc=2, expect=0):
    """What the ranks of a whole job have said: [event of JSON]. `command`: what starts them; None: each is started by
    itself, as Slurm does, which costs no launcher that imports torch as well."""
    words = [WORKLOADS / "without_agent.py", *words]
    # Else a restarted rank may read keys of the one that died (pytorch#135712).
    env = {**clean_environment(), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    if command is not None:
        starts = [([*command, f"--nproc-per-node={nproc}"], env)]
    else:
        env.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
        env.update(WORLD_SIZE=str(nproc), LOCAL_WORLD_SIZE=str(nproc))
        starts = [([sys.executable], {**env, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(nproc)]
    ends = [
        subprocess.Popen(
            [str(word) for word in (*before, *words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=own,
        )
        for before, own in starts
    ]
    try:
        with concurrent.futures.ThreadPoolExecutor(len(ends)) as pool:
            said = list(pool.map(lambda process: process.communicate(timeout=240), ends))
    finally:
        for process in ends:
            process.kill()
    codes = [process.returncode for process in ends]
    assert any(codes) == (expect != 0), said
    return [json.loads(line) for out, _ in said for line in out.splitlines() if line.startswith('{"ev"')]


def told(events, event, kind):
    """By rank: what each has said of that event, in order."""
    found = {}
    for each in events:
        if (each["ev"], each["kind"]) == (event, kind):
            said = {key: value for key, value in each.items() if key not in ("ev", "rank", "kind")}
            found.setdefault(each["rank"], []).append(said)
    return found


def loaded(kind, step):
    """By both ranks."""
    values = [[step + (0.5 * rank if kind == "full" else 0)] for rank in (0, 1)]
    return {rank: [{"step": step, "values": values[rank], "source": "disk"}] for rank in (0, 1)}


def hosts_memory(owner):
    """The folders in /dev/shm of the host of that process."""
    found = []
    for folder in SHM.glob(f"phx-{os.geteuid()}-*"):
        with contextlib.suppress(OSError, ValueError):
            node = json.loads((folder / "node.json").read_text())
            if (node["job_id"], node["address"]) == (f"process {owner}", "no agent"):
                found.append(folder)
    return found


@pytest.mark.slow
def test_a_run_that_loads_nothing_begins_a_timeline(tmp_path):
    """Whatever its steps; one that goes on from what it stored does not."""
    for plan in ("load disk:10 disk:20", "disk:40", "load disk:50"):
        run("full", tmp_path, plan, nproc=1)
    steps = ckpt("ls", tmp_path / "full")["steps"]
    assert [(step["step"], step["timeline"]) for step in steps] == [(50, 1), (40, 1), (20, 0), (10, 0)]


@pytest.mark.slow
def test_what_torchrun_saves_the_next_run_goes_on_from(tmp_path):
    """Nobody waits for the last save, and the script destroys its group and ends: it is stored all the same. Then under
    phalanx-run, and once more without. Three Checkpointers, one of each kind."""
    kinds = ",".join(KINDS)
    torchrun = (TORCHRUN, "--standalone")
    begun = run(kinds, tmp_path, "load disk:10 disk:20", "--keep-last=1", command=torchrun)
    for kind in KINDS:
        assert {rank: each[0]["step"] for rank, each in told(begun, "loaded", kind).items()} == {0: 0, 1: 0}
        steps = ckpt("ls", tmp_path / kind)["steps"]
        assert [(step["step"], step["state"], step["world_size"]) for step in steps] == [(20, "committed", 2)]
        assert [step["kind"] for step in steps] == [kind]
        assert ckpt("verify", tmp_path / kind)["damaged"] == 0
        assert (tmp_path / kind / "latest").read_text() == "20"

    phalanx_run = [sys.executable, "-m", "phalanx.run", "--standalone", f"--state-dir={tmp_path / 'state'}"]
    with_agent = run(kinds, tmp_path, "load disk:30 wait", command=phalanx_run)
    without = run(kinds, tmp_path, "load")
    for kind in KINDS:
        assert told(with_agent, "loaded", kind) == loaded(kind, 20)
        assert told(without, "loaded", kind) == loaded(kind, 30)


@pytest.mark.slow
def test_a_killed_rank_costs_the_steps_behind_the_last_save(tmp_path):
    """torchrun starts all ranks anew. Nothing is left in memory."""
    before = set(SHM.iterdir())
    command = (TORCHRUN, "--standalone", "--max-restarts=1")
    lives = ["load disk:10 wait disk:20 wait die", "load disk:30 wait"]
    events = run(",".join(KINDS), tmp_path, *lives, command=command)
    for kind in KINDS:
        ends = told(events, "loaded", kind)
        assert {rank: [each["step"] for each in ends[rank]] for rank in (0, 1)} == {0: [0, 20], 1: [0, 20]}
        waits = told(events, "waited", kind)
        assert all([each["stored"] for each in waits[rank]] == [True] * 3 for rank in (0, 1)), waits
    end = time.monotonic() + 60  # of its first life's hosts one may be about to end, and of other tests'
    while left := [
        path for path in set(SHM.iterdir()) - before if path.name.startswith("phx-") and hosts_of_dead(path)
    ]:
        assert time.monotonic() < end, left


def hosts_of_dead(folder):
    with contextlib.suppress(OSError, ValueError):
        node = json.loads((folder / "node.json").read_text())
        pid = node["job_id"].partition(" ")[2]
        return node["address"] == "no agent" and not Path(f"/proc/{pid}").exists()
    return False


@pytest.mark.slow
def test_a_state_that_one_rank_cannot_save_is_dropped_on_all(tmp_path):
    events = run("full", tmp_path, "disk:10 wait refuse:20 wait disk:30 wait")
    assert "sparse tensors are not supported" in told(events, "refused", "full")[1][0]["why"]
    ends = told(events, "waited", "full")[0]
    assert [(each["step"], each["stored"]) for each in ends] == [(10, True), (20, False), (30, True)]
    assert "rank 1: state['bad']: sparse tensors are not supported" in ends[1]["why"]
    assert [step["step"] for step in ckpt("ls", tmp_path / "full")["steps"]] == [30, 10]


@pytest.mark.slow
def test_a_rank_that_does_not_come_is_named(tmp_path):
    """And the next save, to which all come, is stored."""
    events = run("ddp", tmp_path, "late:10 disk:20 wait", "--meet-s=10")
    first, second = told(events, "waited", "ddp")[0]
    assert not first["stored"]
    assert first["why"] == "rank 1 has not called save() within 10.0 s: every rank saves the same steps"
    assert second["stored"], second
    assert [each["stored"] for each in told(events, "waited", "ddp")[1]] == [True]


@pytest.mark.slow
def test_ranks_that_are_out_of_step_meet_again(tmp_path):
    """One has left a save out; the one behind it tells, and from then on all is well."""
    events = run("full", tmp_path, "disk:10 wait forget:20 disk:30 wait disk:40 wait")
    for rank in (0, 1):
        ends = told(events, "waited", "full")[rank]
        assert [(each["step"], each["stored"]) for each in ends] == [(10, True), (30, False), (40, True)]
        assert "the ranks save different steps: rank" in ends[1]["why"]
    assert [step["step"] for step in ckpt("ls", tmp_path / "full")["steps"] if step["state"] == "committed"] == [40, 10]


@pytest.mark.slow
def test_a_dead_host_of_one_rank_is_told_to_all(tmp_path):
    events = run("ddp", tmp_path, "disk:10 wait kill_host disk:20 wait disk:30 wait")
    for rank in (0, 1):
        ends = told(events, "waited", "ddp")[rank]
        assert [(each["step"], each["stored"]) for each in ends] == [(10, True), (20, False), (30, False)]
        assert all("rank 1: the checkpoint host has ended" in each["why"] for each in ends[1:]), ends


@pytest.mark.slow
def test_a_script_that_fails_ends(tmp_path):
    """What it has stored stays."""
    run("full", tmp_path, "disk:10 wait disk:20", "--fails-at-the-end", expect=1)
    assert ckpt("ls", tmp_path / "full")["steps"][-1]["step"] == 10


# --- a world of one, in this process


@pytest.fixture
def no_agent(monkeypatch):
    memory.forget()
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def state_of(step):
    return {"w": torch.full((50_000,), float(step)), "step": step}


@pytest.mark.parametrize("layout", ["torch", "safetensors"])
def test_plain_python_saves_to_disk_alone(no_agent, tmp_path, layout):
    with Checkpointer(tmp_path, layout=layout) as checkpointer:
        handle = checkpointer.save(1, state_of(1))
        assert not handle.wait_committed() and "no memory outlives this process" in handle.why
        assert hosts_memory(os.getpid()) == []  # and nothing was started for it
        results = []
        handle = checkpointer.save(2, state_of(2), storage=Storage.DISK, on_stored=results.append)
        assert handle.wait_staged() and handle.wait_committed() and handle.wait_stored(), handle.why
        assert len(hosts_memory(os.getpid())) == 1
        loaded, step = checkpointer.load()
        assert (step, checkpointer.source, loaded["step"]) == (2, "disk", 2)
    assert [(result.step, result.stored, result.why) for result in results] == [(2, True, None)]
    assert hosts_memory(os.getpid()) == []
    path = tmp_path / "2" / f"rank_0.{'pt' if layout == 'torch' else 'safetensors'}"
    read = torch.load(path) if layout == "torch" else named.load(str(path), False, True, "cpu")
    assert read["w"].unique().tolist() == [2.0]
    with pytest.raises(RuntimeError, match="is closed"):
        checkpointer.save(3, state_of(3), storage=Storage.DISK)


def test_a_load_is_of_what_this_life_is_storing(no_agent, tmp_path):
    with Checkpointer(tmp_path) as checkpointer:
        for step in (10, 20):
            checkpointer.save(step, state_of(step), storage=Storage.DISK)
        assert checkpointer.load()[1] == 20
        checkpointer.save(15, state_of(15), storage=Storage.DISK)
        assert checkpointer.load()[1] == 15  # stored last
        assert checkpointer.load(step=20)[0]["w"].unique().tolist() == [20.0]
        assert checkpointer.save(15, state_of(16), storage=Storage.DISK).wait_stored()  # of another branch
        assert checkpointer.load()[0]["step"] == 16
    assert [(step.step, step.timeline) for step in checkpointer.steps()] == [(15, 2), (15, 1), (20, 0), (10, 0)]


def test_a_step_is_stored_once_in_a_branch(no_agent, tmp_path):
    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.save(1, state_of(1), storage=Storage.DISK).wait_stored()
        again = checkpointer.save(1, state_of(2), storage=Storage.DISK)
        assert not again.wait_stored() and again.why == "step 1 was saved before"
    assert checkpointer.load()[0]["step"] == 1


def test_prepare_makes_the_memory_ready(no_agent, tmp_path):
    with ddp.Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.prepare(state_of(0)) is None
        [folder] = hosts_memory(os.getpid())
        assert len(list(folder.glob("*/slot-main-*"))) == 3
        assert checkpointer.save(1, state_of(1), storage=Storage.DISK).wait_stored()


def test_who_looks_at_no_handle_is_told_what_is_not_stored(no_agent, tmp_path, capfd):
    (tmp_path / "run").write_text("no folder")
    with Checkpointer(tmp_path / "run") as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, state_of(step))
            checkpointer.save(step + 10, state_of(step), storage=Storage.DISK)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("phalanx.checkpoint: ")]
    assert len(lines) == 3, lines
    assert "no memory outlives this process" in lines[0]  # once
    for line, step in zip(lines[1:], (11, 12)):
        assert line.startswith(f"phalanx.checkpoint: step {step} of {tmp_path / 'run'} is not stored: "), line
        assert "Not a directory" in line


def test_who_waits_to_be_told_is_told_of_a_save_that_no_step_follows(no_agent, tmp_path):
    """Its copy has come to nothing, behind the last step of the training."""
    told, model = [], torch.nn.Linear(2048, 2048)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    checkpointer = Checkpointer(tmp_path)
    for step in range(1, 4):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        checkpointer.save(step, {"model": model, "optimizer": optimizer}, storage=Storage.DISK, on_stored=told.append)
        if step < 3:
            assert checkpointer.finish_telling(60)
    model.weight.data.add_(1)
    assert checkpointer.finish_telling(60), "and not when that is over"
    assert [result.step for result in told] == [1, 2, 3]
    checkpointer.close()


def test_a_disk_that_refuses_costs_the_save(no_agent, tmp_path):
    (tmp_path / "run").write_text("no folder")
    with Checkpointer(tmp_path / "run") as checkpointer:
        handle = checkpointer.save(1, state_of(1), storage=Storage.DISK)
        assert not handle.wait_stored()
        assert str(tmp_path / "run") in handle.why and "Not a directory" in handle.why
        (tmp_path / "run").unlink()
        (tmp_path / "run").mkdir()
        assert checkpointer.save(2, state_of(2), storage=Storage.DISK).wait_stored()


def test_a_device_without_room_for_a_copy_costs_the_save(no_agent, tmp_path, monkeypatch):
    def full(tensor):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    with Checkpointer(tmp_path, layout="safetensors") as checkpointer:
        with monkeypatch.context() as patched:
            patched.setattr(framed.Part, "of", full)
            handle = checkpointer.save(1, state_of(1), storage=Storage.DISK)
        assert not handle.wait_stored() and "CUDA out of memory" in handle.why
        assert checkpointer.save(2, state_of(2), storage=Storage.DISK).wait_stored()


def test_what_is_a_ranks_own_may_be_of_any_kind_with_dcp(no_agent, tmp_path):
    day = datetime.date(2026, 1, 1)
    with dcp.Checkpointer(tmp_path, weights_only=False) as checkpointer:
        state = {"model": torch.nn.Linear(2, 2), "seen": PerRank(day)}
        assert checkpointer.save(1, state, storage=Storage.DISK).wait_stored()
        state["seen"].value = None
        assert checkpointer.load(state) == 1
        assert state["seen"].value == day


def test_dcp_keeps_no_memory_of_what_is_saved(no_agent, tmp_path):
    model = torch.nn.Linear(2, 2)
    storage = model.weight.untyped_storage()
    before = sys.getrefcount(storage)
    with dcp.Checkpointer(tmp_path) as checkpointer:
        for step in (1, 2):
            assert checkpointer.save(step, {"model": model}, storage=Storage.DISK).wait_stored()
        checkpointer.wait()
        assert sys.getrefcount(storage) == before


def test_a_state_that_grows_is_stored_on(no_agent, tmp_path):
    """As when the optimizer gets its state behind the first save. Two slots, and each save waits for none."""
    with Checkpointer(tmp_path, slots=2) as checkpointer:
        for step, words in enumerate((1000, 50_000, 50_000, 200_000, 200_000, 1000, 1000), start=1):
            state = {"w": torch.full((words,), float(step))}
            handle = checkpointer.save(step, state, storage=Storage.DISK)
            assert handle.wait_stored(), handle.why
        assert checkpointer.load()[0]["w"].unique().tolist() == [7.0]


def test_saves_that_the_ranks_could_not_agree_upon_leave_their_memory(no_agent, tmp_path, monkeypatch):
    class Lost:
        def exchange(self, _):
            raise together.Apart("the ranks have lost each other")

        def is_lost(self):
            return False

    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.save(1, state_of(1), storage=Storage.DISK).wait_stored()
        whole, checkpointer._alone._group = checkpointer._alone._group, Lost()
        for step in (2, 3, 4, 5):
            handle = checkpointer.save(step, state_of(step), storage=Storage.DISK)
            assert not handle.wait_stored() and "lost each other" in handle.why
        checkpointer._alone._group = whole
        assert checkpointer.save(6, state_of(6), storage=Storage.DISK).wait_stored()


def test_a_save_that_is_interrupted_is_over(no_agent, tmp_path, monkeypatch):
    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.save(1, state_of(1), storage=Storage.DISK).wait_stored()
        with monkeypatch.context() as patched:
            patched.setattr(checkpointer._writer, "_begin", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
            with pytest.raises(KeyboardInterrupt):
                checkpointer.save(2, state_of(2), storage=Storage.DISK)
        assert checkpointer._alone.finish(30)
        assert checkpointer.save(3, state_of(3), storage=Storage.DISK).wait_stored()


def test_signals_to_all_of_a_job_leave_the_host_alone(no_agent, tmp_path):
    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.save(1, state_of(1), storage=Storage.DISK).wait_stored()
        [host] = children_of(os.getpid(), "host")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
            os.kill(host, number)
        assert checkpointer.save(2, state_of(2), storage=Storage.DISK).wait_stored()
    assert hosts_memory(os.getpid()) == []


def test_a_forked_child_does_not_keep_the_host(no_agent, tmp_path):
    """As workers of a data loader that is there still."""
    checkpointer = Checkpointer(tmp_path)
    assert checkpointer.save(1, state_of(1), storage=Storage.DISK).wait_stored()
    [host] = children_of(os.getpid(), "host")
    theirs, ours = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        os.read(theirs, 1)
        os._exit(0)
    try:
        handle = os.pidfd_open(host)
        checkpointer.close()
        assert select_readable(handle, 0), "the host goes on"
        os.close(handle)
        assert hosts_memory(os.getpid()) == []
    finally:
        os.close(ours), os.close(theirs)
        os.waitpid(child, 0)


@pytest.mark.parametrize("character", ["x", "\u00e4", "\U0001f600", "\ud800"])
def test_a_reason_fits_what_a_rank_can_tell(character):
    cut = together.reason(character * 5000)
    assert len(json.dumps(cut)) <= 1100 and cut.startswith(character * 60) and cut.endswith("..")
    assert together.reason(character) == character
    assert together.reason(None) is None


def children_of(pid, command):
    found = []
    for entry in Path(f"/proc/{pid}/task").iterdir():
        for child in (entry / "children").read_text().split():
            if command in Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0"):
                found.append(int(child))
    return found


def test_a_host_that_dies_costs_saves_and_no_training(no_agent, tmp_path):
    checkpointer = Checkpointer(tmp_path)
    assert checkpointer.save(1, state_of(1), storage=Storage.DISK).wait_stored()
    [host] = children_of(os.getpid(), "host")
    os.kill(host, signal.SIGKILL)
    handle = checkpointer.save(2, state_of(2), storage=Storage.DISK)
    assert not handle.wait_stored() and "the checkpoint host has ended" in handle.why
    checkpointer.close()
    assert len(hosts_memory(os.getpid())) == 1
    with Checkpointer(tmp_path / "next") as following:  # whose host finds what the dead one has left
        assert following.save(1, state_of(1), storage=Storage.DISK).wait_stored()
        assert len(hosts_memory(os.getpid())) == 1
    assert hosts_memory(os.getpid()) == []


KILLED = """\
import os, sys, torch
from phalanx.checkpoint import Checkpointer, Storage
checkpointer = Checkpointer(sys.argv[1])
assert checkpointer.save(1, {"w": torch.ones(1000)}, storage=Storage.DISK).wait_stored()
if os.fork() == 0:
    os.close(0), os.close(1)
    sys.stdin = sys.stdout = None
    os.read(int(sys.argv[2]), 1)  # a forked child, as of a data loader, outlives it
    os._exit(0)
os.close(1)
os.kill(os.getpid(), 9)
"""


def test_the_host_ends_with_the_process_and_its_memory_is_gone(no_agent, tmp_path):
    """Also where a forked child of the process goes on."""
    theirs, ours = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path), str(theirs)],
        pass_fds=[theirs],
        stderr=subprocess.PIPE,
        env=clean_environment(),
    )
    os.close(theirs)
    assert process.wait(60) == -signal.SIGKILL, process.stderr.read().decode()
    try:
        hosts = [pid for pid in host_processes() if f"--owner={process.pid}" in command_of(pid)]
        for pid in hosts:
            with contextlib.suppress(ProcessLookupError):
                handle = os.pidfd_open(pid)
                try:
                    assert select_readable(handle, 30), "the host goes on without its rank"
                finally:
                    os.close(handle)
        assert hosts_memory(process.pid) == []
    finally:
        os.close(ours)


def host_processes():
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and "host" in command_of(entry)]


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def select_readable(handle, within_s):
    import select

    return bool(select.select([handle], [], [], within_s)[0])


def test_ranks_without_a_group_are_told_what_is_missing(no_agent, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    checkpointer = Checkpointer(tmp_path)
    with pytest.raises(RuntimeError, match=r"the 4 ranks agree by a process group: call torch.distributed"):
        checkpointer.save(1, state_of(1), storage=Storage.DISK)
    checkpointer.close()


def test_ranks_that_the_group_counts_otherwise_are_refused(no_agent, tmp_path):
    """As under mpirun, where the environment says nothing: all of them would be rank 0."""
    script = textwrap.dedent(
        """
        import sys, torch.distributed as dist
        from phalanx.checkpoint import Checkpointer, Storage
        early, earlier = Checkpointer(sys.argv[1]), Checkpointer(sys.argv[1])
        assert earlier.prepare({}) is None
        dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=int(sys.argv[3]), world_size=2)
        for each in (early, earlier):
            try:
                each.save(1, {}, storage=Storage.DISK)
            except RuntimeError as error:
                print(error)
        late = Checkpointer(sys.argv[1])
        handle = late.save(1, {"rank": dist.get_rank()}, storage=Storage.DISK)
        print(handle.wait_stored(), handle.why)
        late.close()
        """
    )
    command = [sys.executable, "-c", script, str(tmp_path / "run"), str(tmp_path / "store")]
    ranks = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True, env=clean_environment())
        for rank in range(2)
    ]
    said = [process.communicate(timeout=120)[0] for process in ranks]
    assert said[1].count("says rank 1 of 2: call init_process_group() first") == 2
    assert [text.splitlines()[-1] for text in said] == ["True None"] * 2
    assert torch.load(tmp_path / "run" / "1" / "rank_1.pt")["rank"] == 1
