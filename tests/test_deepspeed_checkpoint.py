"""phalanx.checkpoint.adapters.deepspeed beside DeepSpeed itself, in environments of tools/deepspeeds.py: what one
stores the other loads, what was in memory comes back behind a kill, and what does not fit is refused in a sentence."""

import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import dlrover_jobs
import pytest
import torch
from harness import WORKLOADS, clean_environment
from test_checkpoint_dcp import of_ranks, ready_before_first_save
from test_checkpoint_job import directory as directory
from test_checkpoint_job import jobs_with_memory as jobs_with_memory
from test_checkpoint_job import make_job as make_job

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from phalanx.checkpoint.adapters import zero_files  # noqa: E402

from tools import deepspeeds  # noqa: E402

OLD, _, NEW = deepspeeds.VERSIONS
KINDS = [(stage, version) for version in (OLD, NEW) for stage in (1, 2, 3)]
END_S = 400


def kinds(*short):
    """Of ZeRO and DeepSpeed: all of them, those that are not `short` in long runs."""
    others = [pytest.param(*kind, marks=pytest.mark.long) for kind in KINDS if kind not in short]
    return pytest.mark.parametrize(("stage", "version"), [*short, *others])


environment = functools.lru_cache(maxsize=None)(deepspeeds.prepare)


def start(job, directory, stage, version, *arguments, nproc=2, flags=("--max-restarts=0",), warm=False):
    """Among `arguments` a folder begins another act, which trains there. Of DeepSpeed on the CPU nothing stays warm, so
    that a zygote would import it for nothing."""
    command = [str(environment(version) / "bin" / "phalanx-run")]
    own = ["--standalone", f"--nproc-per-node={nproc}", f"--state-dir={job.folder / 'state'}", *flags]
    own += [] if warm else ["--no-warm"]
    line = [*own, WORKLOADS / "zero_saving.py", f"--dir={directory}", f"--stage={stage}"]
    for argument in arguments:
        another = ["--then", f"--dir={argument}", f"--stage={stage}"]
        line += another if isinstance(argument, Path) else [argument]
    env = {**deepspeeds.ON_CPU, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": dlrover_jobs.COMPAT}
    return job.run(*line, command=command, env=env)


def done(job, *arguments, **more):
    assert start(job, *arguments, **more).wait(END_S) == 0, job.story()
    return job


def states(job, name, **fields):
    return [event["state"] for event in of_ranks(job, name, **fields)]


def same(one, other):
    """Whether two checkpoints of DeepSpeed's hold the same, bit for bit: what it pads with may be no number."""
    if isinstance(one, torch.Tensor):
        bits = [each.detach().contiguous().flatten().view(torch.uint8) for each in (one, other)]
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*bits)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return vars(one) == vars(other) if hasattr(one, "__dict__") else one == other


COMPARE = """
import sys
sys.path.insert(0, sys.argv[1])
import test_deepspeed_checkpoint as tests, torch
load = lambda folder: [torch.load(f"{folder}/{name}", weights_only=False) for name in sys.argv[4:]]
ours, theirs = map(load, sys.argv[2:4])
assert tests.same(ours, theirs), (ours, theirs)
"""


WEIGHTS = """
import runpy, sys
from pathlib import Path
arguments = sys.argv
for step in map(Path, arguments[2:4]):
    folder = str(step.parent)
    sys.argv = ["zero_to_fp32.py", folder, folder + "/weights", "--tag", step.name]
    runpy.run_path(folder + "/zero_to_fp32.py", run_name="__main__")
sys.argv = arguments
"""


def run_python(version, *line):
    command = [environment(version) / "bin" / "python", *line]
    env = {**clean_environment(), **deepspeeds.ON_CPU}
    ended = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=env)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
