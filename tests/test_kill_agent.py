"""phalanx-run killed by SIGKILL: nothing of it is left a second later, and other nodes go on."""

import signal

import pytest
from harness import name_of, read_proc, wait_ends


def left_after(job, seconds):
    """Names of what is left, the embedded master apart: it serves other nodes, and ends by itself."""
    pids = [pid for pid in job.processes() if not read_proc(pid, "comm").startswith(b"phalanx-master")]
    return [name_of(pid) for pid in wait_ends(pids, seconds)]


@pytest.mark.alone  # all is gone within a second
@pytest.mark.parametrize("arguments", [["--warm", "--torch"], ["--no-warm"]])
def test_nothing_is_left(make_job, arguments):
    """Ranks that hold the GIL, that are stopped, that ignore signals; their children, in sessions of their own too;
    zygote and spares: all gone within a second. The embedded master follows when nobody has come back to it."""
    left = []
    for _ in range(3):  # a second is short on a machine that stands still now and then
        left.append(left_of_one(make_job(), arguments))
        if not left[-1]:
            return
    raise AssertionError(f"left behind for more than a second, each time: {left}")


def left_of_one(job, arguments):
    """What was left a second later. It has gone by now."""
    flags = [word for word in arguments if word.endswith("warm")]
    node = job.standalone("stubborn.py", *(word for word in arguments if word not in flags), flags=flags)
    grandchildren = [pid for event in job.wait_events("main", 2) for pid in event["grandchildren"]]
    assert len(grandchildren) == 6
    # One that is just becoming another program shows no environment.
    job.wait(lambda _: set(grandchildren) < set(job.processes()), "all grandchildren among the job's processes")
    node.signal(signal.SIGKILL)
    assert node.wait() == -signal.SIGKILL
    found = left_after(job, 1.0)
    assert left_after(job, 60) == []
    return found  # close() gives the master its time and fails the test where it stays.


@pytest.mark.slow
def test_others_go_on(job):
    """Of two nodes one loses its agent: its rank ends with it, the other node trains on, and no failure counts."""
    nodes = [job.node(index, "light_steps.py", nnodes="1:2", flags=["--max-restarts=0"]) for index in (0, 1)]
    job.wait(lambda _: len(job.found("step", world=2, n=1)) == 2, "a world of 2")
    life = job.found("step", world=2, n=1)[0]["life"]
    pids = list(job.lives()[life].values())
    nodes[1].signal(signal.SIGKILL)
    job.wait_stepping(life=life + 1, world=1)
    assert wait_ends(pids, 20) == []
    job.stop()
    assert nodes[0].wait() == 0, job.story()


def test_stop_of_a_stubborn_tree(job):
    """The same ranks go on an ordinary stop as well, when --stop-timeout is over."""
    node = job.standalone("stubborn.py", flags=["--no-warm", "--stop-timeout=0.5"])
    job.wait_events("main", 2)
    ranks = [event["pid"] for event in job.found("main")]
    node.signal(signal.SIGTERM)
    assert node.wait(15) == 143, job.story()
    assert wait_ends(ranks, 20) == []
    # What left its rank's session is left and named at a job's end.
    own = {pid for event in job.found("main") for pid in event["grandchildren"][1:]}
    job.expected_strays = [pid for pid in job.processes() if pid in own]
