"""phalanx.checkpoint.adapters.megatron with a GPT of megatron-core's, in 2 tensor x 2 pipeline parallel ranks on the
CPU: killed it comes to the same losses, and the files are Megatron's own."""

import dataclasses
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
import types

import pytest
import torch
from harness import WORKLOADS, clean_environment, command_path
from test_checkpoint_dcp import ready_before_first_save
from test_checkpoint_job import jobs_with_memory as jobs_with_memory
from test_checkpoint_job import make_job as make_job

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]
END_S = 400
UNCOMPILED = {"TORCHDYNAMO_DISABLE": 1}
TRACKER = "latest_checkpointed_iteration.txt"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


def start(job, folder, *arguments, nproc=4, flags=("--max-restarts=0",)):
    line = ["megatron_saving.py", f"--save={folder}", *arguments]
    return job.standalone(*line, nproc=nproc, flags=flags, env=UNCOMPILED)


def run(job, folder, *arguments, code=0, **more):
    assert start(job, folder, *arguments, **more).wait(END_S) == code, job.story()
    return job


def states(job, name, **fields):
    return {event["rank"]: event["state"] for event in job.found(name, **fields)}


def told(job):
    return {(event["n"], event["rank"], event["loss"], event["state"]) for event in job.found("step")}


@pytest.mark.parametrize("kind", [pytest.param("plain", marks=pytest.mark.long), "torch_dist"])
def test_a_killed_rank_goes_on_from_memory_as_if_nothing_had_been(make_job, folder, tmp_path, request, kind):
    arguments = ["--steps=8", *OF_KIND[kind]]
    wanted = told(run(make_job(), tmp_path / "other", *arguments))
    chance = random.Random(request.config.option.seed)
    job = make_job()
    node = start(job, folder, *arguments, "--pause-at=3,5", flags=["--max-restarts=3"])
    for life in (0, 1):
        job.wait_events("saved", n=2 + 2 * life, life=life, timeout_s=END_S)
        time.sleep(chance.random() / 5)  # of a step's time and its save's
        os.kill(job.pid(chance.randrange(4), life), signal.SIGKILL)
    assert node.wait(END_S) == 0, job.story()
    assert ready_before_first_save(job, 4), job.story()
    if kind == "torch_dist":  # once in a life, behind its first step, for all saves
        planned = [(event["life"], event["rank"], event["step"]) for event in job.found("planned")]
        assert sorted(planned) == [(life, rank, 0) for life in (0, 1, 2) for rank in range(4)], job.story()
    for life in (1, 2):
        (step,) = {event["n"] for event in job.found("loaded", life=life)}
        committed = max(event["n"] for event in job.found("saved", kept=True) if event["life"] < life)
        assert step >= committed, job.story()
        assert {event["flops"] for event in job.found("loaded", life=life)} == {100 * step}
        assert states(job, "loaded", life=life) == {rank: state for n, rank, _, state in wanted if n == step}
    assert told(job) == wanted
    assert states(job, "done") == {rank: state for n, rank, _, state in wanted if n == 8}


@dataclasses.dataclass
class Part:
    """As megatron-core's ShardedTensor, or its ShardedObject where the data is none."""

    data: object
    shape: tuple = (2, 2)
    replica: int = 0


def test_a_plan_serves_as_long_as_nothing_but_the_data_is_another(monkeypatch):
    pytest.importorskip("megatron.core")
    from phalanx.checkpoint.adapters import megatron_dist
    from phalanx.checkpoint.formats import sharded

    def saved(parts, is_loading):
        found = {key: io.BytesIO() for key in parts}
        for key, data in found.items():
            torch.save(parts[key][0].data, data)
        return found

    monkeypatch.setattr(megatron_dist.strategies, "mcore_to_pyt_state_dict", saved)

    def contents(fill, words=b"few", **fields):
        parts = {"weight": [Part(torch.full((2, 2), fill), **fields)], "rng": [Part(words)]}
        return megatron_dist.Contents(parts, {"common.pt": b"what stands beside"})

    first, forms = contents(1.0), sharded.Forms()
    length = forms.tensor((1, 2, 2), torch.float32).length
    address = first.parts["weight"][0].data.data_ptr()
    places = [("weight", 0, length, (address, (1, 2, 2)))]
    room = 8192
    places += [("rng", length, room, None), ("phalanx.common", length + room, room, None)]
    planned = types.SimpleNamespace(laid=places), types.SimpleNamespace(metadata=b"named")
    kept = megatron_dist.Kept(first, types.SimpleNamespace(planned=planned), forms)
    again = contents(2.0, b"more than before")
    assert kept.fits(again)
    image, state = kept.laid_out(again)
    assert state["weight", 0].tolist() == [[[2.0, 2.0]] * 2] and image.length == length + 2 * room
    assert torch.load(io.BytesIO(image.frame[-2 * room : -room]), weights_only=True) == b"more than before"
    others = [contents(1.0, shape=(4, 1)), contents(1.0, replica=1), contents(1.0, bytes(room)), contents(1)]
    others.append(megatron_dist.Contents({"weight": first.parts["weight"]}, {"common.pt": b"what stands beside"}))
    others.append(megatron_dist.Contents(first.parts, {}))
    assert not any(map(kept.fits, others))
    elsewhere = types.SimpleNamespace(laid=[("weight", 0, length, (1, (1, 2, 2)))]), planned[1]
    assert not megatron_dist.Kept(first, types.SimpleNamespace(planned=elsewhere), forms).fits(first)


