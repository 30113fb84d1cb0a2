"""phalanx.checkpoint.universal beside DeepSpeed's ds_to_universal.py, in environments of tools/deepspeeds.py: the same
tensors, for any number of ranks, whole or not there at all, and a sentence for what cannot be converted."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import types

import pytest
import torch
from harness import WORKLOADS, clean_environment
from phalanx.checkpoint import universal
from phalanx.checkpoint.adapters import universal_load
from phalanx.checkpoint.universal import Refused, source, whole, zero
from test_checkpoint_job import jobs_with_memory as jobs_with_memory
from test_checkpoint_job import make_job as make_job
from test_deepspeed_checkpoint import (
    COMPARE,
    END_S,
    NEW,
    OLD,
    deepspeeds,
    done,
    environment,
    kinds,
    run_python,
    start,
    states,
)


def with_jobs(test):
    return pytest.mark.slow(pytest.mark.timeout(600)(test))


def saved(make_job, folder, stage, version, *arguments, nproc=2):
    """The folder of step 2, which stock DeepSpeed has saved."""
    own = ["--save=stock", "--load=none", "--steps=2", "--odd", *arguments]
    done(make_job(), folder, stage, version, *own, nproc=nproc)
    return folder / "global_step2"


def once(tmp_path_factory, name, fill):
    """A function that copies into a test's folder what `fill(make_job, folder)` has made in the first that asks."""
    made = tmp_path_factory.mktemp(name)

    def copied(make_job, folder):
        if not any(made.iterdir()):
            fill(make_job, made)
        shutil.copytree(made, folder, dirs_exist_ok=True)

    return copied


@pytest.fixture(scope="module")
def copy_two_saved(tmp_path_factory):
    """Two such folders, one/global_step2 and other/global_step2, of models of another size."""

    def fill(make_job, folder):
        wide = [folder / "other", "--save=stock", "--load=none", "--steps=2", "--odd", "--width=40"]
        saved(make_job, folder / "one", 1, OLD, *wide)

    return once(tmp_path_factory, "two", fill)


@pytest.fixture(scope="module")
def copy_saved(tmp_path_factory):
    """A function from (stage, version, groups of parameters) to one that copies what saved() makes of it."""
    made = {}

    def of(stage, version, groups):
        if (stage, version, groups) not in made:

            def fill(make_job, folder):
                saved(make_job, folder, stage, version, f"--groups={groups}")

            made[stage, version, groups] = once(tmp_path_factory, "saved", fill)
        return made[stage, version, groups]

    return of


# The command, and others, many times: each line of stdin has what is run and its arguments, each of stdout how it has
# ended and what it has said.
COMMANDS = """
import contextlib, io, json, runpy, sys, traceback
import deepspeed
from phalanx.checkpoint.universal.__main__ import main
for line in sys.stdin:
    what, *arguments = json.loads(line)
    sys.argv = [what, *arguments]
    said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said[0]), contextlib.redirect_stderr(said[1]):
        try:
            if what == "universal":
                code = main()
            elif what == "-c":
                sys.argv[1:2] = []
                code = exec(arguments[0], {"__name__": "__main__"})
            else:
                code = runpy.run_module(what, run_name="__main__") and None
        except Exception:
            traceback.print_exc()
            code = -1
    print("ended", json.dumps([code, *(each.getvalue() for each in said)]), flush=True)
"""


class Commands:
    """`python -m phalanx.checkpoint.universal`, and what else DeepSpeed's Python is to run, in one process, which
    imports DeepSpeed once."""

    def __init__(self, version):
        command = [environment(version) / "bin" / "python", "-c", COMMANDS]
        env = {**clean_environment(), **deepspeeds.ON_CPU}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([str(part) for part in command], env=env, **pipes)

    def run(self, *line):
        """(exit code, stdout, stderr) of ("universal", argument, ..), ("-c", code, ..) or ("a.module", ..)."""
        self.process.stdin.write(json.dumps([str(part) for part in line]) + "\n")
        self.process.stdin.flush()
        said = next(text for text in self.process.stdout if text.startswith("ended "))  # DeepSpeed logs between them
        return json.loads(said.partition(" ")[2])

    def close(self):
        self.process.stdin.close()
        assert self.process.wait() == 0
        self.process.stdout.close()


