"""The functions of phalanx.checkpoint.adapters.megatron in one process, without a job. Megatron-LM, of which there is
no package, is its args and its two functions, with the parameters of core_v0.16.1."""

import argparse
import os
import pickle
import re
import shutil

import pytest
import torch
from torch.distributed.checkpoint import Metadata

pytest.importorskip("megatron.core")

from phalanx.checkpoint.adapters import megatron, megatron_dist, megatron_layout, megatron_state, megatron_stock
from phalanx.checkpoint.adapters.megatron_checkpointer import Checkpointer

STRATEGY, MODEL = "save_strategy", "mp_rank_00/model_optim_rng.pt"
OTHERWISE = {
    **dict.fromkeys(("async_save", "ckpt_fully_parallel_save", "finetune", "exit_on_missing_checkpoint"), False),
    **dict.fromkeys(("ckpt_step", "pretrained_checkpoint")),
    "ckpt_format": "torch",
}


class Megatron:
    """Stands for megatron.training: `saved` is what its save_checkpoint() was called with, `said` what it has said."""

    def __init__(self, **args):
        self.args = argparse.Namespace(**args)
        self.saved, self.said = [], []

    def print_rank_0(self, text):
        self.said.append(text)

    def save_checkpoint(
        self,
        iteration,
        model,
        optimizer,
        opt_param_scheduler,
        num_floating_point_operations_so_far,
        checkpointing_context=None,
        pipeline_rank=None,
        expert_rank=None,
        tensor_rank=None,
        pipeline_parallel=None,
        expert_parallel=None,
        non_persistent_ckpt=False,
        train_data_iterator=None,
        preprocess_common_state_dict_fn=None,
        release=False,
    ):
        self.saved.append((iteration, num_floating_point_operations_so_far, checkpointing_context, train_data_iterator))
        if self.args.ckpt_format == "torch_dist":
            checkpointing_context[STRATEGY].save({}, None)
        else:
            write(self.args.save, iteration, model)

    def load_checkpoint(
        self,
        ddp_model,
        optimizer,
        opt_param_scheduler,
        load_arg="load",
        strict=True,
        checkpointing_context=None,
        skip_load_to_model_and_opt=False,
    ):
        directory = getattr(self.args, load_arg)
        if self.args.pretrained_checkpoint is not None and tracker_of(directory) is None:
            self.print_rank_0(f"Checkpoint file not found in load directory {directory}")
            directory, self.args.finetune = self.args.pretrained_checkpoint, True
            if tracker_of(directory) is None:
                raise FileNotFoundError("No checkpoint found in load directory or pretrained directory")
        iteration = self.args.ckpt_step or tracker_of(directory)
        if iteration is None and self.args.exit_on_missing_checkpoint:
            raise SystemExit
        if iteration is None:
            return 0, 0
        state = torch.load(os.path.join(directory, f"iter_{int(iteration):07d}", MODEL), weights_only=False)
        ddp_model.load_state_dict(state["model"])
        return (0, 0) if self.args.finetune else (state["iteration"], 7)


def write(directory, iteration, model):
    """As Megatron does in the format torch."""
    path = os.path.join(directory, f"iter_{iteration:07d}", MODEL)
    os.makedirs(os.path.dirname(path))
    torch.save({"model": model.state_dict(), "iteration": iteration}, path)
    with open(os.path.join(directory, megatron_layout.TRACKER), "w") as file:
        file.write(str(iteration))


def tracker_of(directory):
    path = None if directory is None else os.path.join(directory, megatron_layout.TRACKER)
    if path is None or not os.path.isfile(path):
        return None
    with open(path) as file:
        return file.read()


def model_of(value):
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, value)
    return model


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def put(monkeypatch, run):
    """Makes a Megatron with those args, whose directory is `run`, in a world of one rank."""
    monkeypatch.setattr(megatron_state, "layout", lambda: megatron_layout.Layout(0, 0, 0, (1, 1, 1)))

    def put(**args):
        stock = Megatron(**{**OTHERWISE, "save": str(run), "load": str(run), **args})
        monkeypatch.setattr(megatron_stock, "args", lambda: stock.args)
        monkeypatch.setattr(megatron_stock, "checkpointing", lambda: stock)
        return stock

    return put


def test_a_save_takes_what_megatrons_train_loop_gives(put, run, monkeypatch):
    """training.py gives the context by its place, and others by their names."""
    stock = put(ckpt_format="torch_dist")
    monkeypatch.setattr(megatron_dist.strategies, "_replace_state_dict_keys_with_sharded_keys", lambda *_: ({}, {}, {}))
    with Checkpointer(run, ckpt_format="torch_dist") as checkpointer:
        given = (7, model_of(1), None, None, 700)
        own = {"load_strategy": "theirs"}
        for context in (own, None):
            checkpointer._collect(
                given, None, (context,), {"train_data_iterator": "data", "non_persistent_ckpt": False}
            )
        checkpointer._collect(given, None, (), {"checkpointing_context": own})
        assert own == {"load_strategy": "theirs"}
        assert [(n, flops, data) for n, flops, _, data in stock.saved] == [(7, 700, "data")] * 2 + [(7, 700, None)]
        both = ["load_strategy", STRATEGY]
        assert [sorted(context) for _, _, context, _ in stock.saved] == [both, [STRATEGY], both]
        for more in [(None, *[None] * 5, True), (None, *[None] * 8, True)]:
            with pytest.raises(ValueError, match=r"(non_persistent_ckpt|release) is given; Megatron's own"):
                checkpointer._collect(given, None, more)
        with pytest.raises(ValueError, match="release is given; Megatron's own save_checkpoint"):
            checkpointer._collect(given, None, (), {"release": True})
        stock.save_checkpoint = lambda iteration, model, optimizer, opt_param_scheduler: None
        with pytest.raises(ValueError, match=r"save_checkpoint\(\) of this Megatron-LM has no checkpointing_context"):
            checkpointer._collect(given, None)


