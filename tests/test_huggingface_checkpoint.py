"""Hugging Face's Trainer through phalanx.checkpoint.adapters.huggingface: killed anywhere, it comes to the same losses
and weights; the Trainer reads our folders and we its own. Part of `./run test --callers`, elsewhere left out by
conftest.py."""

import contextlib
import json
import os
import random
import shutil
import signal

import pytest
import torch
from test_checkpoint_job import jobs_with_memory as jobs_with_memory
from test_checkpoint_job import make_job as make_job

pytestmark = pytest.mark.timeout(900)

FILES = [
    *("config.json", "generation_config.json", "model.safetensors", "optimizer.pt", "rng_state_0.pth"),
    *("rng_state_1.pth", "scheduler.pt", "tokenizer.json", "tokenizer_config.json", "trainer_state.json"),
    "training_args.bin",
]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "out"


def start(job, folder, *arguments, flags=("--max-restarts=3",), launcher="phalanx-run"):
    job.launcher = launcher
    return job.standalone("flash_trainer.py", str(folder), *arguments, flags=flags if launcher != "torchrun" else ())


def run(make_job, folder, *arguments, **more):
    job = make_job()
    node = start(job, folder, *arguments, **more)
    assert node.wait() == 0, job.story()
    return job


def losses(job, rank=0):
    """{step: loss}, of a step that was done again the last."""
    return {event["n"]: event["loss"] for event in job.found("loss", rank=rank)}


