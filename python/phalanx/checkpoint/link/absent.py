"""Ranks that do not save: who waits for their part of a save is told so, and waits no longer."""

import math
import time

from phalanx import _door as door

# How long a rank that waits takes for granted that the others of its node come to it, in seconds.
UNOPENED_S = 10  # those that have made no Checkpointer
UNSAVED_S = 30  # those that have saved nothing yet in their life, or not this save
# And those of other nodes, of which its agent knows nothing: less than the ten minutes of NCCL's watchdog, which would
# end a rank that waits in a collective for this one.
OTHERS_S = 300
_APART_FACTOR = 4
_ANSWER_S = 1  # of an agent that answers at all, where the wait has an end
ALL_ARE_HERE = "all ranks of this node have come to it"
_ABSENCES = (("unopened", "made no Checkpointer"), ("unsaved", "saved nothing"), ("behind", "not come to it"))


class Patience:
    """For those that have saved before: a rank that is slower at each save is waited for. Of one Checkpointer; threads
    that wait at once may each forget what another has learnt, and learn it again."""

    def __init__(self):
        self._apart_s = 0  # the longest that others have taken behind this rank

    def learn(self, answer, waited_s):
        is_so, _ = answer
        if is_so:
            self._apart_s = max(self._apart_s, waited_s)

    @property
    def seconds(self):
        return max(UNSAVED_S, _APART_FACTOR * self._apart_s)


def wait(agent, patience, save, ask, timeout_s, others_s=math.inf):
    """What `ask(timeout_s)` returns, (whether it is so, why), or (False, who is absent). Raises its TimeoutError.

    `agent` is a Door; `save`: dir, step and branch, as it is told of them. The save itself goes on: it is committed
    when those who were late have saved it. `timeout_s`: None is as long as ranks of other nodes are waited for, that is
    `others_s`, or longer with `patience`.
    """
    is_limited = timeout_s is None
    limit_s = max(others_s, patience.seconds) if is_limited else timeout_s
    began_s, waited_s = time.monotonic(), 0
    for patience_s in sorted({UNOPENED_S, UNSAVED_S, patience.seconds}):
        if limit_s <= patience_s and not is_limited:
            break
        try:
            answer = ask(patience_s - waited_s)
        except TimeoutError:
            waited_s = patience_s
        else:
            patience.learn(answer, time.monotonic() - began_s)
            return answer
        answer_s = None if limit_s == math.inf else _ANSWER_S
        why = _who_is_absent(agent, patience, save, patience_s, answer_s)
        if why is not None:
            return False, why
    try:
        answer = ask(None if limit_s == math.inf else limit_s - waited_s)
    except TimeoutError:
        if not is_limited:
            raise
        return False, _others_are_absent(agent, save, limit_s)
    patience.learn(answer, time.monotonic() - began_s)
    return answer


def _others_are_absent(agent, save, waited_s):
    late = who_is_late(agent, save)
    if late == ALL_ARE_HERE:
        late = f"{late}, ranks of other nodes have not, or the master does not answer"
    elif late is None:
        late = "this node's agent does not say who has not come to it"
    return (
        f"step {save['step']} is not committed within {waited_s:.0f} s: {late}. Every rank saves the same steps, and "
        "it is committed when all have"
    )


def _ask(agent, save, answer_s):
    """The agent's answer; None where it gives none. Whoever asks next hears why."""
    try:
        return agent.ask("absent", answer_s, **save)
    except (TimeoutError, door.Refusal, door.Gone):
        return None


def who_is_late(agent, save):
    """A sentence for whoever has waited for less than any patience; None where nobody knows."""
    answer = _ask(agent, save, _ANSWER_S)
    if answer is None:
        return None
    for absence, what in _ABSENCES:
        if answer.get(absence):
            return f"{_named(answer[absence])} {what}"
    return ALL_ARE_HERE


def _who_is_absent(agent, patience, save, waited_s, answer_s):
    answer = _ask(agent, save, answer_s)
    if answer is None:
        return None
    step = save["step"]
    if answer.get("unopened"):
        return (
            f"{_named(answer['unopened'])} made no Checkpointer of {save['dir']} within {waited_s:.0f} s: every rank "
            f"makes one and calls save(), and step {step} is committed when all have"
        )
    if waited_s >= UNSAVED_S and answer.get("unsaved"):
        return (
            f"{_named(answer['unsaved'])} saved nothing within {waited_s:.0f} s: every rank calls save(), and step "
            f"{step} is committed when all have"
        )
    if waited_s >= patience.seconds and answer.get("behind"):
        return (
            f"{_named(answer['behind'])} not saved step {step} within {waited_s:.0f} s: every rank saves the same "
            "steps, and it is committed when all have"
        )
    return None


def _named(ranks):
    return f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {', '.join(ranks)} have"
