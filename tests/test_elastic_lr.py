"""phalanx.elasticity.schedule with torch's own schedulers, to the last bit."""

import io
import subprocess
import sys

import pytest
import torch
from harness import clean_environment
from phalanx.elasticity import scale_lr
from phalanx.elasticity.schedule import ElasticLR
from torch.optim import lr_scheduler

STEPS = 12
SCHEDULES = {
    "constant": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1.0),
    "steps": lambda optimizer: lr_scheduler.StepLR(optimizer, 3, 0.3),
    "exponential": lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.9),
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 2 * STEPS),
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, [0.3, 0.02], 2 * STEPS + 1),
    "sequence": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.LinearLR(optimizer, 0.1, 1, 5), lr_scheduler.ExponentialLR(optimizer, 0.7)], [5]
    ),
    "chain": lambda optimizer: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(optimizer, 0.5, 1, 4), lr_scheduler.ExponentialLR(optimizer, 0.8)]
    ),
    "plateau": lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1),
}


class Life:
    """An optimizer with two groups, and one kind of schedule for it."""

    def __init__(self, kind, wrap=None, capturable=False):
        rates = [torch.tensor(rate, dtype=torch.float64) for rate in (0.1, 0.01)] if capturable else [0.1, 0.01]
        groups = [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": rate} for rate in rates]
        self.optimizer = torch.optim.AdamW(groups, capturable=capturable)
        self.scheduler = SCHEDULES[kind](self.optimizer)
        if wrap is not None:
            self.scheduler = ElasticLR(self.scheduler, **wrap)
        self._arguments = [1.0] if kind == "plateau" else []

    def rates(self):
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def step(self):
        """The rates that the optimizer steps with."""
        self.optimizer.step()
        used = self.rates()
        self.scheduler.step(*self._arguments)
        return used

    def saved(self):
        """Both states, as a checkpoint has them."""
        file = io.BytesIO()
        torch.save((self.optimizer.state_dict(), self.scheduler.state_dict()), file)
        return file

    def load(self, file):
        file.seek(0)
        optimizer, scheduler = torch.load(file, weights_only=True)
        self.optimizer.load_state_dict(optimizer)
        self.scheduler.load_state_dict(scheduler)
        return self


def plain_rates(kind, steps=2 * STEPS):
    life = Life(kind)
    return [life.step() for _ in range(steps)]


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize("capturable", [False, True])
def test_without_a_resize_nothing_changes(kind, capturable):
    wrap = {"base_batch": 8, "batch": 8, "warmup_steps": 5}
    life = Life(kind, wrap, capturable)
    held = [group["lr"] for group in life.optimizer.param_groups]
    rates = [life.step() for _ in range(STEPS)]
    assert not capturable or all(group["lr"] is rate for group, rate in zip(life.optimizer.param_groups, held))
    life = Life(kind, wrap, capturable).load(life.saved())
    rates += [life.step() for _ in range(STEPS)]
    plain = Life(kind, capturable=capturable)
    assert rates == [plain.step() for _ in range(2 * STEPS)]
    assert [float(rate) for rate in life.scheduler.get_last_lr()] == life.rates()


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize("rule", ["linear", "sqrt", "none"])
def test_a_resize_ramps_to_the_new_rate(kind, rule):
    plain, warmup = plain_rates(kind), 4
    wrap = {"base_batch": 8, "rule": rule, "warmup_steps": warmup}
    life = Life(kind, {**wrap, "batch": 8})
    rates = [life.step() for _ in range(STEPS)]
    life = Life(kind, {**wrap, "batch": 24}).load(life.saved())
    rates += [life.step() for _ in range(STEPS)]
    end = scale_lr(1.0, 8, 24, rule)
    scales = [1.0] * STEPS + [1.0 + (end - 1.0) * (done / warmup) for done in range(warmup)]
    scales += [end] * (2 * STEPS - len(scales))
    assert rates == [[rate * scale for rate in row] for row, scale in zip(plain, scales)]


def test_a_death_or_a_second_resize_in_the_middle_of_a_ramp():
    wrap = {"base_batch": 8, "warmup_steps": 4}
    first = Life("constant", {**wrap, "batch": 8})
    first.step()
    second = Life("constant", {**wrap, "batch": 16}).load(first.saved())
    assert [second.step()[0] for _ in range(2)] == [0.1, 0.1 * 1.25]
    same = Life("constant", {**wrap, "batch": 16}).load(second.saved())
    assert [same.step()[0] for _ in range(3)] == [0.1 * 1.5, 0.1 * 1.75, 0.1 * 2]
    smaller = Life("constant", {**wrap, "batch": 4}).load(second.saved())
    assert [smaller.step()[0] for _ in range(5)] == [0.1 * scale for scale in (1.5, 1.25, 1.0, 0.75, 0.5)]
    at_once = Life("constant", {**wrap, "batch": 4, "warmup_steps": 0}).load(second.saved())
    assert at_once.step()[0] == 0.1 * 0.5


def test_a_first_life_has_no_ramp():
    life = Life("exponential", {"base_batch": 8, "batch": 32, "rule": "sqrt", "warmup_steps": 9})
    assert [life.step() for _ in range(STEPS)] == [
        [2 * rate for rate in row] for row in plain_rates("exponential", STEPS)
    ]
    assert life.scheduler.last_epoch == STEPS
    assert life.scheduler.base_lrs == [0.1, 0.01]


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="warmup_steps is -1: it is 0 or more"):
        Life("cosine", {"base_batch": 8, "batch": 8, "warmup_steps": -1})
    with pytest.raises(ValueError, match="batch is 0: a batch size is above 0"):
        Life("cosine", {"base_batch": 8, "batch": 0})
    with pytest.raises(ValueError, match="has no 'ramp', so another scheduler saved it"):
        Life("cosine", {"base_batch": 8, "batch": 8}).load(Life("cosine").saved())


def test_torch_is_not_imported():
    code = "import sys, phalanx.elasticity.schedule; print('torch' in sys.modules)"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, env=clean_environment()).stdout == "False\n"
