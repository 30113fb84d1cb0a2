"""The blocks of docs/checkpoint.md that no other file runs, as they stand there: folders, numbers of steps and what a
block leaves to its reader are put in."""

import json
import signal
import subprocess
import sys

import pytest
from harness import ckpt, clean_environment
from test_checkpoint_job import jobs_with_memory as jobs_with_memory
from test_checkpoint_job import make_job as make_job
from test_checkpoint_stored import snippets

BEFORE = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from phalanx.checkpoint import DataPosition, PerRank, Storage
from phalanx.checkpoint.ddp import Checkpointer
"""
DDP = """
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.AdamW(model.parameters())
"""
END = "\nckpt.close()\ndist.destroy_process_group()"


def put(block, *pairs):
    """With each text in the place of the one beside it."""
    for old, new in pairs:
        assert block.count(old) >= 1, (old, block)
        block = block.replace(old, new)
    return block


def script_of(folder, *parts):
    script = folder / "train.py"
    script.write_text("\n".join(parts))
    return script


def run_alone(script, *words):
    """Without phalanx-run; its lines."""
    command = [sys.executable, script, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=clean_environment())
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_back_behind_a_nan(job, tmp_path):
    """Step 25 is no number the first time: all go back to step 20, and what they store from there on is the newest."""
    (block,) = snippets("Back behind a NaN")
    (first, *_) = snippets("DDP in ten lines")
    before = put(first.partition("state, done")[0], ("/data/run7", str(tmp_path / "run")))
    meanwhile = """
seen = []
def batch():
    seen.append(done)
    bad = done == 25 and seen.count(25) == 1 and dist.get_rank() == 1
    return torch.full((4, 8), float("nan") if bad else 1.0)
"""
    # What is stored is waited for, so that step 20 is there when it is wanted.
    lines = put(
        block,
        ("torch.randn(4, 8)", "batch()"),
        ("1000", "40"),
        ("storage=Storage.DISK)", "storage=Storage.DISK).wait_stored()"),
    )
    told = f"\nprint('went', seen.count(20), seen.count(25), seen.count(19), done){END}"
    node = job.standalone(script_of(tmp_path, before, meanwhile, lines, told), nproc=2)
    assert node.wait() == 0, job.story()
    assert node.stdout.count("went 2 2 1 40") == 2, node.stdout
    steps = ckpt("ls", tmp_path / "run")["steps"]
    assert [(step["step"], step["timeline"]) for step in steps] == [(40, 1), (30, 1), (20, 0)]


@pytest.mark.slow
def test_a_second_node_joins(job, tmp_path):
    (block,) = snippets("Nodes that join, and nodes that are lost")
    script = script_of(tmp_path, put(block, ("/data/run7", str(tmp_path / "run"))))
    nodes = [job.node(0, script, nnodes="1:3")]
    nodes[0].wait_line("1 ranks go on behind step 0, from None", "stdout")
    nodes[0].wait_line("checkpoint: saves to .* take [0-9]+ MiB of this node's /dev/shm, in 3 slots a writer")
    nodes.append(job.node(1, script, nnodes="1:3"))
    for node in nodes:
        node.wait_line("2 ranks go on behind step [1-9][0-9]*0, from memory", "stdout")
    for node in nodes:
        node.signal(signal.SIGTERM)
    assert [node.wait() for node in nodes] == [143, 143], job.story()


@pytest.mark.slow
def test_files_of_safetensors(tmp_path):
    pytest.importorskip("safetensors")
    (block,) = snippets("Files of safetensors")
    before = (
        BEFORE
        + """
import safetensors.torch
from phalanx.checkpoint import Checkpointer
model = torch.nn.Sequential()
model.fc = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters())
"""
    )
    told = "\nprint(torch.equal(weights['model.fc.weight'], model.fc.weight))"
    script = script_of(tmp_path, before, put(block, ("/data/run7", str(tmp_path / "run"))), told)
    assert run_alone(script) == ["True"]


@pytest.mark.slow
def test_what_each_rank_has_for_itself(job, tmp_path):
    (block,) = snippets("What each rank has for itself")
    before = f"ckpt = Checkpointer({str(tmp_path / 'run')!r})\ndone, documents_seen = 4, 100 + dist.get_rank()"
    lines = put(
        block,
        ("ckpt.save(", "handle = ckpt.save("),
        ("state, done", "assert handle.wait_committed(), handle.why\ndocuments_seen = None\nstate, done"),
    )
    told = f"\nprint('went', done, documents_seen){END}"
    node = job.standalone(script_of(tmp_path, BEFORE, DDP, before, lines, told), nproc=2)
    assert node.wait() == 0, job.story()
    for seen in (100, 101):
        assert node.stdout.count(f"went 5 {seen}") == 1, node.stdout


@pytest.mark.slow
def test_the_position_in_the_data(tmp_path):
    """A life that ends in the middle of the second epoch: the next one is given the rest, in the same order."""
    (block,) = snippets("Data position")
    begins = """
import sys
from phalanx.checkpoint import Checkpointer
torch.manual_seed(1)
ckpt = Checkpointer(sys.argv[1])
loader = torch.utils.data.DataLoader(range(8), batch_size=2, shuffle=True)
given = []
"""
    train = """given.append(batch.tolist())
        if sys.argv[2:] and len(given) == 6:
            print(given)
            ckpt.save(6, {"data": position, "rng": True}, storage=Storage.DISK).wait_stored()
            sys.exit()
"""
    lines = put(block, ('...  # train, then save {"data": position, ...}', train))
    script = script_of(tmp_path, BEFORE, begins, lines, "\nprint(given)")
    (whole,) = run_alone(script, tmp_path / "whole")
    lives = [run_alone(script, tmp_path / "run", "ends") for _ in range(2)]
    given = [batch for (line,) in lives for batch in json.loads(line)]
    assert len(given) == 12 and given == json.loads(whole)


@pytest.mark.slow
def test_a_fast_disk_and_an_archive(tmp_path):
    (block,) = snippets("A fast disk and an archive")
    (tmp_path / "archive").mkdir()
    lines = put(block, ("/data/run7", str(tmp_path / "run")), ("/archive/run7", str(tmp_path / "archive" / "run7")))
    told = """
for step in (500, 1000):
    assert ckpt.save(step, {"w": torch.ones(3)}, storage=Storage.DISK).wait_stored()
ckpt.close()
"""
    run_alone(script_of(tmp_path, BEFORE, "from phalanx.checkpoint import Checkpointer", lines, told))
    assert [step["step"] for step in ckpt("ls", tmp_path / "run")["steps"]] == [1000, 500]
    assert [step["step"] for step in ckpt("ls", tmp_path / "archive" / "run7")["steps"]] == [1000]