@kinds((3, NEW))
def test_what_one_stores_the_other_loads(make_job, tmp_path, stage, version):
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    acts = ["--save=stock", "--load=none", "--steps=4", ours, "--steps=4", "--disk-every=2"]
    # Stock DeepSpeed goes on from ours, and ours from DeepSpeed's.
    acts += [ours, "--load=stock", "--save=stock", "--steps=4", theirs, "--steps=5", "--disk-every=5"]
    job = done(make_job(), theirs, stage, version, *acts)
    wanted = states(job, "step", act=0, n=4)
    for act in (2, 3):
        assert states(job, "loaded", act=act, n=4, source="disk", note="step 4") == wanted
    why = job.found("loaded", act=3)[0]["why"]
    assert why == f"{theirs}/global_step4 is restored, which DeepSpeed has stored: {theirs}/latest names it"
    assert (ours / "latest").read_text() == "4" and (theirs / "latest").read_text() == "5"
    # The same files, with the same in them, and the weights that DeepSpeed's own script makes of them.
    names = sorted(path.name for path in (theirs / "global_step4").iterdir())
    assert sorted(path.name for path in (ours / "4").iterdir()) == sorted([*names, "manifest.json"])
    run_python(version, "-c", WEIGHTS + COMPARE, WORKLOADS.parent, ours / "4", theirs / "global_step4", *names)
    weights = [
        path.relative_to(ours) for path in (ours / "weights").iterdir() if path.suffix in (".bin", ".safetensors")
    ]
    assert weights and all((ours / path).read_bytes() == (theirs / path).read_bytes() for path in weights)


@pytest.mark.slow
@pytest.mark.timeout(600)
@kinds((1, OLD))
def test_a_killed_rank_goes_on_from_memory_as_if_nothing_had_been(make_job, tmp_path, request, stage, version):
    steps = 14
    rng = random.Random(request.config.option.seed)
    job = make_job()
    # First without a kill, in the first life alone.
    arguments = [f"--steps={steps}", "--load=none", tmp_path / "run", f"--steps={steps}", "--pause-at=6,10"]
    warm = version == OLD
    node = start(job, tmp_path / "other", stage, version, *arguments, flags=["--max-restarts=3"], warm=warm)
    for life in (0, 1):
        job.wait_events("step", n=3 + 4 * life, life=life, act=1, timeout_s=END_S)
        time.sleep(rng.random() / 10)  # of a step's time and its save's
        os.kill(job.pid(rng.randrange(2), life), signal.SIGKILL)
    assert node.wait(END_S) == 0, job.story()
    wanted = [(event["n"], event["rank"], event["loss"], event["state"]) for event in job.found("step", act=0)]
    for life in (1, 2):
        loaded = of_ranks(job, "loaded", life=life)
        kept = {event["n"] for event in job.found("saved", kept=True, act=1) if event["life"] < life}
        assert {event["source"] for event in loaded} == {"memory"}, loaded
        assert loaded[0]["n"] == loaded[1]["n"] >= max(kept), job.story()
        at = {rank: state for n, rank, _, state in wanted if n == loaded[0]["n"]}
        assert [event["state"] for event in loaded] == [at[0], at[1]]
    done_steps = {(event["n"], event["rank"], event["loss"], event["state"]) for event in job.found("step", act=1)}
    assert done_steps == set(wanted)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", [NEW, pytest.param(OLD, marks=pytest.mark.long)])