@pytest.fixture(scope="module")
def commands():
    """A function from a version of DeepSpeed to its Commands."""
    made = {}

    def of(version):
        if version not in made:
            made[version] = Commands(version)
        return made[version]

    yield of
    for each in made.values():
        each.close()


@pytest.fixture
def convert(commands):
    """What the command says; its exit code is 0."""

    def run(version, *line):
        code, said, wrong = commands(version).run("universal", *line)
        assert code == 0, said + wrong
        return said

    return run


@pytest.fixture
def refused(commands):
    """The sentence that it ends with."""

    def run(version, *line):
        code, _, wrong = commands(version).run("universal", *line)
        assert code == 1 and "Traceback" not in wrong, wrong
        return wrong.splitlines()[-1]

    return run


@pytest.fixture
def run_there(commands):
    """Runs code, or a module, in DeepSpeed's Python."""

    def run(version, *line):
        code, said, wrong = commands(version).run(*line)
        assert code is None, said + wrong

    return run


def convert_by_deepspeed(run_there, version, step, target):
    stock = ["deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
    workers = ["--num_extract_workers=1", "--num_merge_workers=1"]
    run_there(version, *stock, *workers, f"--input_folder={step}", f"--output_folder={target}")


def names_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.pt"))


def assert_same(run_there, version, one, other, names):
    run_there(version, "-c", COMPARE, WORKLOADS.parent, one, other, *names)


@with_jobs
@kinds((2, OLD))
def test_it_is_what_deepspeed_makes_of_it(make_job, tmp_path, copy_saved, convert, run_there, stage, version):
    groups = 2 if stage < 3 else 1  # of ZeRO 3 the older script takes the first group alone
    copy_saved(stage, version, groups)(make_job, tmp_path)
    step = tmp_path / "global_step2"
    convert_by_deepspeed(run_there, version, step, tmp_path / "stock")
    ours, stock = tmp_path / "ours", tmp_path / "stock"
    assert "is written, and latest_universal names it" in convert(version, step, ours)
    assert names_in(ours) == names_in(stock)
    trained = 5
    of_each, models = (4, 1) if stage < 3 else (3, 2)
    others = 2 if stage < 3 and version == NEW else 0  # a buffer and a frozen bias, in fp32
    assert len(names_in(ours)) == trained * of_each + 1 + models + others
    assert_same(run_there, version, ours, stock, names_in(ours))
    assert (tmp_path / "latest_universal").read_text() == "ours"
    assert sorted(path.name for path in tmp_path.iterdir() if "ours" in path.name) == ["ours"], "nothing else is left"
    assert whole.damaged(str(ours)) is None
    manifest = json.loads((ours / "universal.json").read_text().splitlines()[0])
    assert sorted(each["file"] for each in manifest["files"]) == names_in(ours)
    # Once more there is nothing to do, but to name it.
    (tmp_path / "latest_universal").unlink()
    before = (ours / "universal.json").stat().st_mtime_ns
    assert "is there already" in convert(version, step, ours)
    assert (ours / "universal.json").stat().st_mtime_ns == before
    assert (tmp_path / "latest_universal").read_text() == "ours"
    assert "is whole" in convert(version, "--check", ours)


# Steps, of whatever ranks and stages, are of the same parameters and moments.
SAME = """
import sys
sys.path.insert(0, sys.argv[1])
import deepspeed, test_deepspeed_checkpoint as tests, torch
from pathlib import Path
from phalanx.checkpoint import universal
found = []
for number, step in enumerate(sys.argv[3:]):
    folder = Path(sys.argv[2]) / str(number)
    universal.convert(step, folder, stage=1)
    paths = {path.relative_to(folder): path for path in folder.glob("zero/*/*.pt")}
    found.append({name: torch.load(path, weights_only=False) for name, path in sorted(paths.items())})
assert len(found[0]) == 5 * 4, found[0].keys()
for other in found[1:]:
    assert tests.same(found[0], other), (found[0], other)
"""


def goes_on(make_job, run_there, folder, version, lives):
    """The folders that the step was saved to, in turn by each of `lives`, (stage, ranks), of whom all but the first
    have loaded what was there; and what they have said of it."""
    directory, steps, said = folder / "run", [], []
    for number, (stage, nproc) in enumerate(lives):
        arguments = ["--odd", "--steps=2", "--disk-every=2", *(["--again"] if number else [])]
        job = done(make_job(), directory, stage, version, *arguments, nproc=nproc)
        loaded = job.found("loaded", note="step 2")
        assert [event["n"] for event in loaded] == ([2] * nproc if number else []), job.story()
        steps.append(directory / (directory / "latest").read_text())
        assert len(list(steps[-1].glob("*optim_states.pt"))) == nproc
        said.append(job.nodes[0].stderr)
    assert len(set(steps)) == len(lives)
    assert not (directory / ".universal").exists()
    run_there(version, "-c", SAME, WORKLOADS.parent, folder / "converted", *steps)
    return said


@with_jobs
@kinds((2, OLD))
def test_any_number_of_ranks_goes_on(make_job, run_there, tmp_path, stage, version):
    """Two ranks, then one, then three: no two of them can halve a parameter."""
    said = goes_on(make_job, run_there, tmp_path, version, [(stage, 2), (stage, 1), (stage, 3)])
    assert "it was saved by 2 data-parallel ranks, and this job has 1: it is converted" in said[1]
    assert "it was saved by 1 data-parallel rank, and this job has 3: it is converted" in said[2]


@with_jobs
@pytest.mark.parametrize("version", [OLD, pytest.param(NEW, marks=pytest.mark.long)])
def test_another_stage_of_zero_goes_on(make_job, run_there, tmp_path, version):
    said = goes_on(make_job, run_there, tmp_path, version, [(1, 2), (3, 1), (2, 2)])
    assert "it was saved with ZeRO 1 or 2, and this engine has ZeRO 3: it is converted" in said[1]
    assert "it was saved with ZeRO 3, and this engine has ZeRO 1 or 2: it is converted" in said[2]


@with_jobs
@pytest.mark.parametrize("stage", [2, pytest.param(3, marks=pytest.mark.long)])
def test_what_is_in_memory_is_converted_too(make_job, tmp_path, stage):
    """Nothing of it is on disk: a rank is killed, and the engine takes nothing but a universal checkpoint."""
    job = make_job()
    arguments = ["--universal", "--pause-at=3", "--steps=4"]
    node = start(job, tmp_path / "run", stage, OLD, *arguments, flags=["--max-restarts=1"])
    job.wait_events("pausing", 2, timeout_s=END_S)
    os.kill(job.pid(1, 0), signal.SIGKILL)
    assert node.wait(END_S) == 0, job.story()
    wanted = states(job, "step", life=0, n=3)
    assert states(job, "loaded", life=1, n=3, source="memory", note="step 3") == wanted, job.story()
    assert "the engine's config has checkpoint.load_universal: it is converted" in node.stderr


@with_jobs
@kinds((3, NEW))
def test_stock_deepspeed_loads_it(make_job, tmp_path, copy_saved, run_there, stage, version):
    copy_saved(stage, version, 1)(make_job, tmp_path)
    step = tmp_path / "global_step2"
    run_python(version, "-m", "phalanx.checkpoint.universal", step, tmp_path / "ucp")
    step.rename(tmp_path / "away")
    arguments = ["--odd", "--load=universal", "--save=stock", "--steps=2", "--again"]
    job = done(make_job(), tmp_path, stage, version, *arguments, nproc=1)
    assert [event["n"] for event in job.found("loaded", source="disk", note="step 2")] == [2]
    # Of one rank by now.
    run_there(version, "-c", SAME, WORKLOADS.parent, tmp_path / "converted", tmp_path / "away", step)


KILL = """
import os, random, signal, sys, time
import deepspeed
from phalanx.checkpoint import universal
from phalanx.checkpoint.universal import whole
choose = random.Random(int(sys.argv[1]))
steps, target, rounds = sys.argv[2:4], sys.argv[4], int(sys.argv[5])
began = time.monotonic()
universal.convert(steps[0], target)
took = time.monotonic() - began
found = set()
number = 0
while number < rounds or len(found) < 2:
    assert number < 10 * rounds, "all were killed too early to change anything"
    child = os.fork()
    if child == 0:
        universal.convert(steps[number % 2 - 1], target)
        os._exit(0)
    time.sleep(choose.random() * 1.2 * took)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    why = whole.damaged(target)
    assert why is None, why
    with open(os.path.join(os.path.dirname(target), "latest_universal")) as file:
        assert file.read() == "ucp"
    found.add(str(whole.read(target)["source"]))
    number += 1
    if number >= rounds:  # slower by now than the one that was timed
        took *= 1.1
universal.convert(steps[1], target)
left = sorted(name for name in os.listdir(os.path.dirname(target)) if "ucp" in name)
assert left == ["ucp"], left
"""


@with_jobs
def test_killed_at_any_point_one_of_both_is_there(make_job, tmp_path, copy_two_saved, request):
    copy_two_saved(make_job, tmp_path)
    one, other = (tmp_path / name / "global_step2" for name in ("one", "other"))
    rounds = 200 if request.config.option.long else 40
    run_python(OLD, "-c", KILL, request.config.option.seed, one, other, tmp_path / "ucp", rounds)


@with_jobs
def test_a_full_disk_and_bad_files_leave_what_was_there(
    make_job, tmp_path, copy_two_saved, small_disk, convert, refused
):
    copy_two_saved(make_job, tmp_path)
    one, other = (tmp_path / name / "global_step2" for name in ("one", "other"))
    ucp = small_disk.path / "ucp"
    convert(OLD, one, ucp)
    of_one = whole.read(str(ucp))

    def is_of_one():
        named = (small_disk.path / "latest_universal").read_text() == "ucp"
        left = sorted(path.name for path in small_disk.path.glob("*ucp*"))
        return named and left == ["ucp"] and whole.damaged(str(ucp)) is None and whole.read(str(ucp)) == of_one

    small_disk.fill()
    assert "No space left on device" in refused(OLD, other, ucp)
    assert is_of_one()
    small_disk.make_room()
    # A byte of a rank's file, in the middle of its partitions.
    shard = other / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    good = shard.read_bytes()
    shard.write_bytes(good[: len(good) // 2] + bytes([good[len(good) // 2] ^ 1]) + good[len(good) // 2 + 1 :])
    said = refused(OLD, other, ucp)
    assert said.startswith(f"{other}: {shard.name} is damaged: record ") and "has changed" in said
    shard.write_bytes(good[: len(good) // 2])
    assert f"{other}: {shard.name} is damaged: " in refused(OLD, other, ucp)
    shard.unlink()
    assert refused(OLD, other, ucp) == f"{other}: the optim_states of data-parallel rank 1 of 2 are missing"
    shutil.copy(one / shard.name, shard)
    said = refused(OLD, other, ucp)
    assert "its files are of several saves" in said or "a part of it is missing" in said, said
    assert is_of_one()
    shard.write_bytes(good)
    convert(OLD, other, ucp)
    assert whole.damaged(str(ucp)) is None and whole.read(str(ucp)) != of_one


@with_jobs
def test_without_zero_it_is_refused_in_a_sentence(make_job, tmp_path):
    done(make_job(), tmp_path / "run", 1, OLD, "--steps=2", "--disk-every=2")
    job = make_job()
    assert start(job, tmp_path / "run", 0, OLD, "--precision=fp32", nproc=1).wait(END_S) == 1, job.story()
    said = f"step 2 of {tmp_path / 'run'}: it was saved with ZeRO 1 or 2, and this engine has no ZeRO. Use the same"
    assert said in job.nodes[0].stderr


# --- which parts become which files, and what is said of files that do not fit


def joined(files, name):
    record = next(file for file in files if file.name == name).records[0]
    return torch.cat([piece.tensor.narrow(0, piece.start, piece.count) for piece in record])


def shards_of_3(groups, ranks):
    """What so many ranks hold of `groups`, [{name: tensor}] each, the states of one parameter being itself, its double
    and its square."""
    shards = []
    for rank in range(ranks):
        flats = []
        for group in groups:
            parts = []
            for tensor in group.values():
                length = -(-tensor.numel() // ranks)
                padded = torch.full((length * ranks,), -1.0)
                padded[: tensor.numel()] = tensor.flatten()
                parts.append(padded[rank * length : (rank + 1) * length])
            flats.append(torch.cat(parts))
        states = {n: {"exp_avg": 2 * flat, "exp_avg_sq": flat * flat, "step": 4.0} for n, flat in enumerate(flats)}
        inner = {"state": states, "param_groups": [{"lr": 0.1}]}
        shards.append({"optimizer_state_dict": {"optimizer_state_dict": inner, "fp32_flat_groups": flats}})
    return shards


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_each_part_of_zero_3_is_taken_once(ranks):
    """Also of parameters of which the last ranks, or all but the first, have nothing."""
    sizes = [{"a": (5,), "b.weight": (3, 4)}, {"c": (), "d": (1, 1), "e": (2, 3, 5)}]
    groups = [{name: torch.rand(shape) for name, shape in group.items()} for group in sizes]
    shapes = [{name: each.shape for name, each in group.items()} for group in groups]
    model = {"param_shapes": shapes, "ds_version": "1"}
    step = zero.Step(3, ["m"], ["o"] * ranks)
    for stage in (3, 1):
        (files,) = zero.batches(step, model, shards_of_3(groups, ranks), stage)
        assert sum(file.name.endswith("step.pt") for file in files) == (5 if stage == 1 else 0)
        for name, tensor in {**groups[0], **groups[1]}.items():
            flat = tensor.flatten()
            assert torch.equal(joined(files, f"zero/{name}/fp32.pt"), flat)
            assert torch.equal(joined(files, f"zero/{name}/exp_avg.pt"), 2 * flat)
            assert torch.equal(joined(files, f"zero/{name}/exp_avg_sq.pt"), flat * flat)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "/etc", "a\0b"])
def test_a_parameter_that_is_no_name_of_a_folder_is_refused(name):
    groups = [{name: torch.rand(3)}]
    model = {"param_shapes": [{name: (3,)}]}
    with pytest.raises(Refused, match="is no name for a folder"):
        list(zero.batches(zero.Step(3, ["m"], ["o"]), model, shards_of_3(groups, 1), 3))


def test_a_step_before_the_first_is_refused():
    shards = shards_of_3([{"a": torch.rand(3)}], 1)
    shards[0]["optimizer_state_dict"]["optimizer_state_dict"]["state"] = {}
    with pytest.raises(Refused, match="before its first step"):
        list(zero.batches(zero.Step(3, ["m"], ["o"]), {"param_shapes": [{"a": (3,)}]}, shards, 3))


def test_ranks_that_have_made_different_steps_are_refused():
    shards = shards_of_3([{"a": torch.rand(4)}], 2)
    shards[1]["optimizer_state_dict"]["optimizer_state_dict"]["state"][0]["step"] = 5.0
    with pytest.raises(Refused, match=r"its ranks have made 4.0, 5.0 steps of a: its files are of several saves"):
        list(zero.batches(zero.Step(3, ["m"], ["o"] * 2), {"param_shapes": [{"a": (4,)}]}, shards, 3))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["mp_rank_00_model_states.pt"], "it has no \\*_optim_states.pt of ZeRO"),
        (["zero_pp_rank_0_mp_rank_00_optim_states.pt"], "it has no \\*_model_states.pt"),
        (
            ["mp_rank_00_model_states.pt", "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"],
            "the optim_states of data-parallel rank 0 of 2 are missing",
        ),
        (
            ["zero_pp_rank_0_mp_rank_00_model_states.pt", "zero_pp_rank_1_mp_rank_00_model_states.pt"]
            + ["bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"],
            "the optim_states of data-parallel rank 1 of 2 are missing",
        ),
        (
            ["mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt"]
            + [f"bf16_zero_pp_rank_0_mp_rank_0{rank}_optim_states.pt" for rank in (0, 1)],
            "it has 2 model-parallel ranks",
        ),
    ],
)
def test_what_is_no_whole_step_is_refused_by_its_names(names, said):
    with pytest.raises(Refused, match=said):
        zero.step_of(names)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"dp_world_size": 3}, "the optim_states of data-parallel rank 2 of 3 are missing"),
        ({"dp_world_size": 1}, "its model was saved by 1: its files are of several saves"),
        ({"universal_checkpoint_info": {"vocabulary_parameter_patterns": ["a"]}}, "parameters are to be joined"),
        ({"num_experts": [4]}, "experts"),
    ],
)
def test_what_does_not_fit_its_model_is_refused(model, said):
    step = zero.Step(1, ["m"], ["o", "o"])
    zero.must_fit(step, {"dp_world_size": 2, "universal_checkpoint_info": {"universal_checkpoint_version": 0.2}})
    with pytest.raises(Refused, match=said):
        zero.must_fit(step, {"dp_world_size": 2, **model})


