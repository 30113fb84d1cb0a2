"""A rank's log files on a disk that takes nothing more: lines are lost, and nothing else happens."""

import re
import textwrap

import pytest
from zygote_agent import Agent

HEAD = """
    import os, sys
    BALLAST = sys.argv[1] + "/ballast"
    def fill():
        fd = os.open(BALLAST, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            while os.write(fd, bytes(4096)):
                pass
        except OSError:
            os.close(fd)
    def make_room():
        os.unlink(BALLAST)
    """
GAP = re.compile(rb"\n\[phalanx: (\d+) bytes of this log were lost here: No space left on device\]\n")


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    script = tmp_path_factory.mktemp("zygote") / "any.py"
    script.write_text("")
    with Agent() as agent:
        env = {**agent.env, "PHALANX_PRELOAD": "logging,threading"}
        assert agent.start_zygote(script, env=env)["type"] == "ready"
        yield agent


@pytest.fixture(params=["warm", "cold"])
def worker(agent, request):
    worker = agent.fork() if request.param == "warm" else agent.cold()
    yield worker
    worker.end()


def run(worker, disk, tmp_path, body, logs=3, env=None):
    """(status, bytes of the log of stdout, of stderr, what was told of losses)."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(HEAD) + textwrap.dedent(body))
    with open("/dev/null") as null, open(str(disk.path / "out"), "ab") as out, open(
        str(disk.path / "err"), "ab"
    ) as err:
        worker.run(script, disk.path, stdio=[null.fileno(), out.fileno(), err.fileno()], logs=logs, env=env)
        status = worker.wait()
    told = [(message["stream"], message["errno"]) for message in worker.messages() if message["type"] == "log_lost"]
    return status, (disk.path / "out").read_bytes(), (disk.path / "err").read_bytes(), told


def test_lines_are_lost_and_come_again(worker, small_disk, tmp_path):
    """Whatever way they are written. The log says how much is missing, to the byte, and no line is glued to another."""
    body = """
        import logging, threading
        print("before")
        print("no end", end="")
        fill()
        lost = "lost " * 4000
        print(lost)
        sys.stdout.buffer.write(b"raw\\n")
        sys.__stdout__.writelines(["a\\n", "b\\n"])
        sys.stdout.reconfigure(line_buffering=True)
        print("c")
        sys.stdout.flush()
        make_room()
        print("after")
        fill()
        assert sys.stdout.buffer.write(bytearray(b"d" * 10000)) == 10000
        make_room()
        print("at last")
        """
    status, out, err, told = run(worker, small_disk, tmp_path, body)
    assert (status, err) == (0, b"")
    assert told == [(1, 28)]
    first, missing, second, missing_again, third = GAP.split(out)
    lost = b"lost " * 4000
    assert first == (b"before\nno end" + lost)[: len(first)]
    assert len(first) + int(missing) == len(b"before\nno end" + lost + b"\nraw\na\nb\nc\n")
    assert second.startswith(b"after\n") and set(second[6:]) <= set(b"d")
    assert len(second) - 6 + int(missing_again) == 10000
    assert third == b"at last\n"


def test_a_gap_behind_a_whole_line(worker, small_disk, tmp_path):
    body = """
        sys.stdout.write("x" * 4095 + "\\n")
        fill()
        print("lost")
        make_room()
        print("after")
        """
    _, out, _, _ = run(worker, small_disk, tmp_path, body)
    line = b"[phalanx: 5 bytes of this log were lost here: No space left on device]\n"
    assert out == b"x" * 4095 + b"\n" + line + b"after\n"


def test_a_full_disk_stops_no_thread_and_no_logging(worker, small_disk, tmp_path):
    body = """
        import logging, threading
        log = logging.getLogger("x")
        log.addHandler(logging.StreamHandler(sys.stderr))
        fill()
        done = []
        def talk(number):
            for line in range(200):
                print("thread", number, line)
                log.error("thread %d %d", number, line)
            done.append(number)
        threads = [threading.Thread(target=talk, args=(number,)) for number in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        make_room()
        print("after", sorted(done))
        log.error("after")
        """
    status, out, err, told = run(worker, small_disk, tmp_path, body)
    assert status == 0
    assert out.endswith(b"after [0, 1, 2, 3]\n") and b"[phalanx: " in out
    assert err.endswith(b"\nafter\n") and b"[phalanx: " in err and b"Traceback" not in err
    assert sorted(told) == [(1, 28), (2, 28)]


def test_the_end_of_a_script_on_a_full_disk(worker, small_disk, tmp_path):
    """A traceback that nobody can keep changes no exit status."""
    body = """
        import faulthandler
        faulthandler.enable()
        sys.stderr.write("x" * 4096)
        fill()
        raise ValueError("planned")
        """
    status, _, err, told = run(worker, small_disk, tmp_path, body)
    assert status == 1
    assert err == b"x" * 4096
    assert told == [(2, 28)]


def test_a_forked_child_on_a_full_disk(worker, small_disk, tmp_path):
    """It loses its lines as well, and tells nobody: it is not the rank."""
    body = """
        fill()
        sys.stdout.write("x" * 4096)
        make_room()
        fill_and_child = os.fork()
        if fill_and_child == 0:
            fill()
            print("y" * 10000)
            os._exit(0)
        assert os.waitpid(fill_and_child, 0)[1] == 0
        """
    status, _, err, told = run(worker, small_disk, tmp_path, body)
    assert (status, err) == (0, b"")
    assert told == [(1, 28)]


def test_other_errors_are_the_scripts(worker, small_disk, tmp_path):
    """A limit that the script has set itself, a full device: as in any Python."""
    body = """
        import resource
        raised = []
        def attempt(text):
            try:
                sys.stdout.write(text)
            except OSError as error:
                raised.append(error.strerror)
        print("short")
        most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, most))
        attempt("x" * 100)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
        attempt("y")
        sys.stderr.write(str(raised))
        """
    status, out, err, told = run(worker, small_disk, tmp_path, body)
    assert (status, out, told) == (0, b"short\nxxxx", [])
    assert err == b"['File too large', 'No space left on device']"


@pytest.mark.parametrize("env", [{}, {"PYTHONHASHSEED": "7"}], ids=["as it is", "made cold"])
def test_a_file_of_the_persons_own(worker, small_disk, tmp_path, env):
    """Only the launcher's log files lose lines. What a script writes to another file is its output, and an error."""
    body = """
        fill()
        print("lost", file=sys.stderr)
        try:
            print("output " * 4096)
        except OSError as error:
            make_room()
            print(error.strerror, os.environ.get("PYTHONHASHSEED"), file=sys.stderr)
            sys.exit(7)
        """
    status, out, err, told = run(worker, small_disk, tmp_path, body, logs=2, env=env)
    assert (status, out, told) == (7, b"", [(2, 28)])
    gap = b"[phalanx: 5 bytes of this log were lost here: No space left on device]\n"
    assert err == gap + b"No space left on device %s\n" % env.get("PYTHONHASHSEED", "None").encode()


def test_a_stream_looks_as_in_any_python(worker, small_disk, tmp_path):
    body = """
        import io
        raw = sys.stdout.buffer
        print(type(sys.stdout) is io.TextIOWrapper, type(raw).__name__, isinstance(raw, io.FileIO), repr(raw))
        """
    _, out, _, _ = run(worker, small_disk, tmp_path, body)
    assert out == b"True FileIO True <_io.FileIO name='<stdout>' mode='wb' closefd=False>\n"