def weights(job):
    found = {event["weights"] for event in job.found("done")}
    assert len(found) == 1, found
    return found.pop()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(losses, weights, folder) of the Trainer itself, never stopped."""
    from harness import Job

    folder = tmp_path_factory.mktemp("stock")
    (folder / "job").mkdir()
    job = Job(folder / "job", "torchrun")
    try:
        node = start(job, folder / "out", "--stock", "--resume=none", launcher="torchrun")
        assert node.wait() == 0, job.story()
        return losses(job), weights(job), folder / "out"
    finally:
        job.close()


def test_a_killed_rank_goes_on_from_memory_with_the_same_losses(job, folder, whole):
    node = start(job, folder, "--die-at=13")
    assert node.wait() == 0, job.story()
    assert [event["n"] for event in job.found("begin", life=1)] == [13, 13], job.story()
    assert "goes on from step 13 in memory" in node.stderr
    assert (losses(job), weights(job)) == whole[:2]
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == [
        "checkpoint-16",
        "checkpoint-24",
        "checkpoint-8",
    ]
    assert not [name for name in os.listdir("/dev/shm") if name.startswith("phx-hf-resume")]


def test_the_folder_has_the_files_of_the_trainer_and_their_bytes(make_job, folder, whole):
    run(make_job, folder)
    ours, theirs = folder / "checkpoint-16", whole[2] / "checkpoint-16"
    assert sorted(path.name for path in ours.iterdir()) == sorted(path.name for path in theirs.iterdir())
    assert set(FILES) <= {path.name for path in ours.iterdir()}
    for path in theirs.iterdir():
        mine = ours / path.name
        if path.suffix in (".pt", ".pth"):
            assert same(load(mine), load(path)), path.name
        elif path.name == "trainer_state.json":
            assert without_times(mine) == without_times(path)
        elif path.name != "training_args.bin":  # which holds the path and the time
            assert mine.read_bytes() == path.read_bytes(), path.name


def load(path):
    return torch.load(path, weights_only=False)


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool((one == other).all() if hasattr(one, "all") else one == other)


def without_times(path):
    state = json.loads(path.read_text())
    for entry in state["log_history"]:
        for name in [name for name in entry if name.endswith(("_runtime", "_per_second"))]:
            del entry[name]
    return state


def test_the_trainer_goes_on_from_our_folder_and_we_from_its_own(make_job, folder, whole):
    run(make_job, folder, "--steps=24", "--die-at=13", "--memory-steps=4")
    for step in (24, 16):
        remove(folder / f"checkpoint-{step}")
    stock = run(make_job, folder, "--stock", launcher="torchrun")
    assert [event["n"] for event in stock.found("begin")] == [8, 8]
    assert weights(stock) == whole[1]
    remove(folder / "_phalanx")
    remove(folder / "checkpoint-24")
    for path in (folder / "checkpoint-8" / "trainer_state.json", folder / "checkpoint-8"):
        os.utime(path)  # the Trainer, too, takes the highest number
    ours = run(make_job, folder)
    assert [event["n"] for event in ours.found("begin")] == [16, 16]
    assert weights(ours) == whole[1]


def remove(path):
    for inner in path.iterdir():
        remove(inner) if inner.is_dir() else inner.unlink()
    path.rmdir()


def test_a_copied_output_is_gone_on_from(make_job, folder, tmp_path):
    run(make_job, folder, "--steps=16")
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy, copy_function=shutil.copyfile)
    job = run(make_job, copy)
    assert f"goes on from {copy}/_phalanx/16" in job.story()
    assert [event["n"] for event in job.found("begin")] == [16, 16]
    assert {"8", "16", "24"} <= {path.name for path in (copy / "_phalanx").iterdir()}


def test_what_was_just_saved_stays_where_another_folder_is_dated_later(make_job, folder):
    other = folder / "checkpoint-2" / "trainer_state.json"
    other.parent.mkdir(parents=True)
    other.write_text("half of one")
    os.utime(other, (2**32, 2**32))
    run(make_job, folder, "--steps=8", "--limit=1")
    assert (folder / "checkpoint-8" / "trainer_state.json").exists()


def test_ranks_that_count_other_lives_go_on_from_the_same(make_job, folder, whole):
    given = whole[2] / "checkpoint-8"
    job = run(make_job, folder, f"--resume={given}", "--begun-alone", "--steps=9", launcher="torchrun")
    assert [event["n"] for event in job.found("begin")] == [8, 8], job.story()


@pytest.mark.parametrize("seed", range(3))
def test_kills_at_random_points_change_no_loss(job, folder, whole, seed):
    """Wherever the rank is by then: reports go on their way while it trains on, for two steps at most."""
    chance = random.Random(seed)
    steps = sorted(chance.sample(range(2, 23, 3), 3))
    pauses = ",".join(str(step + 2) for step in steps)
    node = start(job, folder, "--subclass", f"--pause-at={pauses}", flags=("--max-restarts=4",))
    for life, step in enumerate(steps):
        rank = chance.randrange(2)
        job.wait_events("loss", 1, n=step, life=life)
        os.kill(job.pid(rank, life), signal.SIGKILL)
    assert node.wait() == 0, job.story()
    assert (losses(job), weights(job)) == whole[:2]


def test_a_job_that_is_over_trains_no_further(make_job, folder, whole):
    run(make_job, folder)
    again = run(make_job, folder)
    assert not again.found("begin"), again.story()
    assert [event["n"] for event in again.found("done")] == [24, 24]
    assert weights(again) == whole[1]
    assert "the training was over at step 24" in again.story()


def test_the_newest_and_the_best_are_kept(make_job, folder):
    """With this rate the loss grows: the first is the best."""
    job = run(make_job, folder, "--limit=2", "--best", "--rate=0.5", "--save-steps=4")
    kept = sorted(path.name for path in folder.glob("checkpoint-*"))
    best = {event["best"] for event in job.found("done")}
    assert len(best) == 1 and len(kept) == 2 and "checkpoint-24" in kept, (kept, best)
    assert os.path.basename(best.pop()) in kept
    below = {path.name for path in (folder / "_phalanx").iterdir() if path.name.isdigit()}
    assert {f"checkpoint-{name}" for name in below} == set(kept)


class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 12  # 3 steps

    def __getitem__(self, index):
        words = torch.arange(8) % 7
        return {"input_ids": words, "labels": words}


def trainer_here(folder, steps, **more):
    """A Trainer of this process, alone."""
    import transformers

    config = transformers.GPT2Config(vocab_size=8, n_positions=8, n_embd=4, n_layer=1, n_head=1)
    given = {"output_dir": str(folder), "max_steps": steps, "per_device_train_batch_size": 4, "use_cpu": True}
    given.update(report_to=[], disable_tqdm=True, logging_steps=100)
    model = transformers.GPT2LMHeadModel(config)
    arguments = transformers.TrainingArguments(**{**given, **more})
    return transformers.Trainer(model, arguments, train_dataset=Sentences(), eval_dataset=Sentences())


@contextlib.contextmanager
def flash_here(folder, steps, memory_steps=0, **more):
    from phalanx.checkpoint.adapters.huggingface import FlashCheckpoint

    trainer = trainer_here(folder, steps, **more)
    flash = FlashCheckpoint(trainer, memory_steps=memory_steps)
    try:
        yield flash
    finally:
        flash.close()


def scored(trainer, *scores):
    """Its evaluations have these."""
    scores = iter(scores)
    trainer.compute_metrics = lambda prediction: {"score": next(scores)}


BY_SCORE = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "score", "greater_is_better": True}


def test_the_best_stays_where_a_better_one_was_not_saved(folder):
    with flash_here(folder, 4, save_steps=2, save_total_limit=1, **BY_SCORE) as flash:
        scored(flash.trainer, 0.1, 0.8, 0.9, 0.2)
        flash.trainer.train()
        assert flash.trainer.state.best_model_checkpoint == str(folder / "checkpoint-2")
    assert (folder / "checkpoint-2" / "trainer_state.json").exists()


@pytest.mark.parametrize(("earlier", "begins_at"), [(-1, 1), (3, 2)])
def test_a_given_path_counts_until_the_job_has_made_a_step(folder, monkeypatch, earlier, begins_at):
    """An earlier job of the same id has left what is newer; a rank of this one dies while it loads its model."""
    from phalanx._bootstrap import board

    monkeypatch.setenv("PHALANX_JOB_ID", "same")
    with flash_here(folder, 2, save_steps=1) as flash:
        flash.trainer.train()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    monkeypatch.setattr(board, "earlier_step", lambda: earlier)
    with flash_here(folder, 3, save_strategy="no") as flash:
        given = flash._folder_to_resume(str(folder / "checkpoint-1"))
        assert os.path.basename(given).endswith(str(begins_at))
        found, _ = flash._checkpointer.load()
        assert flash._is_of_this_job(found) is (begins_at == 2)  # in the lives behind this one


def test_smaller_batches_begin_from_the_same_step_in_memory(folder, monkeypatch):
    import transformers
    from phalanx.checkpoint import files

    begun, saved = [], []

    class Memory(transformers.TrainerCallback):
        def on_train_begin(self, args, state, control, **more):
            begun.append(state.global_step)

        def on_step_begin(self, args, state, control, **more):
            if state.global_step == 3 and len(begun) == 1:
                raise RuntimeError("CUDA out of memory.")

    with flash_here(folder, 2, save_steps=2) as flash:
        flash.trainer.train()
    monkeypatch.setattr(files.StoredFiles, "source", "memory")
    with flash_here(folder, 4, memory_steps=1, save_steps=4, auto_find_batch_size=True) as flash:
        flash.trainer.add_callback(Memory())
        stock = flash._saver.save
        monkeypatch.setattr(flash._saver, "save", lambda step, *more: saved.append(step) or stock(step, *more))
        flash.trainer.train(resume_from_checkpoint=True)
        assert flash.trainer.state.global_step == 4
    assert (begun, saved) == ([2, 2], [3, 3, 4])
    assert not [name for name in os.listdir("/dev/shm") if name.startswith("phx-hf-resume")]


@pytest.mark.parametrize("strategy", ["steps", "best"])
def test_the_best_stays_that_comes_to_storage_behind_a_death(folder, monkeypatch, strategy):
    """With save_strategy="best" nothing is saved behind it, by which it could be noticed."""
    saving = {"save_strategy": strategy, "save_steps": 2, "save_total_limit": 1, **BY_SCORE}
    with flash_here(folder, 2, **saving) as flash:
        scored(flash.trainer, 0.1, 0.8)
        flash.trainer.train()
    remove(folder / "checkpoint-2")
    (folder / "_phalanx" / "published.json").unlink()
    with flash_here(folder, 4, **saving) as flash:
        monkeypatch.setattr(flash._folders, "repair", lambda: None)  # it comes behind that
        scored(flash.trainer, 0.3, 0.2)
        flash.trainer.train(resume_from_checkpoint=True)
        knows_best = bool(flash.trainer.state.best_global_step)  # transformers 4 does not, of save_strategy="best"
        assert flash.trainer.state.best_model_checkpoint == (str(folder / "checkpoint-2") if knows_best else None)
    assert (folder / "checkpoint-2" / "trainer_state.json").exists() is knows_best


@pytest.mark.parametrize(
    ("strategy", "saves"),
    [
        ("no", [(3, "memory", 1), (6, "memory", 2)]),
        ("steps", [(3, "disk", 0), (6, "disk", 1)]),
        ("epoch", [(3, "disk", 1), (6, "disk", 2)]),
        ("best", [(3, "disk", 1), (6, "memory", 2)]),
    ],
)
def test_the_end_of_an_epoch_is_saved_once_behind_its_evaluation(folder, monkeypatch, strategy, saves):
    """But where the Trainer itself saves it before."""
    asked = {"eval_strategy": "epoch", "save_strategy": strategy, "metric_for_best_model": "score"}
    with flash_here(folder, 6, memory_steps=3, save_steps=3, greater_is_better=True, **asked) as flash:
        stock, made = flash._saver.save, []

        def save(step, contents, storage, told):
            evaluations = [entry for entry in flash.trainer.state.log_history if "eval_score" in entry]
            made.append((step, storage.value, len(evaluations)))
            return stock(step, contents, storage, told)

        monkeypatch.setattr(flash._saver, "save", save)
        scored(flash.trainer, 0.9, 0.1)
        flash.trainer.train()
    assert made == saves


def test_epochs_are_saved_at_their_end(make_job, folder):
    run(make_job, folder, "--by-epoch", "--best", "--steps=12")
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == ["checkpoint-12", "checkpoint-6"]


def test_adapters_of_peft_are_saved_alone(make_job, folder, tmp_path):
    stock = run(make_job, tmp_path / "stock", "--stock", "--adapters", "--resume=none", launcher="torchrun")
    ours = run(make_job, folder, "--adapters", "--die-at=13")
    assert weights(ours) == weights(stock)
    names = {path.name for path in (folder / "checkpoint-16").iterdir()}
    assert "adapter_model.safetensors" in names and "model.safetensors" not in names
    theirs = tmp_path / "stock" / "checkpoint-16"
    assert names == {path.name for path in theirs.iterdir()}
    name = "adapter_model.safetensors"
    assert (folder / "checkpoint-16" / name).read_bytes() == (theirs / name).read_bytes()


def test_an_adapter_with_a_name_lies_in_its_folder(folder, capsys):
    import peft

    def with_adapter(trainer):
        given = peft.LoraConfig(r=2, target_modules=["c_attn"], task_type="CAUSAL_LM")
        trainer.model = trainer.model_wrapped = peft.PeftModel(trainer.model, given, adapter_name="other")
        return trainer

    with flash_here(folder, 2, save_steps=1) as flash:
        with_adapter(flash.trainer).train()
        (weights,) = flash._weights.now(flash.trainer.model)[0].values()
        trained = {name: tensor.clone() for name, tensor in weights.tensors.items()}
    names = {path.name for path in (folder / "checkpoint-2" / "other").iterdir()}
    assert names == {"adapter_config.json", "adapter_model.safetensors"}
    with flash_here(folder, 2, save_steps=1) as flash:  # a training that is over
        with_adapter(flash.trainer).train(resume_from_checkpoint=True)
        (weights,) = flash._weights.now(flash.trainer.model)[0].values()
        assert same(trained, dict(weights.tensors)) and flash.trainer.state.global_step == 2
    with flash_here(folder, 3, save_steps=1) as flash:
        with_adapter(flash.trainer).train(resume_from_checkpoint=True)
    assert f"goes on from {folder}/_phalanx/2\n" in capsys.readouterr().err
    assert (folder / "checkpoint-3" / "other").is_dir()
    assert not [name for name in os.listdir("/dev/shm") if name.startswith("phx-hf-resume")]


def test_half_a_folder_of_the_trainers_is_passed_over(make_job, folder, whole):
    run(make_job, folder, "--stock", "--resume=none", launcher="torchrun")
    for step, name in ((24, "trainer_state.json"), (16, "optimizer.pt")):
        path = folder / f"checkpoint-{step}" / name
        path.write_bytes(path.read_bytes()[:100])
    job = run(make_job, folder)
    assert [event["n"] for event in job.found("begin")] == [8, 8]
    assert "checkpoint-16 is passed over: optimizer.pt is cut off" in job.story()
    assert weights(job) == whole[1]


def test_another_model_is_refused_with_one_sentence(make_job, folder):
    run(make_job, folder, "--steps=8")
    job = make_job()
    node = start(job, folder, "--width=64", flags=("--max-restarts=0",))
    assert node.wait() == 1, job.story()
    assert "is of another model: 'transformer.h.0.attn.c_attn.bias' is [96], and [192] in this one" in node.stderr


def test_weights_in_other_files_are_of_the_same_model(folder, tmp_path):
    """Releases of transformers cut them by other sizes, and older Trainers pickle them."""
    from safetensors.torch import save_file

    with flash_here(tmp_path / "new", 1, save_strategy="no") as flash:
        (weights,) = flash._weights.now(flash.trainer.model)[0].values()
        names = sorted(weights.tensors)
        parts = (names[:3], names[3:])
        folder.mkdir()
        for number, part in enumerate(parts, 1):
            tensors = {name: weights.tensors[name] for name in part}
            save_file(tensors, folder / f"model-0000{number}-of-00002.safetensors")
        save_file({"average": torch.zeros(3)}, folder / "average.safetensors")  # a callback's
        assert flash._why_another_model(str(folder)) is None
        save_file({names[0]: torch.zeros(7)}, folder / "model-00001-of-00002.safetensors")
        assert f"{names[0]!r} is [7], and " in flash._why_another_model(str(folder))
        for path in folder.glob("model-*"):
            path.unlink()
        assert "has no model.safetensors, in which" in flash._why_another_model(str(folder))
        (folder / "training_args.bin").touch()
        assert "has no model.safetensors, in which" in flash._why_another_model(str(folder))
        (folder / "pytorch_model.bin").touch()
        assert flash._why_another_model(str(folder)) is None


def test_without_phalanx_run_the_folders_are_the_same(make_job, folder, whole):
    job = run(make_job, folder, launcher="torchrun")
    assert weights(job) == whole[1]
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == [
        "checkpoint-16",
        "checkpoint-24",
        "checkpoint-8",
    ]
    again = run(make_job, folder, launcher="torchrun")
    assert not again.found("begin")


def test_a_disk_that_is_full_costs_no_training(small_disk, make_job, whole):
    """And leaves no half of a folder; what was stored before is gone on from."""
    folder = small_disk.path / "out"
    job = make_job()
    node = start(job, folder, "--pause-at=10")
    job.wait_events("pausing", 2)
    small_disk.fill()
    os.kill(job.pid(1, 0), signal.SIGKILL)
    assert node.wait() == 0, job.story()
    assert (losses(job), weights(job)) == whole[:2]
    assert "checkpoint-16 is not stored: " in node.stderr and "No space left" in node.stderr, job.story()
    assert [path.name for path in folder.glob("checkpoint-*")] == ["checkpoint-8"]
    elsewhere = job.folder / "stock"  # the Trainer writes more than that disk has room for
    shutil.copytree(folder / "checkpoint-8", elsewhere / "checkpoint-8")
    stock = run(make_job, elsewhere, "--stock", "--save-steps=100", launcher="torchrun")
    assert [event["n"] for event in stock.found("begin")] == [8, 8]
    assert weights(stock) == whole[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"save_only_model": True}, "save_only_model=True: nothing could be resumed"),
        ({"save_on_each_node": True}, "save_on_each_node=True: output_dir is a path that all nodes see"),
        ({"push_to_hub": True}, "expected 'end'"),
    ],
)
def test_what_cannot_be_right_is_refused_with_a_sentence(tmp_path, arguments, said):
    import transformers
    from phalanx.checkpoint.adapters.huggingface import FlashCheckpoint

    own = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    for name, value in arguments.items():
        setattr(own, name, value)

    class Given:
        args = own

    for name in ("_save_checkpoint", "_maybe_log_save_evaluate", "_load_best_model", "train", "save_model"):
        setattr(Given, name, getattr(transformers.Trainer, name))
    for name in ("store_flos", "_save", "_save_rng_state", "_load_from_checkpoint", "add_callback"):
        setattr(Given, name, getattr(transformers.Trainer, name))
    with pytest.raises(ValueError, match=said):
        FlashCheckpoint(Given())
    Given.args, Given.is_deepspeed_enabled = transformers.TrainingArguments(str(tmp_path), use_cpu=True), True
    with pytest.raises(ValueError, match=r"DeepSpeed: use phalanx\.checkpoint\.adapters\.deepspeed"):
        FlashCheckpoint(Given())
    del Given.store_flos
    with pytest.raises(ValueError, match="has no store_flos\\(\\): expected transformers 4"):
        FlashCheckpoint(Given())


def test_a_transformers_that_is_too_old_is_refused(tmp_path, monkeypatch):
    import transformers
    from phalanx.checkpoint.adapters import huggingface

    class Given(transformers.Trainer):
        def __init__(self):
            self.args = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to=[])

    monkeypatch.delattr(transformers.TrainerState, "best_global_step")
    with pytest.raises(
        ValueError, match=r"has no TrainerState\.best_global_step: expected transformers 4\.51 or later"
    ):
        huggingface.FlashCheckpoint(Given())


def test_a_trainer_with_a_save_of_its_own_is_refused(tmp_path):
    import transformers
    from phalanx.checkpoint.adapters import huggingface

    class Given(transformers.Trainer):
        def __init__(self):
            self.args = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to=[])

        def _save_checkpoint(self, model, trial):
            super()._save_checkpoint(model, trial)

    class Mixed(huggingface.FlashCheckpointMixin, Given):
        pass

    with pytest.raises(ValueError, match=r"Given\._save_checkpoint\(\) would not be called any more"):
        huggingface.FlashCheckpoint(Given())
    with pytest.raises(ValueError, match=r"Given\._save_checkpoint\(\) would not be called any more"):
        Mixed()
