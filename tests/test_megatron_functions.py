"""The functions of phalanx.checkpoint.adapters.megatron in one process, without a job. Megatron-LM, of which there is
no package, is its args and its two functions, with the parameters of core_v0.16.1."""

import argparse

import pytest
import torch

pytest.importorskip("megatron.core")

from phalanx.checkpoint.adapters import megatron_dist, megatron_layout, megatron_state, megatron_stock
from phalanx.checkpoint.adapters.megatron_checkpointer import Checkpointer

STRATEGY = "save_strategy"


class Megatron:
    """Stands for megatron.training: `saved` and `loaded` are what its functions were called with."""

    def __init__(self, **args):
        self.args = argparse.Namespace(finetune=False, async_save=False, ckpt_fully_parallel_save=False, **args)
        self.saved, self.loaded = [], []

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
        if checkpointing_context is not None:
            checkpointing_context[STRATEGY].save({}, None)

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
        self.loaded.append((load_arg, vars(self.args).copy()))
        return 0, 0


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def put(monkeypatch, run):
    """Makes a Megatron with those args, whose directory is `run`, in a world of one rank."""
    monkeypatch.setattr(megatron_state, "layout", lambda: megatron_layout.Layout(0, 0, 0, (1, 1, 1)))

    def put(**args):
        stock = Megatron(**{"save": str(run), "load": str(run), "ckpt_format": "torch", **args})
        monkeypatch.setattr(megatron_stock, "args", lambda: stock.args)
        monkeypatch.setattr(megatron_stock, "checkpointing", lambda: stock)
        return stock

    return put


def test_a_save_takes_what_megatrons_train_loop_gives(put, run, monkeypatch):
    """training.py gives the context by its place, and others by their names."""
    stock = put(ckpt_format="torch_dist")
    monkeypatch.setattr(megatron_dist.strategies, "_replace_state_dict_keys_with_sharded_keys", lambda *_: ({}, {}, {}))
    with Checkpointer(run, ckpt_format="torch_dist") as checkpointer:
        given = (7, torch.nn.Linear(1, 1), None, None, 700)
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