def test_deepspeeds_own_calls_save_and_load_by_our_engine(make_job, directory, version):
    arguments = ["--save=engine", "--load=engine", "--keep-last=2"]
    job = done(make_job(), directory, 2, version, *arguments, "--steps=3")
    assert ready_before_first_save(job, 2), job.story()
    wanted = states(job, "step", n=3)
    assert (directory / "latest").read_text() == "global_step3"
    assert os.readlink(directory / "global_step3") == "3"
    assert not os.path.lexists(directory / "global_step1"), "its step is deleted"
    # What DeepSpeed has begun at the next tag is put aside, and links of others stay.
    (directory / "global_step4").mkdir()
    (directory / "global_step4" / "half").write_text("theirs")
    links = {"data": "/nowhere/2", "next": "run8", "gone": "77"}
    for name, target in links.items():
        (directory / name).symlink_to(target)
    # Also by us without its calls, and by DeepSpeed without us.
    stock = ["--save=stock", "--load=stock", "--steps=4"]
    acts = ["--steps=3", directory, *arguments, "--steps=4", directory, *stock]
    job = done(make_job(), directory, 2, version, *acts)
    for act in (0, 1):
        assert states(job, "loaded", act=act, n=3, source="disk", note="step 3") == wanted
    assert os.readlink(directory / "global_step4") == "4"
    assert (directory / "global_step4.before-phalanx" / "half").read_text() == "theirs"
    assert f"{directory}/global_step4 was there before, and is " in job.nodes[0].stderr, job.story()
    assert [os.path.lexists(directory / name) for name in links] == [True, True, False], "of ours a deleted one was"
    wanted = states(job, "step", act=1, n=4)
    assert states(job, "loaded", act=2, n=4, source="disk") == wanted


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_by_the_name_that_dlrover_has(make_job, directory):
    own = ["--save=dlrover", "--load=dlrover"]
    acts = [*own, "--steps=2", directory, *own, "--steps=3", directory, "--steps=3"]
    job = done(make_job(), directory, 2, NEW, *acts)
    wanted = states(job, "step", act=0, n=2)
    assert states(job, "loaded", act=1, n=2, source=f"{directory}/2", note="step 2") == wanted
    assert states(job, "loaded", act=2, n=3) == states(job, "step", act=1, n=3)
    assert (directory / "latest").read_text() == "3"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_step_that_is_saved_once_more_is_stored_once_more(make_job, directory):
    stock = ["--save=stock", "--load=stock", "--steps=2"]
    acts = ["--save=engine", "--load=none", "--twice-at=2", "--steps=2", directory, *stock]
    job = done(make_job(), directory, 2, NEW, *acts)
    wanted = states(job, "step", n=2)
    folders = [os.readlink(directory / tag) for tag in ("global_step2", "again", "aside")]
    assert folders[0] == "2" and folders[1].startswith("2.") and folders[2].startswith("2."), folders
    assert len(set(folders)) == 3 and (directory / "latest").read_text() == "again"
    assert os.listdir(directory / "final") == ["pytorch_model.bin"]
    weights = torch.load(directory / "final" / "pytorch_model.bin")
    assert sorted(weights) == job.found("weights")[0]["names"]
    assert states(job, "loaded", act=1, n=2, source="disk", note="again") == wanted


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_tag_that_is_another_steps_folder_is_refused_on_all_ranks(make_job, directory):
    (directory / "again").mkdir(parents=True)
    (directory / "again" / "manifest.json").write_text("{}")
    job = make_job()
    arguments = ["--save=engine", "--load=none", "--twice-at=1", "--steps=1"]
    assert start(job, directory, 2, NEW, *arguments).wait(END_S) == 1, job.story()
    said = "phalanx.checkpoint: step 1 is stored, and again does not lead to it: [Errno 17] it is the folder of another"
    assert [event["why"].startswith(said) for event in job.found("refused")] == [True, True], job.story()
    assert (directory / "again" / "manifest.json").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_bf16_without_zero_goes_on(make_job, tmp_path):
    """Its optimizer writes files as of ZeRO 1."""
    ours = tmp_path / "ours"
    job = done(make_job(), ours, 0, OLD, "--steps=2", "--disk-every=2")
    assert (ours / "2" / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").exists()
    wanted = states(job, "step", n=2)
    job = done(make_job(), ours, 0, OLD, "--steps=3")
    assert states(job, "loaded", n=2, source="disk", note="step 2") == wanted


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_does_not_fit_or_is_not_whole(make_job, tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    job = done(make_job(), ours, 1, OLD, "--steps=4", "--disk-every=2")
    wanted = states(job, "step", n=2)

    # Of DeepSpeed's a file is missing: nothing else says so.
    (theirs / "tag").mkdir(parents=True)
    name = "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"
    for path in (ours / "4").glob("*.pt"):
        if path.name != name:
            shutil.copy(path, theirs / "tag")
    (theirs / "latest").write_text("tag")
    # Of ours it makes the step count no more.
    (ours / "4" / name).unlink()
    job = make_job()
    assert start(job, ours, 1, OLD, "--steps=2", theirs).wait(END_S) == 1, job.story()
    assert states(job, "loaded", act=0, n=2, source="disk") == wanted
    assert f"{ours}/4: " in job.found("loaded")[0]["why"]
    assert f"{theirs}/tag: the optim_states of data-parallel rank 0 of 2 are missing" in job.nodes[0].stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_writes_weights_beside_the_steps_costs_that_save_and_tears_none(make_job, tmp_path):
    """Step 4 is large, and its weights are written meanwhile: another thread of DeepSpeed's might."""
    job = make_job()
    arguments = ["--meddle-every=4", "--width=1500", "--pause-at=4", "--steps=5"]
    node = start(job, tmp_path / "run", 2, NEW, *arguments, flags=["--max-restarts=1"])
    of_ranks(job, "pausing")
    kept = [event["n"] for event in job.found("saved", life=0, rank=0) if event["kept"]]
    dropped = job.found("saved", life=0, n=4, kept=False)
    os.kill(job.pid(1, 0), signal.SIGKILL)
    assert node.wait(END_S) == 0, job.story()
    assert kept in ([1, 2, 3], [1, 2, 3, 4]), "where the copy was faster, it is whole"
    assert not dropped or any("was written" in event["why"] or "changed" in event["why"] for event in dropped)
    wanted = states(job, "step", life=0, n=kept[-1])
    assert states(job, "loaded", life=1, n=kept[-1], source="memory") == wanted


def test_deepspeed_is_imported_ahead(tmp_path):
    """Of the newest nothing keeps a process from being forked; on the CPU it asks for its process id."""
    command = [environment(NEW) / "bin" / "phalanx", "warm", "--json", "zero_saving.py", f"--dir={tmp_path}"]
    env = {**clean_environment(), "DS_ACCELERATOR": "cuda", "XDG_STATE_HOME": str(tmp_path)}
    told = json.loads(subprocess.check_output(command, cwd=WORKLOADS, env=env, text=True))
    assert told["zygotes"] == 1 and "deepspeed.runtime.engine" in told["modules"], told["prefix_end"]


def names_of(stage, size, prefix="bf16_", model=True):
    models = ["mp_rank_00_model_states.pt"] if stage < 3 else []
    models += [f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt" for rank in range(size) if stage == 3]
    optimizers = [f"{prefix}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(size) if stage]
    return [*(models if model else []), *optimizers, "manifest.json"]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_files_of_the_same_engine_fit(stage):
    for prefix in ("", "bf16_"):
        assert zero_files.why_not(names_of(stage, 4, prefix), stage, 4, prefix != "") is None
    assert stage == 0 or zero_files.why_not(names_of(min(stage, 1) or stage, 4), 2, 4, True) is None


@pytest.mark.parametrize(
    ("names", "stage", "size", "said"),
    [
        (names_of(3, 2), 2, 2, "it was saved with ZeRO 3, and this engine has ZeRO 1 or 2"),
        (names_of(2, 2), 3, 2, "it was saved with ZeRO 1 or 2, and this engine has ZeRO 3"),
        (names_of(0, 1), 1, 2, "it was saved with no ZeRO, and this engine has ZeRO 1 or 2"),
        (names_of(1, 2), 0, 1, "it was saved with ZeRO 1 or 2, and this engine has no ZeRO"),
        (names_of(1, 4), 1, 2, "it was saved by 4 data-parallel ranks, and this job has 2"),
        (names_of(3, 2), 3, 4, "it was saved by 2 data-parallel ranks, and this job has 4"),
        (names_of(1, 4)[:2] + names_of(1, 4)[3:], 1, 4, "the optim_states of data-parallel rank 1 of 4 are missing"),
        (names_of(3, 2)[1:], 3, 2, "the model_states of data-parallel rank 0 of 2 are missing"),
        (names_of(1, 2, model=False), 1, 2, "it has no *_model_states.pt, so DeepSpeed has not saved it, or not all"),
        (names_of(2, 2, prefix=""), 2, 2, "it was saved of an engine in fp16 or fp32, and this engine is in bf16"),
    ],
)
def test_files_of_another_engine_are_refused_in_a_sentence(names, stage, size, said):
    assert said in zero_files.why_not(names, stage, size, True)


@pytest.mark.slow
def test_the_lines_of_the_documentation_run_and_resume(make_job, tmp_path):
    text = (ROOT / "docs" / "frameworks" / "deepspeed.md").read_text()
    first, second, third = (part.split("```")[0] for part in text.split("```python\n")[1:])
    script, run = tmp_path / "train.py", tmp_path / "run"
    no_build = 'deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False\n'
    lines = first.replace("import torch\n", f"import torch\n{no_build}", 1) + second
    script.write_text(lines.replace("/data/run7", str(run)).replace("1000", "20"))
    command = [str(environment(NEW) / "bin" / "phalanx-run"), "--standalone", "--nproc-per-node=2", "--no-warm"]
    for said in ("from step 0, 0 seen", "from step 20, 80 seen"):
        job = make_job()
        node = job.run(script, command=command, env={**deepspeeds.ON_CPU, "CUDA_VISIBLE_DEVICES": ""})
        assert node.wait(END_S) == 0, job.story()
        assert node.stdout.count(said) == 2, job.story()
    assert (run / "latest").read_text() == "global_step20"
    lines = third.replace("/data/run7", str(run)).replace("global_step100", "global_step20")
    run_python(NEW, "-c", lines)
    assert (run / "latest_universal").read_text() == "ucp"