OF_KIND = {"plain": [], "torch_dist": ["--ckpt-format=torch_dist"]}


kinds = pytest.mark.parametrize("kind", ["plain", pytest.param("torch_dist", marks=pytest.mark.long)])
PARTS = ("mp_rank_00_000", "mp_rank_00_001", "mp_rank_01_000", "mp_rank_01_001")
NAMES = {
    "plain": [f"{part}/model_optim_rng.pt" for part in PARTS],
    "torch_dist": [".metadata", *(f"__{rank}_0.distcp" for rank in range(4)), "common.pt", "metadata.json"],
}


def stock(make_job, *arguments, nproc=4):
    """What is Megatron's own, whoever starts it: torchrun takes four imports of it, and phalanx-run one."""
    job = make_job()
    node = job.standalone("megatron_stock.py", *map(str, arguments), nproc=nproc, env=UNCOMPILED)
    assert node.wait(END_S) == 0, job.story()
    return job


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@kinds
def test_what_one_stores_the_other_loads(make_job, folder, tmp_path, kind):
    arguments = OF_KIND[kind]
    theirs = tmp_path / "theirs"
    job = stock(make_job, f"--save={theirs}", "--steps=4", *arguments)
    wanted = states(job, "done")
    losses = {(event["rank"], event["n"]): event["loss"] for event in job.found("step")}
    job = run(make_job(), folder, "--steps=4", "--disk-every=2", *arguments)
    assert states(job, "done") == wanted
    assert {(event["rank"], event["n"]): event["loss"] for event in job.found("step")} == losses
    # The same files, at the same places, and those that read them find the same.
    assert (folder / TRACKER).read_text() == "4"
    assert files_in(folder / "iter_0000004") == NAMES[kind], job.story()
    if kind != "torch_dist":
        assert files_in(theirs / "iter_0000004") == NAMES[kind]
        assert_same_files(folder / "iter_0000004", theirs / "iter_0000004", NAMES[kind])
    again = stock(make_job, f"--load={folder}", "--steps=6", *arguments)
    assert states(again, "loaded", n=4) == wanted, again.story()
    ours = run(make_job(), theirs, "--steps=6", *arguments)
    assert states(ours, "loaded", n=4, flops=7) == wanted, ours.story()
    assert states(ours, "done") == states(again, "done")


def assert_same_files(ours, theirs, names):
    for name in names:
        one, other = (torch.load(place / name, weights_only=False) for place in (ours, theirs))
        if "model" in one:
            flops = "num_floating_point_operations_so_far"
            assert (one.pop(flops), other.pop(flops)) == (400, 7)
            other["rng_state"][0].pop("cuda_rng_state")  # there is no such device here
        assert_same(one, other)


def assert_same(one, other):
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for pair in zip(one, other):
            assert_same(*pair)
    elif not hasattr(one, "tolist"):
        assert one == other


@pytest.mark.long
def test_torch_dist_is_loaded_at_other_sizes(make_job, folder, tmp_path):
    arguments = OF_KIND["torch_dist"]
    first = run(make_job(), folder, "--steps=4", "--disk-every=4", *arguments)
    assert states(first, "done")
    other = tmp_path / "other"
    sizes = ["--tp=1", "--pp=2"]
    job = run(make_job(), other, f"--load={folder}", *sizes, "--steps=4", "--save-loaded", *arguments, nproc=2)
    assert {event["n"] for event in job.found("loaded")} == {4}
    theirs = stock(make_job, f"--load={folder}", "--no-load-rng", *sizes, "--steps=4", *arguments, nproc=2)
    assert states(theirs, "loaded", n=4) == states(job, "loaded", n=4)
    back = run(make_job(), tmp_path / "back", f"--load={other}", "--steps=4", *arguments)
    assert states(back, "loaded", n=4) == states(first, "done")


