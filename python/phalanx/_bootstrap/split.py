"""What of each step is this rank's own work, and what it waits for others: `phalanx-run --watch-ranks`.

Where ranks wait for each other all of them step at the same pace; the slow one is who waits least. Under DDP the wait
lies at one place: behind the last gradient of a backward pass, before the optimizer's step. So a callback of
autograd's, asked for at the first gradient of each pass, marks the end of the rank's own work. It comes before that of
DDP, which is asked for with the last gradients, and autograd calls them in the order in which they were asked for.

Where the parameters are on a GPU, events on its stream are the marks, and are read when the device has come past them:
nothing waits for it.
"""

import time
import weakref

from phalanx._bootstrap import board

# A parameter that gets no gradient in so many steps is frozen, or its gradient comes another way (FSDP): the one before
# it is tried. After so many of them nothing is split.
_STEPS_WITHOUT = 20
_TRIES = 8
# Marks that the device has not come past yet: a script whose steps run so far ahead is not split for a while.
_PENDING = 16
_GIVEN_UP = -1  # tries


class _Clock:
    """Marks on the host, where work is done when it returns."""

    @staticmethod
    def mark():
        return time.monotonic_ns()

    @staticmethod
    def is_past(mark):
        return True

    @staticmethod
    def between_ns(first, second):
        return second - first


class _Stream:
    """Marks on the current stream of a device, which need not be the thread's current one."""

    def __init__(self, cuda, device):
        self._cuda, self._device = cuda, device

    def mark(self):
        if self._cuda.is_current_stream_capturing():
            raise RuntimeError("steps that are captured as a graph run without Python")
        event = self._cuda.Event(enable_timing=True)
        event.record(self._cuda.current_stream(self._device))
        return event

    @staticmethod
    def is_past(mark):
        return mark.query()

    @staticmethod
    def between_ns(first, second):
        return int(first.elapsed_time(second) * 1e6)


class Split:
    """Of the first optimizer's steps. `queue_callback`: autograd's. `clock_of`: the marks for a parameter."""

    def __init__(self, queue_callback, clock_of, tell=board.step_split, saved_ns=board.saved_ns):
        self._queue_callback, self._clock_of, self._tell, self._saved_ns = queue_callback, clock_of, tell, saved_ns
        self._optimizer = None  # weak: the script must be able to drop it
        self._clock = None
        self._hook = None
        self._tries = self._without = 0
        self._is_open = False  # the step under way is looked at
        self._begin = self._own = None  # its marks
        self._saved_before_ns = 0
        self._pending = []

    def before_step(self, optimizer, args, kwargs):
        self._or_give_up(self._before_step, optimizer)

    def after_step(self, optimizer, args, kwargs):
        self._or_give_up(self._after_step, optimizer)

    def _or_give_up(self, function, *arguments):
        """A device that does not do what it is asked for is not the training's business."""
        try:
            function(*arguments)
        except RuntimeError:
            self._let_go()
            self._tries = _GIVEN_UP

    def _before_step(self, optimizer):
        if self._optimizer is None or self._optimizer() is not optimizer or self._begin is None or self._own is None:
            return
        saved_ns = self._saved_ns() - self._saved_before_ns
        self._pending.append((self._begin, self._own, self._clock.mark(), saved_ns))
        self._begin = None

    def _after_step(self, optimizer):
        if self._optimizer is None or self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
            self._tries = self._tries if self._tries == _GIVEN_UP else 0
            self._without = 0
            self._watch(optimizer)
        if self._optimizer() is not optimizer or self._hook is None:
            return
        if self._is_open:
            self._without = 0 if self._own is not None else self._without + 1
        if self._without >= _STEPS_WITHOUT:
            self._without = 0
            self._watch(optimizer)
        self._settle()
        self._own = None
        self._is_open = self._clock is not None and len(self._pending) < _PENDING
        self._begin = self._clock.mark() if self._is_open else None
        self._saved_before_ns = self._saved_ns()

    def _watch(self, optimizer):
        """The next parameter from the end: the loss is nearest to it, and its gradient comes first."""
        self._let_go()
        if self._tries == _GIVEN_UP:
            return
        parameters = [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]
        self._tries += 1
        if self._tries > min(_TRIES, len(parameters)):
            return
        if any(type(each).__name__ == "FlatParameter" for each in parameters):
            return  # FSDP1's, whose waits are over before its gradient comes
        parameter = parameters[-self._tries]
        self._clock = self._clock_of(parameter)
        if self._clock is not None:
            self._hook = parameter.register_hook(self._on_gradient)

    def _let_go(self):
        """Of the parameter that is watched, and of marks by its clock."""
        if self._hook is not None:
            self._hook.remove()
        self._hook = self._clock = self._begin = self._own = None
        self._is_open = False
        self._pending.clear()

    def _on_gradient(self, gradient):
        self._queue_callback(self._on_own_end)

    def _on_own_end(self):
        """Of several passes between two steps the last one counts."""
        self._or_give_up(self._mark_own_end)

    def _mark_own_end(self):
        if self._begin is not None:
            self._own = self._clock.mark()

    def _settle(self):
        while self._pending and self._clock.is_past(self._pending[0][2]):
            begin, own, end, saved_ns = self._pending.pop(0)
            own_ns = self._clock.between_ns(begin, own) - saved_ns
            self._tell(max(0, own_ns), max(0, self._clock.between_ns(own, end)))


def register(module):
    """With torch.optim.optimizer, which has just been loaded."""
    if getattr(module, "register_optimizer_step_pre_hook", None) is None:  # torch before 2.0
        return
    import torch

    def clock_of(parameter):
        if parameter.device.type == "cpu":
            return _Clock
        return _Stream(torch.cuda, parameter.device) if parameter.device.type == "cuda" else None

    def queue_callback(callback):
        torch.autograd.Variable._execution_engine.queue_callback(callback)

    split = Split(queue_callback, clock_of)
    for hook in (split.before_step, split.after_step):
        # torch.compile must not trace into it, as in hooks.py.
        hook.__func__._torchdynamo_disable = True
        hook.__func__._torchdynamo_disable_msg = None
        hook.__func__._torchdynamo_disable_recursive = True
    module.register_optimizer_step_pre_hook(split.before_step)
    module.register_optimizer_step_post_hook(split.after_step)
