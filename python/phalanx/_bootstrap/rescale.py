"""Safe points: before nodes join or leave on purpose, every rank may do something first, all behind the same step."""

from phalanx._bootstrap import board
from phalanx._bootstrap.wire import Closed

_callbacks = []
_channel = None  # to the agent; None: nobody would be told, and nobody asks


def use(channel):
    """From now on the agent behind `channel` is told of this rank's safe point."""
    global _channel
    _channel = channel


def forget():
    """In a forked child of the rank: nobody asks it."""
    global _channel
    _channel = None
    _callbacks.clear()


def add(callback):
    """`callback()` runs, in the thread that steps, behind the step at which the job's ranks come to a safe point."""
    _callbacks.append(callback)
    if _channel is None:
        return
    board.hear_rescale()
    board.on_step = _after_step


def _after_step(step):
    at_step = board.rescale_at()
    if at_step <= 0 or step < at_step:
        return
    board.on_step = None  # the callbacks may step
    for callback in list(_callbacks):
        callback()
    come_to_safe_point(step)


def is_heard():
    """Whether there is an agent that asks for safe points."""
    return _channel is not None


def has_callbacks():
    return bool(_callbacks)


def come_to_safe_point(step):
    """This rank trains no further than `step`: waits for its end."""
    _channel.send_or_give_up({"type": "safe_point", "step": step})
    _wait_for_the_end()


def _wait_for_the_end():
    """Steps behind the safe point would be lost. Returns only where the agent is gone, and with it the job."""
    try:
        while _channel.is_open():
            _channel.receive()
    except Closed:
        return
