"""What trainings tell whose state something else than an optimizer writes while it is saved (workloads/writing.py), and
how that is judged."""

WRITERS = ["AverageSwap", "ScheduleFree", "Sharpness", "Normalisation", "Thread"]


def torn(writer, event):
    """Why what was restored is no state that the job had, or None. What a thread of its own writes has two values, by
    turns; each is a state."""
    if event["values"] is None:
        return None
    first, second = event["values"]
    expected = {float(event["saved"])}
    firsts = {*expected, -float(event["saved"])} if writer == "Thread" else expected
    if first in firsts and second in expected and event["saved"] == event["n"]:
        return None
    return f"step {event['n']} has {event['values']}, saved as {event['saved']}"


def lost(events):
    """What was committed and is not restored: (restored, committed before) of each life that goes on from less."""
    promised, found = 0, []
    for event in events:
        if event["ev"] == "committed":
            promised = max(promised, event["n"])
        elif event["ev"] == "restored" and event["n"] < promised:
            found.append((event["n"], promised))
    return found
