"""A learning rate schedule for a batch size that changes from life to life.

    inside = CosineAnnealingLR(optimizer, 1000)  # written for a batch of 8
    scheduler = ElasticLR(inside, base_batch=8, batch=engine.train_batch_size(), rule="linear", warmup_steps=100)

Needs no torch of its own: it asks only what every scheduler of torch has.
"""

from phalanx.elasticity import scale_lr


class ElasticLR:
    """A scheduler of torch whose rates are scaled for `batch` by a rule of scale_lr.

    After a resume with another batch the scale goes from what it was when the state was saved to its new value, in
    equal parts over `warmup_steps` steps. Without a resize the rates are exactly those of the scheduler inside, times
    the scale. Whatever sets the optimizer's rates itself, as its load_state_dict does, comes before load_state_dict
    here.
    """

    def __init__(self, scheduler, *, base_batch, batch, rule="linear", warmup_steps=0):
        if warmup_steps < 0:
            raise ValueError(f"ElasticLR: warmup_steps is {warmup_steps!r}: it is 0 or more")
        self.scheduler = scheduler
        self._scale = scale_lr(1.0, base_batch, batch, rule)
        self._warmup_steps = warmup_steps
        self._ramp = {"start": self._scale, "end": self._scale, "done": 0, "steps": 0}
        self._unscaled = [_number(group["lr"]) for group in self.optimizer.param_groups]
        self._apply()

    @property
    def optimizer(self):
        return self.scheduler.optimizer

    @property
    def last_epoch(self):
        return self.scheduler.last_epoch

    @property
    def base_lrs(self):
        return self.scheduler.base_lrs

    def step(self, *args, **kwargs):
        """One step of the scheduler inside, with its arguments. It never sees a scaled rate: many compute from the
        last one."""
        groups = self.optimizer.param_groups
        for group, rate in zip(groups, self._unscaled):
            _set_rate(group, rate)
        self.scheduler.step(*args, **kwargs)
        self._unscaled = [_number(group["lr"]) for group in groups]
        self._ramp["done"] = min(self._ramp["done"] + 1, self._ramp["steps"])
        self._apply()

    def get_last_lr(self):
        scale = ramp(**self._ramp)
        return [rate * scale for rate in self._unscaled]

    def state_dict(self):
        return {"scheduler": self.scheduler.state_dict(), "unscaled": list(self._unscaled), "ramp": dict(self._ramp)}

    def load_state_dict(self, state):
        """Goes on where that state was, with the batch of this life."""
        if "ramp" not in state:
            raise ValueError(
                "ElasticLR: this state has no 'ramp', so another scheduler saved it; load it into that one"
            )
        self.scheduler.load_state_dict(state["scheduler"])
        self._unscaled = list(state["unscaled"])
        self._ramp = dict(state["ramp"])
        if self._ramp["end"] != self._scale:
            start = ramp(**self._ramp)
            self._ramp = {"start": start, "end": self._scale, "done": 0, "steps": self._warmup_steps}
        self._apply()

    def _apply(self):
        for group, rate in zip(self.optimizer.param_groups, self.get_last_lr()):
            _set_rate(group, rate)


def ramp(start, end, done, steps):
    """The scale after `done` of `steps` equal parts of the way."""
    return end if done >= steps else start + (end - start) * (done / steps)


def _number(rate):
    return rate.item() if hasattr(rate, "item") else rate


def _set_rate(group, rate):
    """Also where the rate is a tensor, which compiled optimizers hold on to."""
    if hasattr(group["lr"], "fill_"):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
