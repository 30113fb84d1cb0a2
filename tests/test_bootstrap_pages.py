"""What a life writes until its first step is copied for the spares behind it while they wait (pages.py)."""

import mmap
import os
import subprocess
import sys

import pytest
from phalanx._bootstrap import linux, pages
from zygote_agent import Agent, write_board


def marks_what_is_written():
    """Whether /proc/self/pagemap tells which pages are this process's alone."""
    page = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    page[0] = 1
    with open("/proc/self/maps", "rb") as file:
        ends = [line.split(b" ")[0].split(b"-") for line in file]
    pages._inherited.extend((int(start, 16), int(end, 16)) for start, end in ends if int(end, 16) < 1 << 47)
    try:
        return any(pages._written())
    finally:
        pages._inherited.clear()


pytestmark = pytest.mark.skipif(
    not linux.can_populate() or not marks_what_is_written(), reason="this kernel copies no pages ahead"
)

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
import os, phalanx

FORKS
phalanx.step(1)
if [entry for at, entry in enumerate(touched) if entry != [at]]:
    print("its objects are others")
"""
# As a DataLoader does: its workers are there at the first step, and share what was written before.
FORKS = """
read, write = os.pipe()
if os.fork() == 0:
    os.close(write)
    os.read(read, 1)
    os._exit(0)
"""


class Zygote:
    def __init__(self, agent, folder):
        self.agent, self.folder = agent, folder
        self.fork = agent.fork

    def faults_of(self, spare, slot=0, **env):
        path = self.folder / "board"
        write_board(path)
        board = {"path": str(path), "slot": slot}
        env = {**self.agent.env, **env}
        status, out, err = spare.run(self.folder / "script.py", cwd=self.folder, env=env, board=board).result()
        assert (status, err) == (0, ""), (status, out, err)
        return int(out)


@pytest.fixture
def start(tmp_path):
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "a_library.py").write_text(LIBRARY)
    with Agent(env={"PYTHONPATH": str(packages)}, cwd=tmp_path) as agent:

        def start(forks=""):
            (tmp_path / "script.py").write_text(SCRIPT.replace("FORKS", forks))
            assert agent.start_zygote(tmp_path / "script.py", cwd=tmp_path)["type"] == "ready"
            return Zygote(agent, tmp_path)

        yield start


@pytest.mark.parametrize("forks", ["", FORKS], ids=["alone", "with a child"])
def test_spares_behind_a_life_have_what_it_has_written(start, forks):
    zygote = start(forks)
    taken = zygote.faults_of(zygote.fork(ahead=True))
    assert taken > OBJECTS * 64 // mmap.PAGESIZE  # else this has not been what it looks for
    assert zygote.faults_of(zygote.fork(ahead=True)) < taken / 4


def test_a_spare_that_waits_already(start):
    """The round's first step has come late: the agent says so."""
    zygote = start()
    told, not_told = zygote.fork(ahead=True), zygote.fork(ahead=True)
    taken = zygote.faults_of(zygote.fork())
    told.peer.send({"type": "prepare"})
    assert zygote.faults_of(told) < taken / 4
    assert zygote.faults_of(not_told) > taken / 2


def test_one_rank_of_the_node_learns(start):
    """Those of several would write one list at a time. LOCAL_RANK may be 0 in all (--virtual-local-rank)."""
    zygote = start()
    taken = zygote.faults_of(zygote.fork(), slot=1, LOCAL_RANK="0")
    assert zygote.faults_of(zygote.fork(ahead=True), LOCAL_RANK="1") > taken / 2
    assert zygote.faults_of(zygote.fork(ahead=True)) < taken / 4


def test_who_waits_for_a_spare_does_not_wait_for_its_pages(start):
    zygote = start()
    taken = zygote.faults_of(zygote.fork())
    assert zygote.faults_of(zygote.fork()) > taken / 2


IN_A_FORK = """
import mmap, os, resource
from phalanx._bootstrap import linux, pages
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
def write_and_learn():
    pages.watch()
    write()
    pages.learn()
in_a_fork(write_and_learn)
{then}
def take():
    pages.make_own()
    between = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    write()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - between, flush=True)
    assert set(own[1:4096]) == {{ord("x")}}
in_a_fork(take)
"""
PAGES = (8 << 20) // mmap.PAGESIZE


def left_to_copy(first="", then=""):
    """Pages that a fork still copies when it writes 8 MiB that one before has written."""
    done = subprocess.run(
        [sys.executable, "-c", IN_A_FORK.format(first=first, then=then)],
        env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(os.path.dirname(pages.__file__)))},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return int(done.stdout)


def test_pages_of_a_fork():
    assert left_to_copy() < PAGES / 4


def test_no_more_than_a_spare_may_take():
    """A run that is larger is taken in part."""
    left = left_to_copy(first="pages._BYTES_MAX = 6 << 20")
    assert PAGES / 8 < left < PAGES * 7 / 8


@pytest.mark.parametrize("where", ["unmapped", "read only"])
def test_memory_that_the_zygote_has_given_back(where):
    """What comes behind it in the list is taken all the same."""
    address = {
        "unmapped": "1 << 44",
        "read only": "linux.ctypes.addressof(linux.ctypes.c_char.from_buffer(other))",
    }[where]
    then = f"""
other = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
bad = {address}
if {where == "read only"}:
    assert linux._libc.mprotect(linux.ctypes.c_void_p(bad), linux.ctypes.c_size_t(4096), 1) == 0
assert not linux.populate(bad, 4096)
words = pages._words()
n = words[0]
words[1 + 2 * n], words[2 + 2 * n] = words[1], words[2]
words[1], words[2] = bad, 4096
words[0] = n + 1
"""
    assert left_to_copy(then=then) < PAGES / 4


def test_room_that_a_library_has_reserved():
    """As sanitizers do, by the terabyte: nobody looks through it."""
    flags = "mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000"  # MAP_NORESERVE
    assert left_to_copy(first=f"room = mmap.mmap(-1, 1 << 44, {flags})") < PAGES / 4


@pytest.mark.parametrize("refused", ["populate", "pagemap"])
def test_a_kernel_that_knows_no_such_thing(refused):
    first = {
        "populate": "linux._MADV_POPULATE_WRITE = 4000",
        "pagemap": "real = os.open; os.open = lambda path, *rest: real(path.replace('pagemap', 'none'), *rest)",
    }[refused]
    assert left_to_copy(first=first) > PAGES / 2