def test_the_manifest_tells_what_is_whole(tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    source = [("s", 9, 7)]
    path = tmp_path / whole.NAME
    path.write_bytes(whole.text(1, 2, source, [("a", 5, 0xCBF53A1C)]))
    assert whole.damaged(str(tmp_path)) is None
    assert whole.why_not(str(tmp_path), 1, source) is None
    assert "another step" in whole.why_not(str(tmp_path), 3, source)
    assert "another step" in whole.why_not(str(tmp_path), 1, [("s", 9, 8)])
    (tmp_path / "a").write_bytes(b"12346")
    assert whole.why_not(str(tmp_path), 1, source) is None
    assert "a has changed" in whole.damaged(str(tmp_path))
    (tmp_path / "a").write_bytes(b"1234")
    assert "a has 4 bytes instead of 5" in whole.why_not(str(tmp_path))
    (tmp_path / "a").unlink()
    assert "No such file" in whole.why_not(str(tmp_path))
    path.write_bytes(path.read_bytes()[:-3])
    assert "is damaged" in whole.why_not(str(tmp_path))


@pytest.mark.parametrize("name", ["", "global_step100", "model.bin"])
def test_what_is_no_universal_checkpoint_is_not_replaced(tmp_path, name):
    """The run's own folder, the step's, a file."""
    step = tmp_path / "global_step100"
    step.mkdir()
    (step / "mp_rank_00_model_states.pt").write_bytes(b"weights")
    (tmp_path / "model.bin").write_bytes(b"weights")
    with pytest.raises(Refused, match="is a file" if name == "model.bin" else "it is not replaced"):
        universal.convert(step, tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == ["global_step100", "model.bin"]
    assert os.listdir(step) == ["mp_rank_00_model_states.pt"]


def test_what_a_file_system_without_exchange_has_put_aside_comes_back(tmp_path):
    """Who replaced it was killed between its two renames."""
    target = tmp_path / "ucp"
    for name in (f"ucp.writing-{1:016x}", f"ucp.writing-{1:016x}.old", f"ucp.writing-{2:016x}"):
        (tmp_path / name).mkdir()
        (tmp_path / name / whole.NAME).write_text(name)
    with universal._alone(str(target)):
        assert (target / whole.NAME).read_text() == f"ucp.writing-{1:016x}.old"
    assert os.listdir(tmp_path) == ["ucp"]


def test_an_empty_file_is_refused_by_its_name(tmp_path):
    (tmp_path / "mp_rank_00_model_states.pt").touch()
    with pytest.raises(Refused, match=r"mp_rank_00_model_states\.pt is damaged: it is empty"):
        source.identity(source.Folder(tmp_path), ["mp_rank_00_model_states.pt"])


def engine_of(module, trained=()):
    config = types.SimpleNamespace(load_universal_checkpoint=False)
    return types.SimpleNamespace(module=module, _config=config, optimizer=types.SimpleNamespace(bit16_groups=[trained]))


def test_each_load_has_a_conversion_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(universal, "convert", lambda given, folder, tracker, stage: os.makedirs(folder))
    monkeypatch.setattr(universal_load, "_take_the_rest", lambda engine, folder: None)
    outer = tmp_path / ".universal"
    with contextlib.suppress(KeyError), universal_load.converted(engine_of(None), None, tmp_path, 1, "so") as killed:
        raise KeyError  # what it leaves goes with the next
    assert os.path.isdir(killed)
    with universal_load.converted(engine_of(None), None, tmp_path, 1, "so") as one:
        assert not os.path.exists(killed)
        with universal_load.converted(engine_of(None), None, tmp_path, 1, "so") as other:
            assert one != other and os.path.isdir(one) and os.path.isdir(other)
        assert os.path.isdir(one) and not os.path.exists(other)
    assert not outer.exists()


def test_weights_that_no_optimizer_has_come_back(tmp_path):
    """Though they are not frozen: DeepSpeed was given the head's alone."""

    def model():
        return torch.nn.ModuleDict({"backbone": torch.nn.Linear(2, 2), "head": torch.nn.Linear(2, 2)})

    saved, engine_model = model(), model()
    torch.save({"module": saved.state_dict()}, tmp_path / "mp_rank_00_model_states.pt")
    head = engine_model["head"].weight.detach().clone()
    universal_load._take_the_rest(engine_of(engine_model, list(engine_model["head"].parameters())), tmp_path)
    assert torch.equal(engine_model["backbone"].weight, saved["backbone"].weight)
    assert torch.equal(engine_model["head"].weight, head), "that is DeepSpeed's to load"
