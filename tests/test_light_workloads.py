"""light_steps.py stands in for steps.py in tests of the launcher: both go through the same story, event by event.

What a rank says whose peer is gone is held to gloo's words by test_budget.py: test_first_cause_is_not_a_victim.
"""

import json

import pytest

both = pytest.mark.parametrize("script", [pytest.param("steps.py", marks=pytest.mark.slow), "light_steps.py"])
FIELDS = {"ev", "t", "pid", "rank", "local_rank", "life", "world"}
WHOLE = ["main", "group", "model", *["step"] * 3, "done"]


def told(job, life):
    """{rank: names of its events, in order}, without deaths."""
    found = {}
    for event in job.events:
        if event["life"] == life and event["ev"] != "dying":
            found.setdefault(event["rank"], []).append(event["ev"])
    return found


@both
def test_what_is_reported(job, script):
    """Every event with its fields, in the same order. All end behind the same step, agreed upon by the stop file."""
    node = job.standalone(script, "--step-ms=1", nproc=3, flags=["--max-restarts=0"])
    job.wait_events("step", 3, n=40)
    job.stop()
    assert node.wait() == 0, job.story()
    stories = told(job, life=0)
    assert stories[0] == ["main", "group", "model", *["step"] * (len(stories[0]) - 4), "done"]
    assert stories == dict.fromkeys(range(3), stories[0])
    more = {"main": {"store"}, "group": set(), "model": set(), "step": {"n"}, "done": set()}
    for event in job.events:
        assert set(event) == FIELDS | more[event["ev"]]
        assert event["world"] == 3 and event["local_rank"] == event["rank"]
    steps = [[event["n"] for event in job.found("step", rank=rank)] for rank in range(3)]
    assert steps[0][:5] == [1, 2, 3, 20, 40] and steps == [steps[0]] * 3


# What a rank has told when it dies there; its peer can tell no more.
PHASES = {
    "import": ["main"],
    "before_init": ["main"],
    "after_init": ["main", "group"],
    "first_step": ["main", "group", "model"],
    "all_reduce": ["main", "group", "model", "step", "step"],
    "end": WHOLE,
    "exiting": WHOLE,
}
HOWS = {"exception": "failed (exit code 1)", "exit3": "failed (exit code 3)", "segv": "died (SIGSEGV)"}


def exits(job):
    """Rows of the record about ranks that ended badly."""
    text = job.phalanx("events", f"--state-dir={job.folder / 'state'}", "--json").stdout
    rows = [json.loads(line) for line in text.splitlines()]
    return [row for row in rows if row["kind"] == "worker-exited" and "ended well" not in row["reason"]]


def reasons(job):
    """Of the end of each life, what the record says of rank 1. A rank closes its socket before its exception has ended
    it: its peer may be the first that has ended, and the agent then ends rank 1, of which the record has no row."""
    of_life = {}
    for row in exits(job):
        of_life.setdefault(row["epoch"], []).append((row["rank"], row["reason"].partition(" on node")[0]))
    victim = [(0, "rank 0 failed (exit code 1)")]
    by_exception = f"rank 1 {HOWS['exception']}"
    return [
        [by_exception] if ends == victim and life == len(PHASES) else [reason for rank, reason in ends if rank == 1]
        for life, (_, ends) in enumerate(sorted(of_life.items()))
    ]


@both
@pytest.mark.timeout(900)
def test_deaths(job, script):
    """In one life after the other rank 1 dies, in each phase and in each way. It comes as far as planned, its peer no
    further than it can alone, and the last life is whole."""
    plan = [(phase, "kill") for phase in PHASES] + [("first_step", how) for how in HOWS]
    faults = [f"--fault={life}:1:{phase}:{how}" for life, (phase, how) in enumerate(plan)]
    node = job.standalone(script, "--steps=3", *faults, flags=[f"--max-restarts={len(plan)}"])
    assert node.wait(timeout_s=240) == 0, job.story()  # eleven lives, in most of which nobody knows yet of torch
    assert [(event["phase"], event["how"]) for event in job.found("dying", rank=1)] == plan
    for life, (phase, _) in enumerate(plan):
        story = told(job, life)
        assert story[1] == PHASES[phase], phase
        of_peer = story.get(0, [])
        assert of_peer == PHASES[phase][: len(of_peer)], phase
    assert told(job, len(plan)) == {0: WHOLE, 1: WHOLE}
    assert reasons(job) == [
        *[["rank 1 died (SIGKILL)"]] * len(PHASES),
        *([f"rank 1 {said}"] for said in HOWS.values()),
    ]