def test_where_nothing_is_found_megatron_does_what_its_args_say(put, run, tmp_path):
    pretrained, mistyped = str(tmp_path / "pretrained"), str(tmp_path / "mistyped")
    write(pretrained, 3, model_of(3))
    stock, model = put(load=None, pretrained_checkpoint=pretrained), model_of(0)
    with Checkpointer(run) as checkpointer:
        assert checkpointer.load(model) == (0, 0)
        assert (model.weight.item(), stock.args.finetune, stock.args.load) == (3, True, None)
        stock = put(load=mistyped, pretrained_checkpoint=str(tmp_path / "none"))
        with pytest.raises(FileNotFoundError, match="No checkpoint found in load directory or pretrained directory"):
            checkpointer.load(model)
        assert stock.said == [f"Checkpoint file not found in load directory {mistyped}"]
        assert stock.args.load == mistyped
        put(load=mistyped, exit_on_missing_checkpoint=True)
        with pytest.raises(SystemExit):
            checkpointer.load(model)
        put(load=mistyped)
        assert (checkpointer.load(model), checkpointer.source) == ((0, 0), None)


def test_what_is_damaged_is_not_loaded_by_megatron_either(put, run):
    put()
    with Checkpointer(run) as checkpointer:
        assert checkpointer.save(5, model_of(5)).wait_stored()
        checkpointer.wait_stored()
        model = model_of(0)
        assert (checkpointer.load(model), model.weight.item()) == ((5, 7), 5)
        path = run / "iter_0000005" / MODEL
        before, data = path.stat(), path.read_bytes()
        path.write_bytes(data.replace(model.weight.detach().numpy().tobytes(), b"\0\0\0\0"))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as a disk does
        model = model_of(1)
        assert (checkpointer.load(model), model.weight.item()) == ((0, 0), 1)


def take_for_memory(monkeypatch, checkpointer):
    """What it finds on disk."""
    find = checkpointer._files.find

    def find_in_memory():
        found, ours = find()
        ours.kind = "memory"
        return found, ours

    monkeypatch.setattr(checkpointer._files, "find", find_in_memory)


@pytest.fixture
def later_life(monkeypatch, put, run):
    """A Checkpointer that has saved iteration 5 in the life before, and finds it in memory."""
    put()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with Checkpointer(run) as checkpointer:
        assert checkpointer.save(5, model_of(5)).wait_stored()
        checkpointer.wait_stored()
        take_for_memory(monkeypatch, checkpointer)
        yield checkpointer


@pytest.mark.parametrize("is_core", [False, True])
def test_another_model_gets_nothing_that_this_job_has_saved(put, later_life, run, tmp_path, is_core):
    teacher, model = str(tmp_path / "teacher"), model_of(0)
    write(teacher, 3, model_of(3))
    stock = put(teacher_load=teacher)
    args = argparse.Namespace(**vars(stock.args)) if is_core else None
    assert later_life.load(model, load_arg="teacher_load", args=args)[0] == 3
    assert (model.weight.item(), later_life.source) == (3, "disk")
    assert later_life.load(model, args=args)[0] == 5
    assert (model.weight.item(), later_life.source) == (5, "memory")
    (args or stock.args).teacher_load = None
    assert later_life.load(model, load_arg="teacher_load", args=args)[0] == 0
    (args or stock.args).teacher_load = teacher
    os.unlink(os.path.join(teacher, "iter_0000003", MODEL))
    with pytest.raises(RuntimeError, match=f"{teacher}/iter_0000003: it has no mp_rank"):
        later_life.load(model, load_arg="teacher_load", args=args)


def test_the_reference_of_reinforcement_learning_is_what_it_began_with(put, later_life, tmp_path):
    """As training.py's train() loads it, and then what is trained."""
    pretrained, model = str(tmp_path / "pretrained"), model_of(0)
    write(pretrained, 3, model_of(3))
    stock = put(load=None, finetune=True, pretrained_checkpoint=pretrained)
    later_life.load(model)
    assert model.weight.item() == 3
    stock.args.load, stock.args.finetune = stock.args.save, False
    assert later_life.load(model) == (5, 7)
    assert model.weight.item() == 5