def damage(path):
    """As a disk does: whoever writes to a file has written a checkpoint of their own, by its time."""
    before = path.stat()
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"damaged" * 100)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_damaged_part_leads_to_the_iteration_before(make_job, folder):
    arguments = ["--tp=2", "--pp=1", "--steps=4", "--disk-every=2"]
    first = run(make_job(), folder, *arguments, nproc=2)
    damage(folder / "iter_0000004" / "mp_rank_01" / "model_optim_rng.pt")
    job = run(make_job(), folder, *arguments, nproc=2)
    assert states(job, "loaded", n=2) == states(first, "step", n=2), job.story()
    assert states(job, "done") == states(first, "done")
    assert (folder / TRACKER).read_text() == "4"


@pytest.mark.long
def test_half_a_checkpoint_of_megatrons_is_passed_over(make_job, folder):
    stock(make_job, f"--save={folder}", "--steps=2")
    wanted = states(stock(make_job, f"--save={folder}", f"--load={folder}", "--steps=3"), "step", n=3)
    stock(make_job, f"--save={folder}", f"--load={folder}", "--steps=4")
    (folder / "iter_0000004" / "mp_rank_01_001" / "model_optim_rng.pt").unlink()
    job = run(make_job(), folder, "--steps=3")
    assert states(job, "loaded", n=3) == wanted
    (line,) = [line for line in job.nodes[0].lines["stderr"] if "is passed over" in line]
    assert "iter_0000004 is passed over: mp_rank_01_001/model_optim_rng.pt is missing" in line
    shutil.rmtree(folder / "iter_0000002")
    shutil.rmtree(folder / "iter_0000003")
    job = run(make_job(), folder, code=1)
    assert {event["why"].partition(": it is half")[0] for event in job.found("refused")} == {
        f"phalanx.checkpoint.adapters.megatron: {folder}/iter_0000004: mp_rank_01_001/model_optim_rng.pt is missing"
    }


def test_what_does_not_fit_is_refused_in_a_sentence(make_job, folder):
    alone = ["--tp=1", "--pp=1"]
    run(make_job(), folder, *alone, "--steps=2", "--disk-every=2", nproc=1)
    job = run(make_job(), folder, *alone, "--hidden=32", nproc=1, code=1)
    (why,) = {event["why"] for event in job.found("refused")}
    assert re.search(r"is of another model: '[\w.]+' is \[[\d, ]+\], and \[[\d, ]+\] in this one\. ", why), why
    assert why.endswith("Give the model that was saved, or another directory to save to"), why
    job = run(make_job(), folder, "--tp=1", "--pp=2", nproc=2, code=1)
    (why,) = {event["why"] for event in job.found("refused")}
    assert "this job has 1 tensor x 2 pipeline parallel ranks, mp_rank_00_000, mp_rank_00_001. Use the" in why
    job = run(make_job(), folder, *alone, "--distributed", nproc=1, code=1)
    (why,) = {event["why"] for event in job.found("refused")}
    assert "it has no distrib_optim.pt: it was saved without the distributed optimizer" in why


def test_an_earlier_run_is_not_gone_on_from_in_place_of_a_path(make_job, folder, tmp_path):
    alone = ["--tp=1", "--pp=1"]
    before = tmp_path / "pretrained"
    run(make_job(), before, *alone, "--steps=2", "--disk-every=2", nproc=1)
    run(make_job(), folder, *alone, "--steps=4", "--disk-every=4", nproc=1)
    arguments = [f"--load={before}", "--die-loaded", "--steps=3"]
    job = run(make_job(), folder, *alone, *arguments, nproc=1, flags=["--max-restarts=1"])
    assert [(event["life"], event["n"]) for event in job.found("loaded")] == [(0, 2), (1, 2)], job.story()


def test_megatron_is_imported_ahead(tmp_path):
    """psutil, which it brings along, asks whether /proc has files of its process, as it has of each."""
    command = [command_path("phalanx"), "warm", "--json", "megatron_saving.py", f"--save={tmp_path}"]
    env = {**clean_environment(), "TORCHDYNAMO_DISABLE": "1", "XDG_STATE_HOME": str(tmp_path)}
    told = json.loads(subprocess.check_output(command, cwd=WORKLOADS, env=env, text=True))
    assert told["zygotes"] == 1, told["prefix_end"]
    assert {"megatron.core", "psutil._pslinux"} <= set(told["modules"])


