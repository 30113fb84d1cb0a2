"""True steps of jobs that a framework drives: where the script imports Hugging Face's Trainer or Lightning, the step
that these count themselves is told as by phalanx.step. Nothing is imported for that, and a script that calls
phalanx.step is left alone."""

import functools

from phalanx._bootstrap import board

_told = -1  # the last step that was told here; -1: none
_base = 0  # steps of trainings of this process that are over: the next one counts from 0 again
_last = -1  # the framework's own, behind _base


def _tell(step):
    global _told, _base, _last
    if not isinstance(step, int) or step < 0:
        return
    base = _base + _last if step < _last else _base
    if board.told_step() not in (_told, base + step):
        return  # the script tells its steps itself
    _base, _last, _told = base, step, base + step
    if board.told_step() != _told:
        board.set_step(_told)


def _trainer(module):
    """transformers.trainer_callback: the Trainer's TrainerState.global_step, behind each optimizer step."""
    handler = getattr(module, "CallbackHandler", None)
    on_step_end = getattr(handler, "on_step_end", None)
    if not callable(on_step_end):
        return  # a version that has no such function: its optimizer's steps are counted

    @functools.wraps(on_step_end)
    def counting(self, args, state, control, *rest, **more):
        answer = on_step_end(self, args, state, control, *rest, **more)
        _tell(getattr(state, "global_step", None))
        return answer

    handler.on_step_end = counting


def _lightning(module):
    """lightning.pytorch.trainer.call: Trainer.global_step, behind each batch's callbacks. It grows with the optimizer's
    steps: not with each batch where gradients are gathered."""
    call_hooks = getattr(module, "_call_callback_hooks", None)
    if not callable(call_hooks):
        return
    seen = None  # where the training that goes on has begun, and then the last step

    @functools.wraps(call_hooks)
    def counting(trainer, hook_name, *args, **more):
        nonlocal seen
        answer = call_hooks(trainer, hook_name, *args, **more)
        if hook_name == "on_train_start":
            seen = trainer.global_step
        elif hook_name == "on_train_batch_end" and trainer.global_step != seen:
            seen = trainer.global_step
            _tell(seen)
        return answer

    module._call_callback_hooks = counting


HOOKS = {
    "transformers.trainer_callback": _trainer,
    "lightning.pytorch.trainer.call": _lightning,
    "pytorch_lightning.trainer.call": _lightning,
}
