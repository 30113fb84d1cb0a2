"""What the first save of a framework's would wait for, made ready behind the first step of the training: only then does
its optimizer have a state."""

import functools

from torch.optim import Optimizer

from phalanx.checkpoint import files, people
from phalanx.checkpoint.copying import overlap
from phalanx.checkpoint.ranks import place


class Early:
    """Of one Checkpointer, on all ranks alike. `contents()` gives what it would save now, on all ranks together."""

    def __init__(self, checkpointer, contents):
        self._checkpointer, self._contents = checkpointer, contents
        # Without an agent nobody knows whether anything will go to disk, and nothing goes to memory.
        self._is_due = place.agent_fd() >= 0
        self._steps = 0
        self._optimizers, self._hooks = [], []  # that have made no step, where they tell of it themselves

    def behind_step(self, optimizers=()):
        """Once, all ranks together: at the first step behind which each of `optimizers` has a state, or at the second,
        since some never have one."""
        if not self._is_due:
            return
        self._steps += 1
        if self._steps > 1 or all(torch_optimizer(each).state for each in optimizers):
            self.now()

    def now(self):
        """The same at once, where nothing was made ready before."""
        is_due, contents = self._is_due, self._contents
        self._is_due, self._contents = False, None
        if is_due and self._checkpointer.is_open:
            self._make_ready(contents)

    def _make_ready(self, contents):
        try:
            made = contents()
        except Exception as error:
            # The framework's own code and hooks of the user's, which may not expect to be asked before there is a
            # metric: a save would raise that, and this is none. Plans of dcp have no way to say so to others.
            if not isinstance(self._checkpointer, files.Checkpointer):
                raise
            people.say(f"memory for saves is not made ready before the first one: {type(error).__name__}: {error}")
            self._checkpointer.prepare_nothing()
            return
        self._checkpointer.prepare(made, waits=False)

    def saves(self):
        """A save begins: nothing is to be made ready before the next one."""
        self._is_due, self._contents = False, None
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def behind_first_step_of(self, optimizers):
        """now(), when each of these torch optimizers has made a step."""
        self._optimizers = list(map(torch_optimizer, optimizers))
        if not self._is_due or not all(isinstance(each, Optimizer) for each in self._optimizers):
            return
        self._hooks = [optimizer.register_step_post_hook(self._after_step) for optimizer in self._optimizers]

    def behind_first_call(self, target, name, is_step):
        """now(), when a call of `target`'s method has given something for which is_step() is true."""
        if not self._is_due:
            return
        stock, is_own = getattr(target, name), name in vars(target)

        @functools.wraps(stock)
        def step(*arguments, **named):
            given = stock(*arguments, **named)
            if self._is_due and is_step(given):
                self.now()
            if not self._is_due and vars(target).get(name) is step:
                if is_own:  # of a profiler's, say
                    setattr(target, name, stock)
                else:
                    delattr(target, name)
            return given

        setattr(target, name, step)

    @overlap.untraced
    def _after_step(self, optimizer, arguments, named):
        self._optimizers = [each for each in self._optimizers if each is not optimizer]
        if not self._optimizers:
            self.now()


def torch_optimizer(optimizer):
    """That which a framework has wrapped."""
    return getattr(optimizer, "optimizer", optimizer)