def test_an_iteration_is_asked_for_once(put, run, tmp_path, monkeypatch):
    """A later life goes on from what this job has saved, in memory or on disk; an earlier job's is not taken for it."""
    monkeypatch.setenv("PHALANX_JOB_ID", "first")
    with Checkpointer(run) as checkpointer:
        put()
        assert checkpointer.save(9, model_of(9)).wait_stored()
        checkpointer.wait_stored()
    monkeypatch.setenv("PHALANX_JOB_ID", "second")
    before, model = str(tmp_path / "before"), model_of(0)
    for iteration in (2, 4):
        write(before, iteration, model_of(iteration))

    def load(life, load=before, is_in_memory=False):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(life))
        put(load=load, ckpt_step=2)
        with Checkpointer(run) as checkpointer:
            if is_in_memory:
                take_for_memory(monkeypatch, checkpointer)
            loaded = checkpointer.load(model)[0]
            assert loaded == model.weight.item()
            if life == 1:
                assert checkpointer.save(6, model_of(6)).wait_stored()
                checkpointer.wait_stored()
            return loaded

    assert [load(0), load(0, is_in_memory=True), load(1), load(2), load(2, is_in_memory=True)] == [2, 2, 2, 6, 6]
    assert load(2, load=str(run)) == 6
    with pytest.raises(RuntimeError, match="iter_0000002: it has no mp_rank"):
        load(0, load=str(run))


METADATA = pickle.dumps(Metadata({}, None, {}))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", r"\.metadata cannot be read: EOFError: Ran out of input"),
        (METADATA[:-9], r"\.metadata cannot be read: (UnpicklingError|EOFError)"),
        (b"no pickle", r"\.metadata cannot be read: UnpicklingError"),
        (pickle.dumps(None), r"\.metadata cannot be read: AttributeError"),
        (pickle.dumps(Metadata({}, None, None)), r"\.metadata cannot be read: AttributeError"),
        (None, r"it cannot be read: .*common\.pt"),
    ],
    ids=["empty", "cut off", "no pickle", "of nothing", "without files", "a link to itself"],
)
def test_what_cannot_be_read_is_passed_over(put, run, tmp_path, capfd, data, words):
    """All ranks wait for what rank 0 has found."""
    before, model = tmp_path / "before", model_of(0)
    write(before, 2, model_of(2))
    half = before / "iter_0000004"
    half.mkdir()
    (half / "metadata.json").write_text("{}")
    (half / ".metadata").write_bytes(METADATA if data is None else data)
    (half / "common.pt").symlink_to("common.pt" if data is None else "metadata.json")
    (before / megatron_layout.TRACKER).write_text("4")
    put(load=str(before))
    with Checkpointer(run) as checkpointer:
        assert checkpointer.load(model) == (2, 7)
    assert re.search(f"iter_0000004 is passed over: {words}", capfd.readouterr().err)


def test_a_tracker_that_cannot_be_read_is_said(put, run, tmp_path):
    tracker = tmp_path / "before" / megatron_layout.TRACKER
    tracker.mkdir(parents=True)
    put(load=str(tracker.parent))
    with Checkpointer(run) as checkpointer, pytest.raises(RuntimeError, match=r"before: .*Is a directory"):
        checkpointer.load(model_of(0))


def test_megatrons_args_and_the_checkpointer_name_one_format(put, run, monkeypatch):
    monkeypatch.setattr(megatron, "_used", {})
    with megatron.use(Checkpointer(run)) as checkpointer:
        put()
        assert megatron.load_checkpoint(model_of(1), None, None) == (0, 0)
        stock = put(ckpt_format="torch_dist")
        for call in (megatron.load_checkpoint, lambda *given: megatron.save_checkpoint(1, *given)):
            with pytest.raises(
                ValueError, match=f"is 'torch_dist' in Megatron's args, and 'torch' in .* of {run}: give"
            ):
                call(model_of(1), None, None)
        args = argparse.Namespace(**vars(stock.args))  # of megatron-core alone, where the Checkpointer decides
        assert megatron._of(args, "load", None, 0) is checkpointer


@pytest.mark.parametrize("load_arg", ["load", "teacher_load"])
def test_parts_are_those_that_the_ranks_have(run, tmp_path, monkeypatch, load_arg):
    """2 tensor x 2 expert parallel ranks, which are 2 ranks, as with an expert tensor parallel size of 1."""
    own, other = "mp_rank_00_000", "mp_rank_01_001"
    monkeypatch.setattr(megatron_state, "layout", lambda: megatron_layout.Layout(0, 0, 0, (2, 1, 2)))
    before, model = tmp_path / "before", model_of(0)
    write(before, 3, model_of(3))
    (before / "iter_0000003" / "mp_rank_00").rename(before / "iter_0000003" / own)
    shutil.copytree(before / "iter_0000003" / own, before / "iter_0000003" / other)
    with Checkpointer(run) as checkpointer:
        monkeypatch.setattr(checkpointer._restorer, "of_all", lambda value: [value, other if value == own else value])
        args = argparse.Namespace(**{"save": str(run), "load": None, load_arg: str(before)})
        assert checkpointer.load(model, load_arg=load_arg, args=args) == (3, 0)
    assert model.weight.item() == 3
