"""Ranks that do not save: who waits for their part of a save is told so, and waits no longer."""

from phalanx import _door as door

# How long a rank that waits takes for granted that the others of its node come to it, in seconds.
UNOPENED_S = 10  # those that have made no Checkpointer
UNSAVED_S = 30  # those that have saved nothing yet in their life


def wait(agent, directory, step, ask, timeout_s):
    """What `ask(timeout_s)` returns, (whether it is so, why), or (False, who is absent). Raises its TimeoutError.

    `agent` is a Door. The save itself goes on: it is committed when those who were late have saved it.
    """
    waited_s = 0
    for patience_s in (UNOPENED_S, UNSAVED_S):
        if timeout_s is not None and timeout_s <= patience_s:
            break
        try:
            return ask(patience_s - waited_s)
        except TimeoutError:
            waited_s = patience_s
        why = _who_is_absent(agent, directory, step, patience_s)
        if why is not None:
            return False, why
    return ask(None if timeout_s is None else timeout_s - waited_s)


def _who_is_absent(agent, directory, step, waited_s):
    try:
        answer = agent.ask("absent", dir=directory)
    except (door.Refusal, door.Gone):
        return None  # whoever asks next hears why
    if answer.get("unopened"):
        return (
            f"{_named(answer['unopened'])} made no Checkpointer of {directory} within {waited_s} s: every rank makes "
            f"one and calls save(), and step {step} is committed when all have"
        )
    if waited_s >= UNSAVED_S and answer.get("unsaved"):
        return (
            f"{_named(answer['unsaved'])} saved nothing within {waited_s} s: every rank calls save(), and step {step} "
            "is committed when all have"
        )
    return None


def _named(ranks):
    return f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {', '.join(ranks)} have"