def test_what_is_saved_last_is_in_its_place_when_the_script_has_ended(make_job, folder):
    run(make_job(), folder, "--tp=1", "--pp=1", "--steps=2", "--disk-every=2", "--just-ends", nproc=1)
    assert (folder / TRACKER).read_text() == "2"
    assert (folder / "iter_0000002" / "mp_rank_00" / "model_optim_rng.pt").exists()


def test_so_many_iterations_stay(make_job, folder):
    run(make_job(), folder, "--tp=1", "--pp=1", "--steps=6", "--disk-every=1", "--keep-last=2", nproc=1)
    left = sorted(path.name for path in folder.glob("iter_*"))
    assert len(left) == 2 and left[1] == "iter_0000006", left
    assert (folder / TRACKER).read_text() == "6"


def blocks_of_the_page():
    """Its lines of Python."""
    text = (WORKLOADS.parent.parent / "docs" / "frameworks" / "megatron.md").read_text()
    return [part.split("```")[0] for part in text.split("```python\n")[1:]]


def changed(lines, given):
    for before, after in given.items():
        assert before in lines, (before, lines)
        lines = lines.replace(before, after)
    return lines


def run_script(make_job, path, lines, nproc, *flags):
    path.write_text(f"import sys\n\nsys.path.insert(0, {str(WORKLOADS)!r})\n{lines}")
    job = make_job()
    node = job.run("--standalone", f"--nproc-per-node={nproc}", *flags, path, env=UNCOMPILED)
    assert node.wait(END_S) == 0, job.story()
    return job


def test_the_lines_of_the_documentation_for_megatron_core_run_and_resume(make_job, folder, tmp_path):
    """The first job stores in the format torch, and the second, with the lines for settings, in torch_dist."""
    _, loop, settings = blocks_of_the_page()
    loop = changed(loop, {"/data/run7": str(folder), "% 10 ": "% 2 ", "% 100 ": "% 4 "})
    settings = changed(settings, {"/data/run7": str(folder)})
    begin = (
        "import tiny_megatron\nfrom tiny_megatron import train_step\n"
        "tiny_megatron.begin(2, 1)\nmodel, optimizer, scheduler = tiny_megatron.make(False)\n"
    )
    end = "from leaving import leave_group\nfrom phalanx.checkpoint.adapters.megatron import wait_latest_checkpoint\n"
    end += "wait_latest_checkpoint()\nleave_group()\n"
    for before, last, said in (("", 4, "from iteration 0"), (settings, 8, "from iteration 4")):
        lines = begin + before + changed(loop, {"1000": str(last)}) + end
        job = run_script(make_job, tmp_path / "train.py", lines, 2)
        assert job.nodes[0].stdout.count(said) == 2, job.story()
        assert (folder / TRACKER).read_text() == str(last), job.story()
    parts = ("mp_rank_00", "mp_rank_01")
    assert files_in(folder / "iter_0000004") == [f"{part}/model_optim_rng.pt" for part in parts]
    assert {".metadata", "common.pt", "metadata.json"} < set(files_in(folder / "iter_0000008"))


def test_the_lines_of_the_documentation_for_megatron_lm_go_on_from_memory(make_job, folder, tmp_path):
    """Megatron-LM is no package that can be installed: what its two modules are asked for stands in workloads."""
    lines, *_ = blocks_of_the_page()
    begin = (
        "import os, signal\nimport megatron_stand_in\nimport tiny_megatron\n"
        "tiny_megatron.begin(1, 1)\nmodel, optimizer, opt_param_scheduler = tiny_megatron.make(False)\n"
        f"args = megatron_stand_in.put({str(folder)!r})\niteration = 5\n"
    )
    end = (
        'print(f"from iteration {args.iteration}", flush=True)\nassert handle.wait_committed(), handle.why\n'
        'if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":\n    os.kill(os.getpid(), signal.SIGKILL)\n'
        "from leaving import leave_group\nleave_group()\n"
    )
    lines = changed(lines, {"\nsave_checkpoint(": "\niteration += args.iteration\nhandle = save_checkpoint("})
    job = run_script(make_job, tmp_path / "train.py", begin + lines + end, 1, "--max-restarts=1")
    said = [line for line in job.nodes[0].stdout.splitlines() if line.startswith("from iteration")]
    assert said == ["from iteration 0", "from iteration 5"], job.story()
