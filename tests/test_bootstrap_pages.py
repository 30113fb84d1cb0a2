"""What a life writes until its first step is copied for the spares behind it while they wait (pages.py)."""

import mmap
import os
import subprocess
import sys

import pytest
from phalanx._bootstrap import pages
from zygote_agent import Agent

OBJECTS = 400_000  # 25 MB of them
LIBRARY = f"""
kept = [[index] for index in range({OBJECTS})]
"""
SCRIPT = """
import resource
import a_library


def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


begin = faults()
touched = list(a_library.kept)  # counts each of them once more
print(faults() - begin, flush=True)
import phalanx

phalanx.step(1)
if [entry for at, entry in enumerate(touched) if entry != [at]]:
    print("its objects are others")
"""


@pytest.fixture
def agent(tmp_path):
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "a_library.py").write_text(LIBRARY)
    (tmp_path / "script.py").write_text(SCRIPT)
    with Agent(env={"PYTHONPATH": str(packages)}, cwd=tmp_path) as agent:
        assert agent.start_zygote(tmp_path / "script.py", cwd=tmp_path)["type"] == "ready"
        yield agent


def faults_of(spare, tmp_path, agent, local_rank=0):
    env = {**agent.env, "LOCAL_RANK": str(local_rank)}
    status, out, err = spare.run(tmp_path / "script.py", cwd=tmp_path, env=env).result()
    assert (status, err) == (0, ""), (status, out, err)
    return int(out)


def test_spares_behind_a_life_have_what_it_has_written(agent, tmp_path):
    first, before = agent.fork(ahead=True), agent.fork(ahead=True)
    taken = faults_of(first, tmp_path, agent)
    assert taken > OBJECTS * 64 // mmap.PAGESIZE  # else this has not been what it looks for
    assert faults_of(agent.fork(ahead=True), tmp_path, agent) < taken / 4
    assert faults_of(before, tmp_path, agent) > taken / 2  # nobody tells one that waits already


def test_one_rank_of_the_node_learns(agent, tmp_path):
    """Those of several would write one list at a time."""
    taken = faults_of(agent.fork(), tmp_path, agent, local_rank=1)
    assert faults_of(agent.fork(ahead=True), tmp_path, agent) > taken / 2


def test_who_waits_for_a_spare_does_not_wait_for_its_pages(agent, tmp_path):
    taken = faults_of(agent.fork(), tmp_path, agent)
    assert faults_of(agent.fork(), tmp_path, agent) > taken / 2


IN_A_FORK = """
import os
from phalanx._bootstrap import pages
own = bytearray(b"x" * (8 << 20))
{first}
pages.share()
def in_a_fork(act):
    pid = os.fork()
    if pid == 0:
        act()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
def write():
    for at in range(0, len(own), 4096):
        own[at] = 1
    pages.learn()
in_a_fork(write)
{then}
def take():
    import resource
    began = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    pages.make_own()
    between = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    write()
    print(between - began, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - between, flush=True)
    assert set(own[1:4096]) == {{ord("x")}}
in_a_fork(take)
"""


def in_a_fork(first="", then=""):
    done = subprocess.run(
        [sys.executable, "-c", IN_A_FORK.format(first=first, then=then)],
        env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(os.path.dirname(pages.__file__)))},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [int(number) for number in done.stdout.split()]


PAGES = (8 << 20) // mmap.PAGESIZE


def test_pages_of_a_fork():
    ahead, later = in_a_fork()
    assert ahead > PAGES / 2 and later < PAGES / 4


def test_no_more_than_a_spare_may_take():
    _, later = in_a_fork(first="pages._PAGES_MAX = 100")
    assert later > PAGES / 2


def test_memory_that_is_not_mapped():
    """The zygote has given it back meanwhile: what comes behind it in the list is taken all the same."""
    then = "words = pages._words(); n = words[0]; words[1 + 2 * n], words[2 + 2 * n] = words[1], words[2]"
    _, later = in_a_fork(then=f"{then}; words[1], words[2] = 1 << 44, 4096; words[0] = n + 1")
    assert later < PAGES / 4


@pytest.mark.parametrize("refused", ["populate", "pagemap"])
def test_a_kernel_that_knows_no_such_thing(refused):
    first = {
        "populate": "from phalanx._bootstrap import linux; linux._MADV_POPULATE_WRITE = 4000",
        "pagemap": "real = os.open; os.open = lambda path, *rest: real(path.replace('pagemap', 'none'), *rest)",
    }[refused]
    _, later = in_a_fork(first=first)
    assert later > PAGES / 2
